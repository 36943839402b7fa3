"""The command writes private files, prints plain words, and never shows a traceback."""

from __future__ import annotations

import json
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from pki import pki_cli
from pki.authority import Authority
from pki.enrolment_decisions import Pending, enrolment_request, handle_request
from pki.invitation import Invitation
from pki.register import Register
from tests.entry_points import Terminal
from tests.pki.whole_site import SiteKeys


@pytest.fixture
def pki(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The command in this process."""
    return Terminal("pki", pki_cli.main, capsys, monkeypatch)


@pytest.fixture
def directory(pki: Terminal, tmp_path: Path) -> Path:
    """An authority made by `pki init`."""
    assert pki(*_init_words(tmp_path / "pki")) == 0
    return tmp_path / "pki"


def _init_words(directory: Path) -> list[object]:
    words = ["--federation", "heart", "--address", "localhost:8443", "--enrolment-address", "localhost:8444"]
    return ["init", *words, "--directory", directory]


def exposed(root: Path) -> list[str]:
    """Files with a secret inside that somebody else could read or write."""
    return [
        path.name
        for path in root.rglob("*")
        if path.is_file()
        and (b"PRIVATE KEY" in path.read_bytes() or path.suffix in (".sealed", ".invitation", ".sqlite", ".key"))
        and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def test_a_site_is_invited_approved_listed_and_revoked(pki: Terminal, directory: Path, tmp_path: Path) -> None:
    """The whole walk, with the fingerprints that both sides read, and no exposed secret after any command."""
    assert pki("invite", "st-mary", "--directory", directory, "--output", tmp_path / "st-mary.invitation") == 0
    invitation = Invitation.load(tmp_path / "st-mary.invitation")
    assert invitation.fingerprint in pki.out
    assert exposed(tmp_path) == []
    keys, authority = SiteKeys.create(tmp_path / "site"), Authority.load(directory)
    with Register(authority.register_path) as register:
        request = enrolment_request(invitation, keys.signing_request(), keys.identity_key())
        assert isinstance(handle_request(authority, register, request, datetime.now(UTC)), Pending)
    assert pki("list", "--directory", directory, "--plan") == 0
    assert yaml.safe_load(pki.out) == {"sites": []}

    wrong = keys.identity_fingerprint()[:-1] + ("a" if keys.identity_fingerprint()[-1] != "a" else "b")
    assert pki("approve", "st-mary", "--directory", directory, "--fingerprint", wrong) == 77
    assert wrong in pki.err
    assert keys.identity_fingerprint() in pki.err
    assert pki("approve", "st-mary", "--directory", directory, "--fingerprint", wrong.replace("-", "")[:-3]) == 77
    assert pki("approve", "st-mary", "--directory", directory, "--fingerprint", keys.identity_fingerprint()) == 0
    assert exposed(tmp_path) == []

    assert pki("list", "--directory", directory, "--plan") == 0
    assert yaml.safe_load(pki.out) == {"sites": [{"name": "st-mary", "identity": keys.identity_fingerprint()}]}
    assert pki("list", "--directory", directory) == 0
    assert "approved" in pki.out
    assert pki("revoke", "st-mary", "--directory", directory) == 0
    assert pki("list", "--directory", directory) == 0
    assert "revoked" in pki.out
    assert exposed(tmp_path) == []


def test_the_root_key_opens_with_the_passphrase_that_was_shown(pki: Terminal, tmp_path: Path) -> None:
    """It is made at random and shown once. To renew the authority it is read from a private file."""
    file, words = tmp_path / "passphrase", ["renew", "--directory", tmp_path / "a", "--authority"]
    assert pki(*_init_words(tmp_path / "a")) == 0
    (made,) = re.findall("shown only once: (.*)", pki.out)
    assert len(made.replace("-", "")) == 26
    file.write_text(f"{made}\n")
    file.chmod(0o644)
    assert pki(*words, file) == 78
    file.chmod(0o600)
    assert pki(*words, file) == 0
    file.write_text(f"{made}a\n")
    assert pki(*words, file) == 77
    assert exposed(tmp_path) == []


def test_inspect_speaks_plainly_and_hides_the_token(pki: Terminal, directory: Path, tmp_path: Path) -> None:
    """An invitation is described; the token is not among the words."""
    pki("invite", "st-mary", "--directory", directory, "--output", tmp_path / "i", "--valid-hours", "1")
    token = json.loads((tmp_path / "i").read_bytes())["token"]

    assert pki("inspect", tmp_path / "i") == 0
    assert "st-mary" in pki.out
    assert token not in pki.out
    assert pki("inspect", directory / "issuing.key") == 78


def test_every_failure_is_three_lines(pki: Terminal, directory: Path, tmp_path: Path) -> None:
    """Wrong names, missing and used paths end with a documented status and what, consequence, remedy."""
    used = tmp_path / "used"
    used.touch()
    for status, words in (
        (78, _init_words(directory)),
        (78, ["invite", "Not-A-Name", "--directory", directory, "--output", tmp_path / "x"]),
        (78, ["invite", "a", "--directory", directory, "--output", used]),
        (78, ["invite", "a", "--directory", directory, "--output", tmp_path / "no" / "where"]),
        (78, ["invite", "a", "--directory", tmp_path / "nowhere", "--output", tmp_path / "x"]),
        (77, ["revoke", "nobody", "--directory", directory]),
        (78, ["inspect", tmp_path / "nothing"]),
        (78, ["inspect", tmp_path]),
    ):
        assert pki(*words) == status
        assert pki.err.startswith("pki: ")
        assert len(pki.err.splitlines()) == 3


def test_what_the_system_refuses_is_explained(pki: Terminal, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in an unforeseen place is three sentences too."""

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pki_cli.Invitation, "from_json", full)

    assert pki("inspect", directory / "root.crt") == 1
    assert pki.err.splitlines()[0] == "pki: The operating system refused an operation: No space left on device. [E009]"


def test_an_invitation_that_cannot_be_saved_leaves_the_one_before_it_good(pki: Terminal, directory: Path) -> None:
    """Where the file cannot be written the register is not touched; where it refuses, no file is left."""
    first = directory.parent / "first.invitation"
    assert pki("invite", "st-mary", "--directory", directory, "--output", first) == 0
    missing = directory.parent / "missing" / "second.invitation"

    assert pki("invite", "st-mary", "--directory", directory, "--output", missing) == 78

    with Register(Authority.load(directory).register_path) as register:
        invitation, keys = Invitation.load(first), SiteKeys.create(directory.parent / "keys")
        request = enrolment_request(invitation, keys.signing_request(), keys.identity_key())
        assert isinstance(handle_request(Authority.load(directory), register, request, datetime.now(UTC)), Pending)
        register.approve(invitation.site, keys.identity_fingerprint(), datetime.now(UTC))
        handle_request(Authority.load(directory), register, request, datetime.now(UTC))
    late = directory.parent / "late.invitation"
    assert pki("invite", "st-mary", "--directory", directory, "--output", late) == 78
    assert not late.exists()
