"""What the trainer's sandbox costs: nothing, since torch keeps its threads and its speed under it."""

from __future__ import annotations

import json
import re

import pytest

from tests.institutions.federation import HOSPITALS, Federation
from tests.institutions.machines import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

UNIT = "/lib/systemd/system/site-trainer.service"
PYTHON = "/usr/lib/global-layers/site/bin/python"
TRIES = 4
LARGEST_SLOWDOWN = 1.05
# A step of training whose time is arithmetic, large enough to be parted among threads; the fastest of many, because
# everything that disturbs a step makes it slower.
STEP = """
import json, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.SELU(), torch.nn.Linear(512, 1))
optimiser = torch.optim.AdamW(model.parameters())
rows, targets = torch.randn(512, 512), torch.randn(512, 1)
fastest = float("inf")
for _ in range(150):
    began = time.perf_counter()
    optimiser.zero_grad()
    torch.nn.functional.mse_loss(model(rows), targets).backward()
    optimiser.step()
    fastest = min(fastest, time.perf_counter() - began)
print("MEASURED " + json.dumps({"threads": torch.get_num_threads(), "seconds": fastest}), flush=True)
"""


def inside(machine: Machine) -> dict[str, float]:
    """A step under the very unit of the trainer, whose program alone is another."""
    text = re.sub(r"^(ExecStartPre|ConditionPathExists)=.*\n", "", machine.run("cat", UNIT), flags=re.MULTILINE)
    text = re.sub(r"^ExecStart=.*", f"ExecStart={PYTHON} -P /srv/step.py", text, flags=re.MULTILINE)
    text = text.replace("Type=notify", "Type=oneshot").replace("Restart=always", "Restart=no")
    text = text.replace("RuntimeDirectory=site-trainer", "RuntimeDirectory=measure")  # the other goes on
    machine.place("/srv/step.py", STEP.encode())
    machine.place("/etc/systemd/system/measure.service", text.encode())
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "measure", seconds=300)
    return measured(machine.journal("measure"))


def outside(machine: Machine) -> dict[str, float]:
    """The same step as the same user, with no unit around it."""
    machine.place("/srv/step.py", STEP.encode())
    return measured(machine.run(PYTHON, "-P", "/srv/step.py", user="site-trainer", seconds=300))


def measured(said: str) -> dict[str, float]:
    """The last measurement among what was said."""
    return dict(json.loads(re.findall(r"MEASURED (\{.*\})", said)[-1]))


def test_torch_keeps_its_threads_and_its_speed_under_the_trainers_filter(federation: Federation) -> None:
    """A step is as fast inside as outside, within 5 in 100, with as many threads; others' load asks for some tries."""
    hospital = federation.machines[HOSPITALS[1]]
    found = []

    for _ in range(TRIES):
        within, without = inside(hospital), outside(hospital)
        assert within["threads"] == without["threads"]
        found.append(within["seconds"] / without["seconds"])
        if found[-1] <= LARGEST_SLOWDOWN:
            break

    print(f"threads {within['threads']}, seconds inside over outside: {found}")
    assert min(found) <= LARGEST_SLOWDOWN
