"""The real programs, killed with SIGKILL while they run and started again, as by a service manager. Moments and victims
are drawn from a seed. The result of the run, and the model that each hospital keeps, equal those of an undisturbed run
to the bit. Trainers are started by their agents, or are services, which one process that has loaded their libraries
forks (nursery.py), since loading costs seconds."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from quickstart.federation import Rehearsal
from quickstart.hospitals import dealt_hospitals
from tests.rehearsal.programs import PROGRAMS, called, children, own_environment, prepared_here

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 40
LONGEST_SECONDS = 700.0  # of one run with its kills, on a machine that has other things to do


def prepared(folder: Path, *, is_masked: bool, has_services: bool = False) -> Rehearsal:
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
    prepared_here(rehearsal)
    (plan,) = folder.glob("plan-*.yaml")
    saving = {"timing": {"save_every_rounds": 3, "save_every_seconds": None}}
    masking = {"masking": {"required": is_masked, "bits": 16}}
    plan.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | saving | masking))
    for hospital in rehearsal.hospitals:
        config = folder / hospital.name / "hospital.yaml"
        keys: dict[str, object] = {"training": {"threads": 1, "siloed_baseline": False, "simple_models": False}}
        keys |= {"trainer_socket": "trainer socket"} if has_services else {}
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | keys))
        # Every rehearsal draws from the same secrets, so that an undisturbed run and one with kills are comparable.
        secret = folder / hospital.name / "state" / "models" / "site.secret"
        secret.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret.write_bytes(hashlib.sha256(hospital.name.encode()).digest())
        secret.chmod(0o600)
        words = ("--config", config, "--plan", plan, "--by", "a test", "--beside", "all", "--yes")
        assert called("site-agent", "approve", *words).returncode == 0
    return rehearsal


def copied(rehearsal: Rehearsal, folder: Path, *, has_services: bool) -> Rehearsal:
    """The same prepared study in another folder. New keys would make another plan, and other first parameters."""
    shutil.copytree(rehearsal.folder, folder)
    for hospital in () if has_services else rehearsal.hospitals:
        config = folder / hospital.name / "hospital.yaml"
        keys = yaml.safe_load(config.read_text())
        del keys["trainer_socket"]
        config.write_text(yaml.safe_dump(keys))
    return replace(rehearsal, folder=folder)


@dataclass
class Services:
    """The programs of one federation. A program that has ended is started again."""

    rehearsal: Rehearsal
    luck: random.Random
    nursery: Nursery | None = None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    trainers: dict[str, int] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The coordinator and the hospitals."""
        return ["coordinator", *(hospital.name for hospital in self.rehearsal.hospitals)]

    def start_all(self) -> None:
        """Start every program."""
        for name in self.names:
            self.start(name)
        self._tend_trainers()

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
        """Start ended programs again. Return whether the run is over."""
        for name, process in list(self.running.items()):
            status = process.poll()
            if status not in (None, 0):
                assert status in (1, -signal.SIGKILL), (name, status)
                self.start(name)
        self._tend_trainers()
        return self.running["coordinator"].poll() == 0

    def _tend_trainers(self) -> None:
        """Trainers that are services are started again as long as their agents run."""
        for hospital in self.rehearsal.hospitals if self.nursery else ():
            trainer = self.trainers.get(hospital.name)
            is_gone = trainer is None or not Path(f"/proc/{trainer}").exists()
            if self.nursery and is_gone and self.running[hospital.name].poll() is None:
                home = self.rehearsal.folder / hospital.name
                self.trainers[hospital.name] = self.nursery.born(
                    home / "hospital.yaml", home.with_suffix(".trainer.log")
                )

    def _trainers_of(self, name: str) -> list[int]:
        """The trainer of a hospital, and the agent that its gate has started, if they are there."""
        if name == "coordinator":
            return []
        return [self.trainers[name]] if self.nursery else children(self.running[name].pid)

    def strike(self) -> None:
        """Kill one of the coordinator, the gates, the agents and the trainers, if it is there."""
        name = self.luck.choice(self.names)
        victim = self.running[name].pid
        if self.running[name].poll() is not None:
            return
        trainers = self._trainers_of(name)
        if trainers and self.luck.random() < 0.5:
            victim, name = self.luck.choice(trainers), f"{name}'s agent or trainer"
        self.kill(victim, name)

    def kill(self, victim: int, name: str) -> None:
        """Kill one process, if it is there."""
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


