"""Files that an administrator's command writes in the state folder can be read by their service."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from host.audit_log import AuditLog
from host.durable import make_folder, replace_file
from host.log_commands import LogSource
from host.secret_files import hold_directory, make_private_directory, read_secret, write_public, write_secret
from protos.errors import ConfigurationError, OperatorError
from site_agent.approving import withdraw
from site_agent.trainer.data.run_table import TableCheck, find_check, keep_check
from site_agent.trainer.disk import write_whole
from tests.rehearsal.study import made_up_identities, plan_with

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give files away")


def _owned(folder: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of everything in a folder."""
    return {
        str(found.relative_to(folder)): (found.stat().st_uid, stat.S_IMODE(found.stat().st_mode))
        for found in folder.rglob("*")
    }


@as_root
def test_an_acceptance_by_the_administrator_is_the_services_to_read(tmp_path: Path) -> None:
    """With the folders and the first record of the audit log, which are made on the way; the modes stay narrow."""
    state = tmp_path / "state"
    state.mkdir(mode=0o710)
    os.chown(state, NOBODY, NOBODY)
    now = datetime(2026, 1, 1, tzinfo=UTC)

    log = AuditLog(state / "audit.log", site="st-mary", now=lambda: now)
    log.write("data_accepted", by="A. Jones")
    log.close()
    at = now.isoformat(timespec="seconds")
    keep_check(state, TableCheck(digest="0" * 64, warnings=("x",), by="A. Jones", at=at))
    replace_file(state / "approved.json", b"{}")
    make_private_directory(state / "keys")
    write_secret(state / "keys" / "tls.key", b"", replace=False)
    write_public(state / "keys" / "tls.crt", b"")

    assert _owned(state) == {
        "audit.log": (NOBODY, 0o600),
        "approved.json": (NOBODY, 0o600),
        "keys": (NOBODY, 0o700),
        "keys/tls.key": (NOBODY, 0o600),
        "keys/tls.crt": (NOBODY, 0o644),
        "data": (NOBODY, 0o700),
        "data/checked": (NOBODY, 0o700),
        f"data/checked/{'0' * 64}.json": (NOBODY, 0o600),
    }
    assert find_check(state, "0" * 64) is not None


# The files that an administrator's command writes below a service's folder `here`, each in its own way.
WRITES: dict[str, Callable[[Path], object]] = {
    "replace_file": lambda here: replace_file(here / "made.json", b""),
    "make_folder": lambda here: make_folder(here / "deep" / "made"),
    "write_whole": lambda here: write_whole(here / "made" / "made.json", b""),
    "write_secret": lambda here: write_secret(here / "made.key", b"", replace=False),
    "write_public": lambda here: write_public(here / "made.crt", b""),
    "make_private_directory": lambda here: make_private_directory(here / "keys"),
    "hold_directory": lambda here: os.close(hold_directory(here, "site agent")),
    "audit log": lambda here: AuditLog(here / "audit.log", site="st-mary", now=lambda: datetime.now(UTC)).close(),
    "audit export": lambda here: exported(here / "made.jsonl", here.parent),
}


def exported(file: Path, state: Path) -> None:
    """As `site-agent audit export` does, of a new log."""
    WRITES["audit log"](state)
    LogSource(state / "audit.log", "st-mary").export(file)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service's folder, as root sees it: its owner is not root. Whoever cannot be root plays it."""
    place = tmp_path / "state"
    place.mkdir()
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(os, "fchown", lambda *_: None)
    return place


@pytest.mark.parametrize("leads", [True, False], ids=["to another folder", "nowhere"])
@pytest.mark.parametrize("name", WRITES)
def test_root_follows_no_link_that_a_service_has_put_in_its_folder(
    tmp_path: Path, service: Path, name: str, leads: bool
) -> None:
    """Otherwise the service's user could create, replace or give away files of this computer."""
    elsewhere = tmp_path / "elsewhere"
    if leads:
        elsewhere.mkdir()
    (service / "data").symlink_to(elsewhere)

    with pytest.raises(ConfigurationError, match="data is a symbolic link") as caught:
        WRITES[name](service / "data")

    assert "the program does not follow such links" in caught.value.consequence
    assert not leads or list(elsewhere.iterdir()) == []


def test_root_takes_no_link_for_the_file_that_it_means(tmp_path: Path, service: Path) -> None:
    """A lock, a log and a file of a service that is a link is not opened. Its target is unchanged and stays root's."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"")
    for name in (".lock", "audit.log", "here.json"):
        (service / name).symlink_to(precious)

    with pytest.raises(ConfigurationError, match="holds, a symbolic link"):
        hold_directory(service, "site agent")
    with pytest.raises(OperatorError):
        WRITES["audit log"](service)
    write_whole(service / "here.json", b"{}")

    assert (precious.read_bytes(), precious.stat().st_uid) == (b"", os.getuid())
    assert not (service / "here.json").is_symlink()


@pytest.fixture
def impatience() -> Iterator[None]:
    """Whoever waits for longer than a pipe without another end takes to be refused fails."""

    def ring(*_: object) -> None:
        raise AssertionError("it waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatience")
def test_root_does_not_wait_at_a_pipe_that_a_service_has_put_in_its_folder(service: Path) -> None:
    """A lock of the state or a key that is a pipe is refused, and a person's word is taken beside one, at once."""
    (service / "approvals").mkdir()
    for name in (".lock", "tls.key", "approvals/.lock"):
        os.mkfifo(service / name, 0o600)

    with pytest.raises(OperatorError, match="could not be held"):
        hold_directory(service, "site agent")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_secret(service / "tls.key")
    assert withdraw(service, plan_with(made_up_identities()), by="A. Jones", at=datetime.now(UTC)) is None


@as_root
def test_a_file_with_a_second_name_is_not_given_away(tmp_path: Path) -> None:
    """An empty log that is another's file under a second name stays its owner's."""
    state, precious = tmp_path / "state", tmp_path / "precious"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    precious.touch(mode=0o600)
    (state / "audit.log").hardlink_to(precious)

    WRITES["audit log"](state)

    assert precious.stat().st_uid == 0
