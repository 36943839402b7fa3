"""Counts and moments as integers: the sent numbers, the meaning of their sums, and the allowed requests of a plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protos.plan.manifest import Occasion, manifest_of, most_bytes, rounds_with
from protos.plan.plan import Plan
from protos.plan.statistics_plan import MOMENT_SCALE, StatisticsPlan, summed
from tests.for_each import for_each
from tests.protos.examples import plan_of_method, plan_with

COLUMNS: list[dict[str, Any]] = [{"name": "age", "low": 10.0, "high": 90.0}, {"name": "sex", "codes": ["F", "M"]}]


def plan_with_statistics(**keys: Any) -> StatisticsPlan:
    """A plan that only counts."""
    plan = plan_with(**{"kind": "statistics", "smallest_cell": 5, "columns": COLUMNS} | keys)
    assert isinstance(plan, StatisticsPlan)
    return plan


def test_the_manifest_names_every_number_and_nothing_else() -> None:
    """Three numbers of a measured column, one of each code; no tensor; one round; a hundred sites do not overflow."""
    plan = plan_with_statistics()
    manifest = manifest_of(plan)

    assert manifest.tensors == ()
    assert [scalar.name for scalar in manifest.scalars] == [
        "count age", "sum age", "squares age", "count sex=F", "count sex=M",
    ]  # fmt: skip
    assert {scalar.occasion for scalar in manifest.scalars} == {Occasion.STATISTICS}
    assert all(100 * scalar.bound < 1 << 63 for scalar in manifest.scalars)
    assert plan.rounds == 1
    assert (rounds_with(plan, Occasion.STATISTICS), rounds_with(plan, Occasion.TRAINING)) == (1, 0)
    assert most_bytes(plan, manifest) == 8 * (1 + 5)


@for_each("seed", range(5))
def test_sums_over_sites_are_the_moments_of_all_rows_together(seed: int) -> None:
    """Mean and deviation to six digits, counts exactly, however the rows lie at the sites."""
    generator = np.random.default_rng(seed)
    parts = [generator.uniform(10, 90, size=generator.integers(20, 200)) for _ in range(4)]
    asked = plan_with_statistics(columns=[COLUMNS[0]])
    totals: Counter[str] = Counter()
    for part in parts:
        scaled = (part - 10) / 80
        totals["count age"] += part.size
        totals["sum age"] += int(np.rint(scaled * MOMENT_SCALE).sum())
        totals["squares age"] += int(np.rint(scaled**2 * MOMENT_SCALE).sum())

    told = summed(asked, totals)["age"]

    together = np.concatenate(parts)
    assert told["rows"] == together.size
    assert told["mean"] == pytest.approx(together.mean(), abs=1e-4)
    assert told["deviation"] == pytest.approx(together.std(), abs=1e-3)


def test_a_cell_that_no_site_fills_has_no_moments() -> None:
    """Zero rows have neither a mean nor a deviation."""
    asked = plan_with_statistics()
    told = summed(asked, dict.fromkeys((f"{kind} {cell}" for kind, cell in asked.numbers), 0))

    assert told["age"] == {"rows": 0, "mean": None, "deviation": None}
    assert told["sex=F"] == {"rows": 0}


@pytest.mark.parametrize(
    "keys",
    [
        {"smallest_cell": 0},
        {"columns": []},
        {"columns": [COLUMNS[0], COLUMNS[0]]},
        {"columns": [{"name": "age", "low": 1.0, "high": 1.0}]},
        {"weighting": {"name": "rows", "largest_rows": 64}},
    ],
)
def test_what_statistics_cannot_go_with_is_refused(keys: dict[str, Any]) -> None:
    """Under such a plan sites send only the sums."""
    with pytest.raises(ValidationError):
        plan_with_statistics(**keys)


EVALUATING: dict[str, Any] = {"columns": ["age"], "outputs": 1, "architecture": {"name": "dense", "hidden": [2]}}


def with_evaluators(method: str, count: int = 1, **keys: Any) -> Plan:
    """A plan of three training sites and some that only evaluate."""
    letters = "abcdefg"
    sites = [
        {
            "name": f"site-{letter}",
            "identity": "-".join([letter * 4] * 8),
            "tier": "training" if number < 3 else "evaluation",
        }
        for number, letter in enumerate(letters[: 3 + count])
    ]
    return plan_of_method({"name": method}, sites=sites, **EVALUATING | keys)


@pytest.mark.parametrize("count", [1, 3])
def test_whoever_only_evaluates_hides_nobody(count: int) -> None:
    """Under masks at least three sites train, however many evaluate."""
    plan = with_evaluators("fedavg", count)

    assert (plan.training_count, len(plan.evaluating_sites)) == (3, count)
    assert (plan.tier_of("site-a"), plan.tier_of("site-d")) == ("training", "evaluation")
    with pytest.raises(ValidationError, match="at least 4 sites must contribute"):
        with_evaluators("fedavg", count, assumed_colluders=2)


@pytest.mark.parametrize("method", ["scaffold", "ditto", "apfl", "player-fl", "fedper"])
def test_a_method_with_private_parts_has_nothing_to_evaluate(method: str) -> None:
    """A site that never trains would measure layers that nobody has trained."""
    with pytest.raises(ValidationError):
        with_evaluators(method, weighting={"name": "equal"})
