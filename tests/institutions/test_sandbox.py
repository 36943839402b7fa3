"""The cost of the trainer's sandbox is nothing: torch keeps its threads and its speed under it.

Two services of one machine take turns: one is the trainer's own unit, whose program alone is another, the other has the
same program and user and no sandbox. Each turn is a burst of training steps, and who begins a pair changes from pair to
pair. So other work on this computer slows both alike. A process keeps for life which pages of memory it was dealt,
which with large matrices alone made the same program slower by a quarter from one start to another. So what a step
works on fits a processor's own cache, both are started several times, and the best start of each is compared: whatever
disturbs a start only slows it.
"""

from __future__ import annotations

import json
import re
import statistics
from typing import Any, Final

import pytest

from tests.institutions.federation import HOSPITALS, Federation
from tests.institutions.machines import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

UNIT: Final = "/lib/systemd/system/site-trainer.service"
PYTHON: Final = "/usr/lib/global-layers/site/bin/python"
STARTS: Final = 4
PAIRS: Final = 15
STEPS: Final = 40
# A step of training whose time is arithmetic, large enough to be parted among threads. It answers every byte with the
# median time of a burst.
STEP: Final = f"""
import json, socket, statistics, sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.SELU(), torch.nn.Linear(256, 1))
optimiser = torch.optim.AdamW(model.parameters())
rows, targets = torch.randn(512, 256), torch.randn(512, 1)

def burst():
    times = []
    for _ in range({STEPS}):
        began = time.perf_counter()
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(rows), targets).backward()
        optimiser.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)

for _ in range(5):
    burst()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    connection = listener.accept()[0]
    while connection.recv(1):
        said = {{"threads": torch.get_num_threads(), "seconds": burst()}}
        connection.sendall(json.dumps(said).encode() + b"\\n")
"""
# Lets both take turns, and returns their messages.
REFEREE: Final = f"""
import json, pathlib, socket, time
ends = {{}}
for name in ("inside", "outside"):
    place = f"/run/{{name}}/socket"
    while not pathlib.Path(place).exists():
        time.sleep(0.1)
    ends[name] = socket.socket(socket.AF_UNIX)
    ends[name].connect(place)
found = []
for number in range({PAIRS}):
    pair = {{}}
    for name in sorted(ends, reverse=number % 2):
        ends[name].sendall(b"?")
        pair[name] = json.loads(ends[name].makefile().readline())
    found.append(pair)
print(json.dumps(found))
"""
BARE: Final = f"""
[Service]
ExecStart={PYTHON} -P /srv/step.py /run/outside/socket
User=site-trainer
Group=global-layers
RuntimeDirectory=outside
"""


def sandboxed(machine: Machine) -> str:
    """The very unit of the trainer, with the measuring program in its place."""
    text = re.sub(
        r"^(ExecStartPre|ConditionPathExists|WatchdogSec)=.*\n", "", machine.run("cat", UNIT), flags=re.MULTILINE
    )
    text = re.sub(r"^ExecStart=.*", f"ExecStart={PYTHON} -P /srv/step.py /run/inside/socket", text, flags=re.MULTILINE)
    text = text.replace("Type=notify", "Type=exec").replace("Restart=always", "Restart=no")
    return text.replace("RuntimeDirectory=site-trainer", "RuntimeDirectory=inside")  # the trainer's own goes on


def bursts(machine: Machine) -> list[list[dict[str, dict[str, Any]]]]:
    """The messages of both in each pair of turns, by start."""
    for name, content in {"step.py": STEP, "referee.py": REFEREE}.items():
        machine.place(f"/srv/{name}", content.encode())
    for name, unit in {"inside": sandboxed(machine), "outside": BARE}.items():
        machine.place(f"/etc/systemd/system/{name}.service", unit.encode())
    machine.run("systemctl", "daemon-reload")
    found = []
    for _ in range(STARTS):
        machine.run("systemctl", "start", "inside", "outside")
        found.append(json.loads(machine.run("python3", "/srv/referee.py", seconds=120)))
        machine.run("systemctl", "stop", "inside", "outside")
    return found


def test_torch_keeps_its_threads_and_its_speed_under_the_trainers_filter(federation: Federation) -> None:
    """Torch has as many threads inside as outside; what a step takes there is printed and not asserted."""
    found = bursts(federation.machines[HOSPITALS[1]])

    medians = {
        name: [statistics.median(pair[name]["seconds"] for pair in pairs) for pairs in found]
        for name in ("inside", "outside")
    }
    threads = {name: {pair[name]["threads"] for pairs in found for pair in pairs} for name in medians}
    ratio = min(medians["inside"]) / min(medians["outside"])
    told = {name: [round(1e3 * seconds, 3) for seconds in sorted(each)] for name, each in medians.items()}
    print(f"threads {threads}; milliseconds a step by start {told}; inside over outside {ratio:.3f}")
    assert threads["inside"] == threads["outside"]
