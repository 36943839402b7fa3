"""The register: one token, one winner; a lost reply costs nothing; revocation acts at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pki.invitation import new_token, token_sha256
from pki.names import SiteName
from pki.register import IssuedCertificate, Redemption, Register, SiteState
from protos.errors import ConfigurationError, OperatorError, RefusedError
from protos.fingerprints import fingerprint

MARY = SiteName("st-mary")


def asked(token: bytes, number: int) -> Redemption:
    """A request with keys of its own."""
    return Redemption(token_sha256(token), number.to_bytes(32, "big"), f"key-{number}", b"request")


def issued(number: int) -> IssuedCertificate:
    """A certificate for the keys of that number."""
    return IssuedCertificate(f"certificate-{number}", f"key-{number}", b"chain-%d" % number)


def invited(register: Register, now: datetime, *, name: SiteName = MARY, is_pre_approved: bool = False) -> bytes:
    """A token for a site."""
    token = new_token()
    expires = now + timedelta(hours=1)
    register.invite(name, token_sha256(token), expires=expires, is_pre_approved=is_pre_approved, now=now)
    return token


def member(register: Register, now: datetime, number: int = 1) -> None:
    """Make st-mary an active site with certificate-1."""
    register.request(asked(invited(register, now, is_pre_approved=True), number), now)
    register.activate(MARY, issued(number), now)


def accepted(register: Register) -> list[int]:
    """The numbers of the certificates that still count."""
    return [number for number in (1, 2) if register.is_accepted(MARY, f"certificate-{number}")]


def test_a_file_that_was_cut_is_no_new_register(tmp_path: Path) -> None:
    """Its revocations would be forgotten."""
    Register.create(tmp_path / "register.sqlite").close()
    (tmp_path / "register.sqlite").write_bytes(b"")

    with pytest.raises(OperatorError):
        Register(tmp_path / "register.sqlite")


def test_a_site_walks_from_invited_to_active(register: Register, now: datetime) -> None:
    """Each step leads to the next state, and only the last step makes the certificate accepted."""
    token = invited(register, now)
    assert register.site(MARY).state is SiteState.INVITED
    assert register.request(asked(token, 1), now).state is SiteState.REQUESTED
    assert not register.is_accepted(MARY, "certificate-1")
    with pytest.raises(RefusedError):
        register.activate(MARY, issued(1), now)

    register.approve(MARY, fingerprint((1).to_bytes(32, "big")).upper(), now)
    chain = register.activate(MARY, issued(1), now)

    assert chain == b"chain-1"
    assert register.is_accepted(MARY, "certificate-1")
    assert not register.is_accepted(SiteName("other"), "certificate-1")
    assert register.identity_key(MARY) == (1).to_bytes(32, "big")


def test_the_same_keys_may_ask_again_and_no_others(register: Register, now: datetime) -> None:
    """A retry is answered in every later state, also after the invitation's end; another key is refused."""
    token = invited(register, now)
    later = now + timedelta(days=9)
    register.request(asked(token, 1), now)

    assert register.request(asked(token, 1), later).state is SiteState.REQUESTED
    register.approve(MARY, fingerprint((1).to_bytes(32, "big")), now)
    assert register.request(asked(token, 1), later).state is SiteState.APPROVED
    register.activate(MARY, issued(1), now)
    assert register.request(asked(token, 1), later).state is SiteState.ACTIVE
    assert register.activate(MARY, issued(1), later) == b"chain-1"
    for hostile in (
        asked(token, 2),
        Redemption(token_sha256(token), (1).to_bytes(32, "big"), "key-2", b""),
        Redemption(token_sha256(token), (2).to_bytes(32, "big"), "key-1", b""),
    ):
        with pytest.raises(RefusedError):
            register.request(hostile, now)


def test_void_tokens_are_refused(register: Register, now: datetime) -> None:
    """Unknown, expired, replaced and revoked tokens are refused, and none of them changes the site."""
    replaced = invited(register, now)
    token = invited(register, now)

    for attempt, at in ((new_token(), now), (replaced, now), (token, now + timedelta(hours=1))):
        with pytest.raises(RefusedError):
            register.request(asked(attempt, 1), at)
    assert register.site(MARY).state is SiteState.INVITED
    register.revoke(MARY, now)
    with pytest.raises(RefusedError):
        register.request(asked(token, 1), now)


