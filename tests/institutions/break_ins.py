"""Attacked services of a booted hospital: another program in the unit. The unit's user, groups, files, sockets and
sandbox stay the same. Changes are in /run and are undone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.institutions.machines import Machine

PYTHON: Final = "/usr/lib/global-layers/site/bin/python"
PROGRAMS: Final = Path(__file__).parent
KINDS: Final = ("agent", "gate", "trainer")
_ANOTHER: Final = """[Unit]
StartLimitIntervalSec=0
[Service]
ExecStartPre=
ExecStart=
ExecStart={command}
WatchdogSec=0
"""
# A program that ends by itself; starting it starts no other service.
_ONCE: Final = "Type=oneshot\nRestart=no\nTimeoutStartSec=300\n"


def program(machine: Machine, name: str) -> str:
    """Copy a program to a machine. Return the command that runs it."""
    machine.place(f"/srv/{name}", (PROGRAMS / name).read_bytes())
    return f"{PYTHON} -P /srv/{name}"


@contextmanager
def changed(machine: Machine, kind: str, drop_in: str) -> Iterator[None]:
    """A unit with a drop-in that is removed at the end of the block."""
    folder = f"/run/systemd/system/site-{kind}.service.d"
    machine.place(f"{folder}/zz-break-in.conf", drop_in.encode())
    machine.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        machine.run("rm", "-rf", folder)
        machine.run("systemctl", "daemon-reload")


def once(machine: Machine, kind: str, command: str) -> Any:
    """Run a program to its end in the place of a service's own; the last line that it printed, from JSON."""
    unit = f"site-{kind}"
    with changed(machine, kind, _ANOTHER.format(command=command) + _ONCE):
        machine.run("systemctl", "stop", unit)
        machine.run("systemctl", "reset-failed", unit, may_fail=True)
        machine.run("systemctl", "start", "--job-mode=ignore-dependencies", unit, seconds=330)
        lines = machine.journal(unit).splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith(("[", "{"))))


def put_back(machine: Machine) -> None:
    """Let all three services be started again without changes."""
    units = [f"site-{kind}" for kind in KINDS]
    machine.run("systemctl", "stop", *units)
    machine.run("systemctl", "reset-failed", *units, may_fail=True)
