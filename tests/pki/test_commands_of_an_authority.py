"""`pki rotate` and `pki doctor` as a person types them, from the first step to the last."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pki.authority import Authority
from pki.enrolment_decisions import Issued, enrolment_request, handle_request
from pki.invitation import Invitation
from pki.register import Register
from tests.pki.test_cli import Terminal, init_words
from tests.pki.whole_site import SiteKeys


@pytest.fixture
def pki(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The command without a terminal."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    return Terminal(capsys)


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    """The root key's passphrase in a private file."""
    file = tmp_path / "passphrase"
    file.touch(mode=0o600)
    file.write_text("correct horse battery\n")
    return file


@pytest.fixture
def directory(pki: Terminal, passphrase: Path, tmp_path: Path) -> Path:
    """An authority made by `pki init`, with one member."""
    directory, paper = tmp_path / "pki", tmp_path / "a.invitation"
    assert pki(*init_words(directory), "--passphrase-file", passphrase) == 0
    assert pki("invite", "a", "--directory", directory, "--output", paper, "--pre-approved") == 0
    keys, authority = SiteKeys.create(tmp_path / "site"), Authority.load(directory)
    request = enrolment_request(Invitation.load(paper), keys.signing_request(), keys.identity_key())
    with Register(authority.register_path) as register:
        assert isinstance(handle_request(authority, register, request, datetime.now(UTC)), Issued)
    return directory


def fingerprints(directory: Path) -> dict[str, bytes]:
    """Every file of an authority."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_an_authority_changes_in_three_steps_and_status_names_the_next(
    pki: Terminal, directory: Path, passphrase: Path
) -> None:
    """Begin, complete, end: each says what it did, and the old root goes only when no site needs it."""
    where, before = ("--directory", directory), Authority.load(directory).root_pem()
    assert pki("rotate", "status", *where) == 0
    assert "No replacement of the root key has begun." in pki.out

    assert pki("rotate", "begin", *where, "--passphrase-file", passphrase) == 0
    assert "Passphrase of the next root key, shown only once: " in pki.out
    assert Authority.load(directory).root_pem() == before
    assert pki("rotate", "status", *where) == 0
    assert "run `pki rotate complete`" in pki.out

    assert pki("rotate", "complete", *where) == 0
    assert Authority.load(directory).root_pem() != before
    assert pki("rotate", "status", *where) == 0
    assert pki.out == "Completed. These sites have not renewed yet: a.\n"
    assert pki("rotate", "end", *where) == 78
    assert "These sites still have certificates of the old authority: a." in pki.err

    assert pki("revoke", "a", *where) == 0
    assert pki("rotate", "status", *where) == 0
    assert pki.out == "Completed. Run `pki rotate end`.\n"
    assert pki("rotate", "end", *where) == 0
    assert not Authority.load(directory).is_changing()


def test_the_next_root_key_opens_with_the_passphrase_that_was_given_for_it(
    pki: Terminal, directory: Path, passphrase: Path, tmp_path: Path
) -> None:
    """After the change the new passphrase renews the issuing certificate, and the old one is refused."""
    following = tmp_path / "following"
    following.touch(mode=0o600)
    following.write_text("battery horse correct\n")
    words = ("--passphrase-file", passphrase, "--next-passphrase-file", following)

    assert pki("rotate", "begin", "--directory", directory, *words) == 0
    assert "shown only once" not in pki.out
    assert "battery" not in pki.out + pki.err
    assert pki("rotate", "complete", "--directory", directory) == 0

    assert pki("renew", "--authority", "--directory", directory, "--passphrase-file", passphrase) == 77
    assert pki("renew", "--authority", "--directory", directory, "--passphrase-file", following) == 0


def test_steps_out_of_order_and_a_wrong_passphrase_change_nothing(
    pki: Terminal, directory: Path, passphrase: Path, tmp_path: Path
) -> None:
    """Complete or end before begin, begin twice, or another passphrase is refused, and no file changes."""
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("wrong horse\n")
    where, untouched = ("--directory", directory), fingerprints(directory)

    assert pki("rotate", "complete", *where) == 78
    assert pki("rotate", "end", *where) == 78
    assert pki("rotate", "begin", *where, "--passphrase-file", wrong) == 77
    assert fingerprints(directory) == untouched

    assert pki("rotate", "begin", *where, "--passphrase-file", passphrase) == 0
    begun = fingerprints(directory)
    assert pki("rotate", "begin", *where, "--passphrase-file", passphrase) == 78
    assert pki("rotate", "end", *where) == 78
    assert fingerprints(directory) == begun


def test_doctor_warns_until_the_root_key_is_away_and_fails_where_a_secret_lies_open(
    pki: Terminal, directory: Path, tmp_path: Path
) -> None:
    """Status 3 with the root key on this computer, 0 without, 1 where others may read a key; nothing is changed."""
    authority, where = Authority.load(directory), ("--directory", directory)

    assert pki("doctor", *where) == 3
    assert "The sealed root key is still at" in pki.out
    authority.sealed_root_key_path.rename(tmp_path / "stick")
    before = fingerprints(directory)
    assert pki("doctor", *where) == 0
    assert "The certificate of a" in pki.out
    assert "The root certificate" in pki.out
    assert fingerprints(directory) == before

    authority.identity_key_path.chmod(0o644)
    assert pki("doctor", *where, "--json") == 1
    findings = json.loads(pki.out)
    assert [str(authority.identity_key_path) in str(finding) for finding in findings].count(True) == 1


def test_doctor_tells_a_change_under_way_and_a_folder_that_is_no_authority(
    pki: Terminal, directory: Path, passphrase: Path, tmp_path: Path
) -> None:
    """Between begin and end it warns and names the command that shows the next step.

    In a folder that is no authority it fails.
    """
    assert pki("rotate", "begin", "--directory", directory, "--passphrase-file", passphrase) == 0

    assert pki("doctor", "--directory", directory) == 3
    assert "The replacement of the root key has begun and is not complete." in pki.out
    assert "`pki rotate status`" in pki.out
    assert pki("doctor", "--directory", tmp_path / "nowhere") == 1
    assert pki.err == ""
