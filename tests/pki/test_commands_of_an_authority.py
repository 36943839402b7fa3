"""`pki doctor` as a person types it."""

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


def test_doctor_fails_in_a_folder_that_is_no_authority(pki: Terminal, tmp_path: Path) -> None:
    """It is a finding and no error."""
    assert pki("doctor", "--directory", tmp_path / "nowhere") == 1
    assert pki.err == ""
