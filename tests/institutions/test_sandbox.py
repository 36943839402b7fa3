"""Torch keeps its threads under the trainer's sandbox. Two services of one machine run the same program as the same
user: one is the trainer's own unit, whose program alone is another, the other has no sandbox. A torch whose system
calls are refused computes with one thread and reports no error."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.institutions.federation import HOSPITALS, Federation
from tests.institutions.machines import Machine, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

UNIT: Final = "/lib/systemd/system/site-trainer.service"
COMMAND: Final = "/usr/lib/global-layers/site/bin/python -P /srv/threads.py"
# What torch says, and how many threads the kernel knows of a process that has computed.
PROGRAM: Final = """
import os, torch
torch.randn(1024, 1024) @ torch.randn(1024, 1024)
torch.nn.functional.selu(torch.randn(1 << 20))
print("threads", torch.get_num_threads(), len(os.listdir("/proc/self/task")))
"""
BARE: Final = f"""
[Service]
Type=oneshot
ExecStart={COMMAND}
User=site-trainer
Group=global-layers
"""


def _sandboxed(unit: str) -> str:
    left_out = "ExecStartPre|ConditionPathExists|WatchdogSec|NotifyAccess|RuntimeDirectory|RuntimeDirectoryMode"
    unit = re.sub(rf"^({left_out})=.*\n", "", unit, flags=re.MULTILINE)
    unit = re.sub(r"^ExecStart=.*", f"ExecStart={COMMAND}", unit, flags=re.MULTILINE)
    return unit.replace("Type=notify", "Type=oneshot").replace("Restart=always", "Restart=no")


def threads(machine: Machine, name: str, unit: str) -> str:
    """What the program says as a service."""
    machine.place("/srv/threads.py", PROGRAM.encode())
    machine.place(f"/etc/systemd/system/{name}.service", unit.encode())
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", name, seconds=300)
    wait_until(lambda: "threads " in machine.journal(name), "the journal has what it said")
    return next(line for line in machine.journal(name).splitlines() if line.startswith("threads "))


def test_torch_keeps_its_threads_under_the_trainers_filter(federation: Federation) -> None:
    """Torch has as many threads inside as outside."""
    machine = federation.machines[HOSPITALS[1]]

    inside = threads(machine, "inside", _sandboxed(machine.run("cat", UNIT)))

    assert inside == threads(machine, "outside", BARE)
