"""The real programs, killed with SIGKILL while they run and started again, as a service manager would.

Moments and victims are drawn from a seed. What the run ends with, and the model that each hospital keeps, are compared
with an undisturbed run's, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import dealt_hospitals
from tests.rehearsal.programs import PROGRAMS, children, own_environment

ROUNDS = 40
LONGEST_SECONDS = 600.0


def prepared(folder: Path, *, is_masked: bool) -> Rehearsal:
    """A study of forty short rounds, saved after every third, that three hospitals have approved."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    rehearsal = Rehearsal(
        folder=folder,
        hospitals=dealt_hospitals(3, tables, 0),
        methods=("global-layers",),
        rounds=ROUNDS,
        seed=0,
        is_masked=is_masked,
        latent=8,
    )
    prepare(rehearsal)
    (plan,) = folder.glob("plan-*.yaml")
    saving = {"snapshots": {"every_rounds": 3, "every_seconds": None}}
    plan.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | saving))
    for hospital in rehearsal.hospitals:
        config = folder / hospital.name / "hospital.yaml"
        quick = {"threads": 1, "siloed_baseline": False, "simple_models": False}
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"training": quick}))
        command("site-agent", "approve", "--config", config, "--plan", plan, "--by", "a test")
    return rehearsal


@dataclass
class Services:
    """The programs of one federation; whatever dies is started again."""

    rehearsal: Rehearsal
    luck: random.Random
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The coordinator and the hospitals."""
        return ["coordinator", *(hospital.name for hospital in self.rehearsal.hospitals)]

    def start(self, name: str) -> None:
        """Start a program, its words at the end of its log."""
        folder = self.rehearsal.folder
        words = ["coordinator", "start", "--config", folder / "coordinator.yaml"]
        if name != "coordinator":
            words = ["site-agent", "join", "--config", folder / name / "hospital.yaml"]
        with (folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [PROGRAMS / str(words[0]), *map(str, words[1:])],
                env=own_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def tend(self) -> bool:
        """Start again what has died; whether the run is over."""
        for name, process in list(self.running.items()):
            status = process.poll()
            if status not in (None, 0):
                assert status in (1, -signal.SIGKILL), (name, status)
                self.start(name)
        return self.running["coordinator"].poll() == 0

    def strike(self) -> None:
        """Kill one of the coordinator, the agents and the trainers, if it is there."""
        name = self.luck.choice(self.names)
        victim = self.running[name].pid
        if self.running[name].poll() is not None:
            return
        trainers = [] if name == "coordinator" else children(victim)
        if trainers and self.luck.random() < 0.5:
            victim, name = trainers[0], f"{name}'s trainer"
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.killed.append(name)

    def end(self) -> None:
        """Stop what still runs."""
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(rehearsal: Rehearsal, kills: int, seed: int) -> tuple[dict[str, str], list[str]]:
    """Run the study to its end with so many kills; digests of what came out, and who was killed."""
    services = Services(rehearsal, random.Random(seed))
    deadline = time.monotonic() + LONGEST_SECONDS
    with ExitStack() as stack:
        stack.callback(services.end)
        for name in services.names:
            services.start(name)
        journal_grown, following = 0, time.monotonic()
        while not services.tend():
            assert time.monotonic() < deadline, services.killed
            journals = list(rehearsal.folder.glob("coordinator/runs/*/journal.jsonl"))
            size = journals[0].stat().st_size if journals else 0
            # The next one only when the run has come further: this tests recovery, not patience.
            if size > journal_grown and len(services.killed) < kills and time.monotonic() > following:
                services.strike()
                journal_grown, following = size, time.monotonic() + services.luck.uniform(0.0, 2.0)
            time.sleep(0.02)
        _wait_for_reports(rehearsal, deadline)
    return what_came_out(rehearsal), services.killed


def _wait_for_reports(rehearsal: Rehearsal, deadline: float) -> None:
    while len(list(rehearsal.folder.glob("*/state/reports/*.json"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def what_came_out(rehearsal: Rehearsal) -> dict[str, str]:
    """The digest of the shared parameters, and of every hospital's report of what its model predicts."""
    (record,) = rehearsal.folder.glob("coordinator/runs/*/record.json")
    facts = json.loads(record.read_text())
    assert facts["is_complete"], facts["reason"]
    found = {"shared": str(facts["shared_parameters_sha256"])}
    for hospital in rehearsal.hospitals:
        (report,) = (rehearsal.folder / hospital.name).glob("state/reports/*.json")
        federated = json.loads(report.read_text())["federated"]
        found[hospital.name] = hashlib.sha256(json.dumps(federated, sort_keys=True).encode()).hexdigest()
    return found


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("is_masked", [True])
def test_a_dozen_kills_change_no_bit(tmp_path: Path, is_masked: bool) -> None:
    """Coordinator, agents and trainers are killed a dozen times in a short run: it ends by itself, in the same bits."""
    expected, _ = run(prepared(tmp_path / "undisturbed", is_masked=is_masked), 0, 0)

    found, killed = run(prepared(tmp_path / "killed", is_masked=is_masked), 12, 1)

    print(f"\nkilled: {killed}")
    assert len(killed) >= 6
    assert found == expected


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_two_hundred_kills_change_no_bit(tmp_path: Path) -> None:
    """Over many short runs, masked and not: no run lost, no bit different, nobody's help; the figures are printed."""
    killed: list[str] = []
    runs = 0
    expected = {
        is_masked: run(prepared(tmp_path / str(is_masked), is_masked=is_masked), 0, 0)[0] for is_masked in (True, False)
    }
    while len(killed) < 200:
        is_masked = runs % 2 == 0
        found, victims = run(prepared(tmp_path / f"run-{runs}", is_masked=is_masked), 14, runs)
        assert found == expected[is_masked], victims
        killed, runs = killed + victims, runs + 1
    counts = {kind: sum(kind in victim for victim in killed) for kind in ("coordinator", "trainer")}
    print(f"\n{len(killed)} kills in {runs} runs ({counts}, else agents): no run lost, no bit different")