class Nursery:
    """The process from which trainers are forked; they end with it."""

    def __enter__(self) -> Nursery:
        """Load what a trainer needs, once."""
        words = [sys.executable, "-m", "tests.chaos.nursery"]
        self._process = subprocess.Popen(
            words, cwd=REPOSITORY, env=own_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it stays."""
        self._process.communicate()
        assert self._process.returncode == 0

    def born(self, config: Path, log: Path) -> int:
        """Start a trainer as a service of its own; the id of its process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(config), str(log)]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def run(
    rehearsal: Rehearsal,
    kills: int,
    seed: int,
    nursery: Nursery | None = None,
    watch: Callable[[Services], None] = lambda _: None,
) -> tuple[dict[str, str], list[str]]:
    """Run the study to its end with this many kills. Return digests of the results, and the killed programs. `watch` is
    called fifty times a second, and may kill further processes."""
    services = Services(rehearsal, random.Random(seed), nursery)
    deadline = time.monotonic() + LONGEST_SECONDS
    with ExitStack() as stack:
        stack.callback(services.end)
        services.start_all()
        decided, following = 0, time.monotonic()
        while not services.tend():
            assert time.monotonic() < deadline, (services.killed, last_words(rehearsal.folder))
            decisions = (rehearsal.folder / "coordinator.log").read_text().count("round_offered")
            # The next one only when the run has come further: this tests recovery, not patience.
            if decisions > decided and len(services.killed) < kills and time.monotonic() > following:
                services.strike()
                decided, following = decisions, time.monotonic() + services.luck.uniform(0.0, 2.0)
            watch(services)
            time.sleep(0.02)
        _wait_for_reports(rehearsal, deadline)
    return what_came_out(rehearsal), services.killed


def last_words(folder: Path) -> str:
    """The ends of all programs' logs."""
    return "\n".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in sorted(folder.glob("*.log")))


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


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_dozen_kills_change_no_bit(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Coordinator, agents and trainers are killed a dozen times in a short run, which ends with the same bits."""
    tmp_path = tmp_path_factory.mktemp("kills")  # a socket's path has at most 107 bytes
    rehearsal = prepared(tmp_path / "undisturbed", is_masked=True, has_services=True)
    other = copied(rehearsal, tmp_path / "killed", has_services=True)
    with Nursery() as nursery:
        expected, _ = run(rehearsal, 0, 0, nursery)

        found, killed = run(other, 12, 1, nursery)

    print(f"\nkilled: {killed}")
    assert len(killed) >= 6
    assert found == expected


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_two_hundred_kills_change_no_bit(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In many short runs, masked and not, with trainers of both kinds, no run is lost and no bit differs."""
    tmp_path = tmp_path_factory.mktemp("kills")  # as above
    killed: list[str] = []
    runs = 0
    with Nursery() as nursery:
        expected, whole = {}, {}
        for is_masked in (True, False):
            whole[is_masked] = prepared(tmp_path / f"prepared-{is_masked}", is_masked=is_masked, has_services=True)
            undisturbed = copied(whole[is_masked], tmp_path / f"undisturbed-{is_masked}", has_services=True)
            expected[is_masked], _ = run(undisturbed, 0, 0, nursery)
        while len(killed) < 200:
            is_masked, has_services = runs % 2 == 0, runs // 2 % 2 == 1
            rehearsal = copied(whole[is_masked], tmp_path / f"run-{runs}", has_services=has_services)
            found, victims = run(rehearsal, 20, runs, nursery if has_services else None)
            assert found == expected[is_masked], victims
            killed, runs = killed + victims, runs + 1
            counts = {kind: sum(kind in victim for victim in killed) for kind in ("coordinator", "trainer")}
            told = f"{len(killed)} kills in {runs} runs ({counts}, else agents)"
            print(f"\n{told}: no run lost, no bit different", flush=True)
