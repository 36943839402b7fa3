"""`doctor` reads the files that stop a program at its start, with the code of the program, and changes none of them."""

from __future__ import annotations

import asyncio
import errno
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordinator.commands.coordinator_cli import cli as coordinator
from coordinator.network.control_socket import control_server
from coordinator.storage.history import store_path
from host.audit_log import AuditLog
from protos.errors import UnavailableError
from site_agent.service import status_socket
from site_agent.site_cli import cli as site_agent
from tests.doctor.conftest import Scene


def now() -> datetime:
    """The time of the records."""
    return datetime.now(UTC)


def failures(result: Result) -> dict[str, str]:
    """The identifiers of the failures, with what they say."""
    return {one["identifier"]: one["says"] for one in json.loads(result.stdout) if one["severity"] == "failure"}


def gate_of(scene: Scene) -> Path:
    """The folder of a gate that has lived a little."""
    gate = scene.hospital.parent / "state" / "gate"
    audit = AuditLog(gate / "gate.sqlite", site="a", now=now)
    for number in range(3):
        audit.write("something", number=number)
    audit.close()
    return gate


def damage(path: Path) -> None:
    """Change one byte in the middle of a file, or write a file of no known form."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = bytearray(path.read_bytes() if path.exists() else b"{damaged}\n")
    place = content.index(b"software") if path.suffix == ".sqlite" else len(content) // 2
    content[place] ^= 1
    if content.startswith((b'{"begun"', b'{"rounds"')):
        content = bytearray(b"{")
    path.write_bytes(content)


def examined(scene: Scene) -> dict[str, str]:
    """The failures that the site's doctor finds at the gate."""
    words = ["doctor", "--config", str(scene.hospital), "--side", "gate", "--json"]
    return failures(CliRunner().invoke(site_agent, words))


def test_a_damaged_store_of_a_site_is_a_failure(scene: Scene) -> None:
    """The finding has the gate's own sentence, and a whole file is no failure."""
    gate = gate_of(scene)
    whole = examined(scene)
    damage(gate / "gate.sqlite")
    found = examined(scene)

    assert whole == {}
    assert list(found) == ["D422"]
    assert "gate.sqlite" in found["D422"]


def test_a_damaged_store_of_the_coordinator_is_a_failure(scene: Scene) -> None:
    """A store that was changed by one byte is found; a whole one is fine."""
    state, words = scene.place.folder / "state", ["doctor", "--config", str(scene.place.config), "--json"]
    log = AuditLog(store_path(state), site=None, now=now)
    log.write("coordinator_started", plans=[])
    log.write("coordinator_started", plans=[])
    log.close()
    whole = failures(CliRunner().invoke(coordinator, words))
    damage(store_path(state))
    found = failures(CliRunner().invoke(coordinator, words))

    assert whole == {}
    assert list(found) == ["D422"]


@pytest.mark.parametrize("program", ["site", "coordinator"])
def test_a_full_disk_at_the_start_is_not_a_wrong_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """If the socket cannot be created because the disk is full, the remedy is space, and a service tries again."""

    async def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("asyncio.start_unix_server", full)

    begin = status_socket._listen(tmp_path, None) if program == "site" else control_server(None, dict, tmp_path)  # type: ignore[arg-type]

    with pytest.raises(UnavailableError) as refused:
        asyncio.run(begin)

    assert "df -i" in refused.value.remedy
