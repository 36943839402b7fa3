"""A private network over the wire while its programs are killed: no budget is refunded, and no noise is used twice. The
programs, and who kills them, are those of tests/chaos/test_processes.py. Noise is drawn from the operating system, so
no undisturbed run has the same bits. The result of the run is computed again from the sums that the gates stored."""

from __future__ import annotations

import json
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from safetensors.numpy import load_file
from scipy.stats import kstest

from protos.plan.manifest import manifest_of
from protos.plan.noisy_results import mean_change
from protos.plan.plan import Plan, plan_from_wire
from protos.privacy.accounting import PRIVATE_SCALE
from quickstart.federation import Rehearsal
from quickstart.hospitals import uci_hospitals
from tests.chaos.test_processes import Nursery, Services, run
from tests.logged import lines_of, noise_of
from tests.rehearsal.programs import called, prepared_here
from tests.rehearsal.test_private_training import privately

ROUNDS = 16
KILLS, MOST_KILLS = 5, 10
EPSILON = 0.5
PROMISE = {"unit": "patient", "epsilon": EPSILON, "delta": 1e-5, "clip": 1.0, "patients": 600}


class Watched:
    """What the gates' stores showed during a run, and the laws that hold at every moment."""

    def __init__(self, share: float = 0.3) -> None:
        """`share` of the gates are killed when their noise appears."""
        self._share = share
        self.sums: dict[tuple[str, str], npt.NDArray[np.float64]] = {}  # by hospital and position
        self._spent: dict[str, float] = {}
        self._drawn: set[tuple[str, str]] = set()

    def watch(self, services: Services) -> None:
        """Look at every gate. Some of them are killed as soon as their noise is on disk."""
        for hospital in services.rehearsal.hospitals:
            gate = services.rehearsal.folder / hospital.name / "state" / "gate"
            noise = noise_of(gate / "gate.sqlite")
            new = {(hospital.name, position) for position in noise} - self._drawn
            self._drawn |= new
            if new and len(services.killed) < MOST_KILLS and services.luck.random() < self._share:
                services.kill(services.running[hospital.name].pid, f"{hospital.name} with new noise")
            spent = sum(one["epsilon"] for one in records(gate, "privacy_spent"))
            assert spent >= self._spent.get(hospital.name, 0.0), f"{hospital.name} has spent less than before"
            self._spent[hospital.name] = spent
            for position, content in noise.items():
                numbers = np.frombuffer(content, "<i8").astype(np.float64)
                kept = self.sums.setdefault((hospital.name, position), numbers)
                assert (kept == numbers).all(), f"{hospital.name} has sent other noise for a sum that was paid for"


def records(gate: Path, event: str) -> list[dict[str, Any]]:
    """The facts of an event in a log that may be written at this moment."""
    log = gate / "gate.sqlite"
    lines = lines_of(log)
    return [facts for facts in (json.loads(line)["facts"] for line in lines) if facts["event"] == event]


def prepared(folder: Path, kind: str) -> Rehearsal:
    """Three heart clinics whose trainers are services, and a private network. Local noise: three steps a round."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    hospitals = uci_hospitals(tables)[:3]
    rehearsal = Rehearsal(folder=folder, hospitals=hospitals, methods=("fedavg",), rounds=2, seed=0, is_masked=True)
    prepared_here(rehearsal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.rehearsal.test_private_training.command", lambda *words: called(*words).stdout)
        for hospital in hospitals:
            config = folder / hospital.name / "hospital.yaml"
            content = yaml.safe_load(config.read_text()) | {"trainer_socket": "trainer socket"}
            config.write_text(yaml.safe_dump(content))
        saving = {"timing": {"save_every_rounds": 3, "save_every_seconds": None}}
        steps, noise = (3, "local") if kind == "local" else (1, "shared")
        schedule = {"epochs": ROUNDS * steps, "epochs_per_round": steps, "batches_per_epoch": 1}
        several = {"schedule": schedule | {"aggregate": "every-round"}}
        if kind == "private layers":
            several |= {"method": {"name": "fedper"}, "architecture": {"name": "dense", "hidden": [3]}, "outputs": None}
        privately(rehearsal, ROUNDS, PROMISE | {"noise": noise}, 0.5, **saving, **several)
    return rehearsal


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["local", "private layers"])
def test_kills_neither_lower_the_spent_epsilon_nor_use_noise_twice(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Coordinator, gates, agents and trainers are killed: each site pays once, each step has its own noise, and the
    result is the sum of exactly these noisy sums."""
    folder = tmp_path_factory.mktemp("kills")  # a socket's path has at most 107 bytes
    rehearsal, watched = prepared(folder, kind), Watched()

    with Nursery() as nursery:
        _, killed = run(rehearsal, KILLS, 1, nursery, watched.watch)

    print(f"\nkilled: {killed}")
    assert len(killed) >= KILLS
    assert any("with new noise" in name for name in killed)
    plan = plan_from_wire(next(folder.glob("*/state/gate/plans/*.json")).read_bytes())
    sums = [_check_site(plan, folder / hospital.name, watched) for hospital in rehearsal.hospitals]
    _check_noise(plan, np.stack(sums, axis=1))
    _check_result(plan, folder, watched)


def _check_site(plan: Plan, home: Path, watched: Watched) -> npt.NDArray[np.float64]:
    """One payment for all rounds, one noisy sum for each, and no two sums with the same noise. The sums by round."""
    released = {one["round"]: one["position"] for one in records(home / "state" / "gate", "contribution_released")}
    shown = json.loads(called("site-agent", "privacy", "--config", home / "hospital.yaml", "--json").stdout)
    sums = [numbers for (name, _), numbers in watched.sums.items() if name == home.name]

    assert [payment["epsilon"] for payment in shown["payments"]] == [EPSILON]
    assert set(released) == set(range(ROUNDS))
    assert {position for name, position in watched.sums if name == home.name} == set(released.values())
    # Sums of neighbouring rounds hardly differ at this learning rate. Only noise makes them different.
    apart = min(float(np.sqrt(np.mean((one - other) ** 2))) for one, other in combinations(sums, 2))
    assert apart > plan.noise_variance**0.5 / 4
    return np.array([watched.sums[home.name, released[number]] for number in range(ROUNDS)])


def _check_noise(plan: Plan, sums: npt.NDArray[np.float64]) -> None:
    """The differences of neighbouring rounds fit the normal law of the promised variance, also in private layers."""
    training = plan.private_training
    assert training is not None
    shared, totals = np.split(sums, [len(training.names)], axis=2)  # of rounds, sites and numbers
    for values, variance in (
        (shared, training.steps * training.share_variance),
        (np.diff(totals, axis=0, prepend=0.0), training.own_variance),
    ):
        apart = (values[1::2] - values[::2]).ravel() / sqrt(2 * variance)
        assert apart.size == 0 or kstest(apart, "norm").pvalue > 1e-4


def _check_result(plan: Plan, folder: Path, watched: Watched) -> None:
    """The model is one step along each sum that the gates kept, and along no other."""
    training, manifest = plan.private_training, manifest_of(plan)
    assert training is not None
    moved = mean_change(training, np.sum(list(watched.sums.values()), axis=0)[: len(training.names)])
    (record,) = folder.glob("coordinator/runs/*/record.json")
    found = load_file(record.parent / "parameters.safetensors")
    fitted = np.concatenate([found[tensor.name].ravel() for tensor in manifest.tensors])

    np.testing.assert_allclose(fitted - manifest.initial_parameters(plan.seed), moved, atol=1e-4)
    assert float(np.abs(moved).max()) > 100 / PRIVATE_SCALE