def test_a_wrong_fingerprint_approves_nobody(register: Register, now: datetime) -> None:
    """The typed fingerprint must be that of the key which asked; before a request there is nothing to approve."""
    token = invited(register, now)
    with pytest.raises(RefusedError):
        register.approve(MARY, fingerprint(bytes(32)), now)
    register.request(asked(token, 1), now)

    for typed in ("", fingerprint(bytes(32))):
        with pytest.raises(RefusedError):
            register.approve(MARY, typed, now)
    assert register.site(MARY).state is SiteState.REQUESTED


def test_revocation_acts_at_once_in_every_process(register: Register, now: datetime, tmp_path: Path) -> None:
    """After `revoke` through one opening, another opening accepts nothing and sees another generation."""
    member(register, now)
    with Register(tmp_path / "register.sqlite") as other:
        before = other.generation()
        assert other.is_accepted(MARY, "certificate-1")

        register.revoke(MARY, now)

        assert not other.is_accepted(MARY, "certificate-1")
        assert other.generation() > before
        for refused in (
            lambda: other.identity_key(MARY),
            lambda: other.add_certificate(MARY, issued(2), now),
            lambda: other.activate(MARY, issued(1), now),
        ):
            with pytest.raises(RefusedError):
                refused()


def test_a_revoked_site_begins_again_with_new_keys(register: Register, now: datetime) -> None:
    """Its old certificate stays refused, and its old TLS key is never certified again."""
    member(register, now)
    with pytest.raises(ConfigurationError):
        invited(register, now)
    register.revoke(MARY, now)
    token = invited(register, now, is_pre_approved=True)
    with pytest.raises(RefusedError):
        register.request(asked(token, 1), now)

    register.request(asked(token, 2), now)
    register.activate(MARY, issued(2), now)

    assert accepted(register) == [2]


def test_a_renewed_certificate_replaces_the_old_one_when_it_has_worked(register: Register, now: datetime) -> None:
    """Both are accepted until the new one is confirmed; confirming the old one takes nothing away."""
    member(register, now)
    assert register.add_certificate(MARY, issued(2), now) == b"chain-2"
    register.confirm(MARY, "certificate-1")
    assert accepted(register) == [1, 2]

    register.confirm(MARY, "certificate-2")
    quiet = register.generation()
    register.confirm(MARY, "certificate-2")

    assert accepted(register) == [2]
    assert register.generation() == quiet
    with pytest.raises(RefusedError):
        register.add_certificate(MARY, issued(1), now)


def _contend(path: Path, tokens: list[bytes], first: int, now: datetime, gate: Callable[[], int]) -> list[int]:
    won = []
    with Register(path) as register:
        gate()
        for index, token in enumerate(tokens):
            try:
                register.request(asked(token, first + index), now)
            except RefusedError:
                continue
            won.append(index)
    return won


def _process(path: Path, tokens: list[bytes], first: int, now: datetime, gate, results) -> None:  # type: ignore[no-untyped-def]
    results.put(_contend(path, tokens, first, now, gate.wait))


def test_of_racing_processes_one_wins(register: Register, now: datetime, tmp_path: Path) -> None:
    """Four processes that each try all of fifty tokens win fifty times in total, each token once."""
    tokens = [invited(register, now, name=SiteName(f"site-{each}")) for each in range(50)]
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(4, timeout=30), context.Queue()
    path = tmp_path / "register.sqlite"
    processes = [
        context.Process(target=_process, args=(path, tokens, 1 + 1000 * each, now, gate, results)) for each in range(4)
    ]
    for process in processes:
        process.start()

    won = sorted(index for _ in processes for index in results.get(timeout=120))

    for process in processes:
        process.join()
    assert won == list(range(50))


def test_the_file_is_private_and_strange_files_are_explained(register: Register, now: datetime, tmp_path: Path) -> None:
    """All of SQLite's files have mode 0600; an open, missing or foreign file is an operator's error."""
    invited(register, now)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "register.sqlite-wal" in modes
    foreign, opened = tmp_path / "foreign", tmp_path / "opened"
    foreign.write_bytes(b"not a database at all" * 100)
    opened.write_bytes(b"")
    for path, mode in ((foreign, 0o600), (opened, 0o644)):
        path.chmod(mode)

    for path in (foreign, opened, tmp_path / "missing"):
        with pytest.raises(OperatorError):
            Register(path)
    with pytest.raises(ConfigurationError):
        Register.create(tmp_path / "register.sqlite")


def test_a_register_keeps_no_token(register: Register, now: datetime, tmp_path: Path) -> None:
    """The token's bytes are in none of the register's files."""
    token = invited(register, now)
    register.request(asked(token, 1), now)

    assert all(token not in path.read_bytes() for path in tmp_path.iterdir())
    assert token_sha256(token).encode() in b"".join(path.read_bytes() for path in tmp_path.iterdir())
