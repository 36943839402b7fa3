"""Sites that only count, sites that only evaluate, sites that withdraw: the real engine, real agents, real masks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.statistics_plan import StatisticsPlan
from protos.wire.messages import Stage
from site_agent.approving import approve, withdraw
from tests.federation import Federation, Vector, identity_of, masked_plan, measured_by, played, recorded, update_of
from tests.protos.examples import table_one_of
from tests.rehearsal.study import plan_with

COLUMNS: list[dict[str, Any]] = [{"name": "age", "low": 0.0, "high": 100.0}, {"name": "sex", "codes": ["F", "M"]}]


@pytest.mark.parametrize("tier", ["statistics", "evaluation", "training"])
def test_a_plan_of_statistics_tells_sums_and_no_sites_own(tmp_path: Path, tier: str) -> None:
    """One round, under masks, also at sites whose policy allows no more; the run has only what the sums stand for."""
    plan = masked_plan("abc", **table_one_of(*COLUMNS), smallest_cell=10)

    async def scene(network: Federation) -> None:
        for name in "abc":
            network.add(name, tier=tier)
        await network.finish()
        for name in "abc":
            (released,) = network.sites[name].records("contribution_released")
            assert released["stage"] == "statistics"
            assert (released["tensors"], released["masked"], released["scalars"]) == (0, True, 15)
            assert len(network.sites[name].records("run_finished")) == 1

    played(tmp_path, plan, scene)

    told = recorded(tmp_path)
    assert (told["is_complete"], told["rounds_made"], told["training_rounds"]) == (True, 1, 0)


def test_statistics_under_privacy_leave_with_noise_that_was_paid_for(tmp_path: Path) -> None:
    """Each site pays once, before its sums leave; the results have the sums with the noise of all three."""
    promise = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0}
    plan = masked_plan("abc", **table_one_of(*COLUMNS), smallest_cell=1, privacy=promise)
    limits = {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.0, "delta": 1e-5}

    async def scene(network: Federation) -> None:
        for name in "abc":
            network.add(name, tier="statistics", smallest_cell=10, privacy=limits)
        await network.finish()
        for name in "abc":
            (paid,) = network.sites[name].records("privacy_spent")
            (released,) = network.sites[name].records("contribution_released")
            assert (paid["epsilon"], paid["run"]) == (1.0, plan.run_name)
            assert (released["stage"], released["masked"], released["scalars"]) == ("statistics", True, 5)

    played(tmp_path, plan, scene)

    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.STATISTICS, b"")
    each = [measured_by(site, 0, exchange) for site in "abc"]
    assert isinstance(plan, StatisticsPlan)
    assert plan.private_tables is not None
    (file,) = tmp_path.rglob("results.json")
    (told,) = json.loads(file.read_text())["analyses"]
    totals = [sum(found[name] for found in each) for name in exchange.scalar_names]
    (without,) = plan.private_tables.results(totals, 3.0 * plan.noise_variance)
    assert told["noise"] == pytest.approx(without["noise"], rel=1e-15)
    rows, exact = told["columns"]["age"]["all"]["rows"], without["columns"]["age"]["all"]["rows"]
    assert abs(rows - exact) < 8 * told["noise"]
    assert told["columns"] != without["columns"]


def _evaluating_plan(**changes: Any) -> Plan:
    sites = [
        {"name": name, "identity": identity_of(name), "tier": "evaluation" if name == "d" else "training"}
        for name in "abcd"
    ]
    keys = {"sites": sites, "checkpoint": "global", "masking": {"required": True}} | changes
    return plan_with({}, changes=keys)


def _zeros_for_d(site: str, number: int, parameters: Vector) -> Vector:
    return np.zeros_like(parameters) if site == "d" else update_of(site, number, parameters)


def test_a_site_that_only_evaluates_counts_in_the_losses_and_not_in_the_mean(tmp_path: Path) -> None:
    """The model is the mean of three sites' updates to the bit; the losses are summed over four."""
    plan = _evaluating_plan()

    async def scene(network: Federation) -> None:
        for name in "abcd":
            network.add(name, _zeros_for_d, tier="evaluation" if name == "d" else "training")
        await network.finish()
        assert len(network.sites["d"].records("contribution_released")) == plan.rounds
        np.testing.assert_array_equal(network.vector(), expected(plan))

    played(tmp_path, plan, scene)

    curve = dict(recorded(tmp_path)["validation_curve"])
    exchange = Exchanges(plan, manifest_of(plan)).of(1, Stage.TRAINING, b"")
    weight, loss = (
        sum(measured_by(s, 1, exchange)[f"validation {what}"] for s in "abcd") for what in ("weight", "loss")
    )
    assert curve[1] == pytest.approx(loss / 2**32 / weight)


def expected(plan: Plan) -> Vector:
    """Plain means of what a, b and c have trained."""
    manifest, fixed_point = manifest_of(plan), FixedPoint(plan.masking.clipping_range, len(plan.sites))
    values = manifest.initial_parameters(plan.seed)
    for number in range(plan.schedule.rounds):
        total = np.zeros(values.size, np.int64)
        for site in "abc":
            out = np.empty(values.size, np.int32)
            fixed_point.encode(update_of(site, number, values), 1.0, out)
            total += out
        values = (values + total.astype(np.int32) / (3.0 * fixed_point.scale)).astype(np.float32)
    return values


def test_a_new_approval_brings_a_site_back_to_the_step(tmp_path: Path) -> None:
    """If the plan waits, the run is interrupted until persons at the site agree again. Then it continues with all."""
    plan = masked_plan("abc", rounds=4)

    async def scene(network: Federation) -> None:
        for name in "abc":
            network.add(name)

        async def before(carried: int) -> None:
            if carried == 40:
                withdraw(tmp_path / "c", plan, by="A. Jones", at=datetime.now(UTC))

        network.before = before
        while not network.sites["c"].records("participation_ended"):
            await network.pass_time(1.0)
        await network.pass_time(100.0)
        assert network.engine.status()["sites"]["c"]["withdrawn"]
        assert not network.engine.finished.is_set()
        approve(tmp_path / "c", plan, by="A. Jones", at=datetime.now(UTC))
        await network.restart("c")
        await network.finish()

    played(tmp_path, plan, scene)

    told = recorded(tmp_path)
    assert (told["is_complete"], told["rounds_made"]) == (True, plan.rounds)
