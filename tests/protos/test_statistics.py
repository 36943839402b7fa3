"""What a statistics plan may ask for, and which numbers its sites send."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.manifest import manifest_of, most_bytes, rounds_with
from protos.plan.plan import Plan
from protos.plan.statistics_plan import StatisticsPlan
from protos.wire.messages import Stage
from tests.protos.examples import plan_of_method, plan_with, table_one_of

AGE: dict[str, Any] = {"name": "age", "low": 10.0, "high": 90.0}
SEX: dict[str, Any] = {"name": "sex", "codes": ["F", "M"]}


def _plan_with_statistics(**keys: Any) -> StatisticsPlan:
    plan = plan_with(**table_one_of(AGE, SEX) | {"smallest_cell": 5} | keys)
    assert isinstance(plan, StatisticsPlan)
    return plan


def test_the_manifest_names_every_number_and_nothing_else() -> None:
    """Each column has its sites and cells; no tensor; one round; a hundred sites do not overflow."""
    plan = _plan_with_statistics()
    manifest = manifest_of(plan)

    assert manifest.tensors == ()
    assert len(manifest.scalars) == 1 + 6 + 7 + 1
    assert len({scalar.name for scalar in manifest.scalars}) == len(manifest.scalars)
    assert {scalar.stage for scalar in manifest.scalars} == {Stage.STATISTICS}
    assert all(len(plan.site_names) * scalar.bound < 1 << 63 for scalar in manifest.scalars)
    assert plan.rounds == 1
    assert (rounds_with(plan, Stage.STATISTICS), rounds_with(plan, Stage.TRAINING)) == (1, 0)
    assert most_bytes(plan, manifest) == 8 * (1 + 15)


def test_models_add_newton_rounds_and_one_last_round() -> None:
    """All models of a plan share them, and the run may end earlier."""
    model = {"name": "model", "regression": {"family": "binomial", "outcome": "sex", "terms": ["age"]}}
    plan = _plan_with_statistics(analyses=[*table_one_of(AGE)["analyses"], model], newton_rounds=7)

    assert [count for _, count in plan.stages] == [1, 7, 1]
    assert plan.may_end_early
    occasions = [scalar.stage for scalar in manifest_of(plan).scalars]
    assert len(occasions) == plan.words - 6 * occasions.count(Stage.NEWTON)


TABLE = {"name": "t", "table_one": {"columns": ["age"]}}


@pytest.mark.parametrize(
    "keys",
    [
        {"smallest_cell": 0},
        {"analyses": []},
        {"concepts": []},
        {"analyses": [TABLE, TABLE]},
        {"analyses": [{"name": "t", "table_one": {"columns": ["weight"]}}]},
        {"analyses": [{"name": "t", "table_one": {"columns": ["sex"], "by": "age"}}]},
        {"analyses": [{"name": "t", "regression": {"family": "binomial", "outcome": "age", "terms": ["sex"]}}]},
        {"analyses": [{"name": "t", "regression": {"family": "poisson", "outcome": "sex", "terms": ["age"]}}]},
        {"analyses": [{"name": "t", "regression": {"family": "gaussian", "outcome": "age", "terms": ["age"]}}]},
        {"fewest_sites": 5},
        {"fewest_sites": 3, "assumed_colluders": 2},
        {"largest_rows": 1 << 26},
        {"weighting": {"name": "rows", "largest_rows": 64}},
    ],
)
def test_what_statistics_cannot_go_with_is_refused(keys: dict[str, Any]) -> None:
    """Every analysis fits the declared concepts, and every number has enough sites."""
    with pytest.raises(ValidationError):
        _plan_with_statistics(**keys)


def test_a_column_of_too_few_sites_is_refused_before_a_hospital_reads_the_plan() -> None:
    """Two of three sites record the sex, so a Table 1 by sex would be theirs alone."""
    keys = table_one_of(AGE, SEX | {"recorded_by": [site.name for site in _plan_with_statistics().sites][:2]}, by="sex")

    with pytest.raises(ValidationError):
        _plan_with_statistics(**keys)


def test_an_oversized_plan_is_refused_by_arithmetic() -> None:
    """Fifty codes by fifty codes by fifty are counted, not listed."""
    codes = [f"c{place}" for place in range(50)]
    columns = [{"name": f"k{place}", "codes": codes} for place in range(3)]
    model = {"family": "gaussian", "outcome": "age", "terms": ["k0:k1:k2"]}
    keys = table_one_of(AGE, *columns) | {"analyses": [{"name": "model", "regression": model}]}

    with pytest.raises(ValidationError, match="sums in a round"):
        _plan_with_statistics(**keys)


EVALUATING: dict[str, Any] = {"columns": ["age"], "outputs": 1, "architecture": {"name": "dense", "hidden": [2]}}


def _with_evaluators(method: str, count: int = 1, **keys: Any) -> Plan:
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
    plan = _with_evaluators("fedavg", count)

    assert (plan.training_count, len(plan.evaluating_sites)) == (3, count)
    assert (plan.tier_of("site-a"), plan.tier_of("site-d")) == ("training", "evaluation")
    with pytest.raises(ValidationError, match="at least 4 sites must contribute"):
        _with_evaluators("fedavg", count, assumed_colluders=2)


@pytest.mark.parametrize("method", ["scaffold", "ditto", "apfl", "player-fl", "fedper"])
def test_a_method_with_private_parts_has_nothing_to_evaluate(method: str) -> None:
    """A site that never trains would measure layers that nobody has trained."""
    with pytest.raises(ValidationError):
        _with_evaluators(method, weighting={"name": "equal"})
