"""Readings of PLayer-FL's sensitivities, against what a run measures and against each other."""

from __future__ import annotations

import pytest

from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.sensitivity_readings import READINGS, chosen_layers, read_sensitivities
from protos.plan.plan import Plan
from tests.for_each import for_each
from tests.laws.catalogue import COLUMNS, SITES, rows_at


def plan_of(seed: int, rate: float, batches: int) -> Plan:
    """PLayer-FL for two epochs on four layers, with plain steps."""
    return experiment_plan(
        SITES, seed, method={"name": "player-fl", "threshold": 2.0},
        architecture={"name": "dense", "hidden": [6, 4, 3]}, columns=COLUMNS, outputs=1,
        schedule={"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": batches},
        optimiser={"name": "sgd", "learning_rate": rate}, weighting={"name": "equal"}, checkpoint="local",
    )  # fmt: skip


@for_each("seed", range(3))
def test_all_rows_is_what_a_run_measures(seed: int) -> None:
    """The coordinator's sums and the number of layers that it chooses, from the same plan and rows."""
    sites, plan = {site: rows_at(site, seed) for site in SITES}, plan_of(seed, 0.1, 3)

    found = read_sensitivities(sites, plan)
    collection, _ = federate(plan, sites)

    course = collection.run.course
    assert found["all rows"] == pytest.approx(course.sensitivities, rel=1e-5, abs=1e-9)
    assert chosen_layers(found["all rows"], 2.0) == sum(course.chosen)
    assert all(values == sorted(values) for values in found.values())


@for_each("seed", range(3))
def test_readings_differ_by_batch_and_by_step_alone(seed: int) -> None:
    """An epoch of one batch of all rows: without a step the readings of all rows are one.

    With a step only the reading from before the step stays, and the others move.
    """
    sites = {site: rows_at(site, seed) for site in SITES}

    still, moved = (read_sensitivities(sites, plan_of(seed, rate, 1)) for rate in (1e-12, 0.5))

    assert still.keys() == set(READINGS)
    assert still["last batch"] == pytest.approx(still["all rows"], rel=1e-4)
    assert still["mean of batches"] == pytest.approx(still["all rows"], rel=1e-4)
    assert still["random batch"] != pytest.approx(still["all rows"], rel=1e-2)
    assert moved["mean of batches"] == pytest.approx(still["mean of batches"], rel=1e-4)
    assert moved["last batch"] != pytest.approx(still["last batch"], rel=1e-2)
    assert moved["all rows"] != pytest.approx(moved["last batch"], rel=1e-2)
