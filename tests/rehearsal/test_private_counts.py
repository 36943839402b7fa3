"""Federated statistics with differential privacy over the wire, whose gates are killed with their noise on disk."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from protos.plan.announced_plan import plan_from_wire
from protos.plan.noisy_results import noisy_statistics
from quickstart.federation import Rehearsal
from quickstart.hospitals import uci_hospitals
from tests.chaos.test_processes import LONGEST_SECONDS, Services, last_words
from tests.rehearsal.programs import called, prepared_here
from tests.rehearsal.test_private_kills import Watched, records

LIMITS = {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.0, "delta": 1e-5}
PROMISE = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0}
COLUMNS = [{"name": "age", "low": 0.0, "high": 120.0}, {"name": "sex", "codes": ["0", "1"]}]
_UNUSED = ("outputs", "columns", "partly_recorded", "unused_columns", "early_stopping")


def counted(folder: Path) -> Rehearsal:
    """Three heart clinics that have approved a plan of private statistics."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    hospitals = uci_hospitals(tables)[:3]
    rehearsal = Rehearsal(folder=folder, hospitals=hospitals, methods=("fedavg",), rounds=2, seed=0, is_masked=True)
    prepared_here(rehearsal)
    (plan,) = folder.glob("plan-*.yaml")
    kept = {key: value for key, value in yaml.safe_load(plan.read_text()).items() if key not in _UNUSED}
    asked = {"method": {"name": "local"}, "statistics": {"smallest_cell": 1, "columns": COLUMNS}, "privacy": PROMISE}
    plan.write_text(yaml.safe_dump(kept | asked | {"weighting": {"name": "equal"}, "checkpoint": "latest"}))
    for hospital in hospitals:
        config = folder / hospital.name / "hospital.yaml"
        content = yaml.safe_load(config.read_text())
        content["policy"]["privacy"] = LIMITS
        config.write_text(yaml.safe_dump(content))
        done = called("site-agent", "approve", "--config", config, "--plan", plan, "--by", "A. Jones", "--yes")
        assert done.returncode == 0, done.stderr
    return rehearsal


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gates_killed_with_their_noise_on_disk_pay_once_and_send_that_noise(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Gates are killed as soon as their noise is on disk. Each pays once, and the result has exactly these sums."""
    folder = tmp_path_factory.mktemp("counts")  # a socket's path has at most 107 bytes
    rehearsal, watched = counted(folder), Watched(share=1.0)
    services, deadline = Services(rehearsal, random.Random(0)), time.monotonic() + LONGEST_SECONDS

    with ExitStack() as stack:
        stack.callback(services.end)
        services.start_all()
        while not services.tend():
            assert time.monotonic() < deadline, (services.killed, last_words(folder))
            watched.watch(services)
            time.sleep(0.02)

    print(f"\nkilled: {services.killed}")
    assert any("with new noise" in name for name in services.killed)
    plan = plan_from_wire(next(folder.glob("*/state/gate/plans/*.json")).read_bytes())
    private, (record,) = plan.private_statistics, folder.glob("coordinator/runs/*/record.json")
    assert private is not None
    assert len(watched.sums) == 3
    totals = sum(watched.sums.values()).astype(int).tolist()  # type: ignore[union-attr]
    facts = json.loads(record.read_text())
    assert (facts["is_complete"], facts["masked"]) == (True, True)
    assert facts["statistics"] == noisy_statistics(private, dict(zip(private.names, totals, strict=True)), 3)
    for hospital in rehearsal.hospitals:
        home = folder / hospital.name
        shown = json.loads(called("site-agent", "privacy", "--config", home / "hospital.yaml", "--json").stdout)
        assert [payment["epsilon"] for payment in shown["payments"]] == [1.0]
        assert {one["stage"] for one in records(home / "state" / "gate", "contribution_released")} == {"statistics"}
