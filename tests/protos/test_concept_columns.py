"""Plans whose shared columns are those of their concepts: no list of encoded names, and the usual contributors."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.concepts import NumberConcept, columns_of, declared_standard
from protos.plan.contributors import kinds_of
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from tests.protos.examples import listed, plan_with

NAMES = [site["name"] for site in listed(4)]
AGE: dict[str, Any] = {"kind": "number", "name": "age", "definition": "Age.", "low": 0.0, "high": 120.0}
PAIN: dict[str, Any] = {"kind": "codes", "name": "pain", "definition": "Pain.", "codes": ["none", "some", "much"]}


def _plan(**changes: Any) -> Plan:
    usual: dict[str, Any] = {
        "method": {"name": "fedavg"}, "architecture": {"name": "dense", "hidden": [4]}, "outputs": 1,
        "concepts": [AGE, PAIN], "sites": listed(4),
    }  # fmt: skip
    return plan_with(**usual | changes)


def test_the_shared_layers_have_a_weight_for_each_column_of_the_concepts() -> None:
    """A number is one column, three codes are two."""
    plan = _plan()

    assert plan.shared_columns == ("age", "pain: not none", "pain=much")
    assert manifest_of(plan).tensors[0].shape == (4, 3)


def test_the_sites_that_record_a_concept_contribute_to_its_columns() -> None:
    """The smallest set is counted for each column of a concept that one site lacks."""
    plan = _plan(concepts=[AGE, PAIN | {"recorded_by": NAMES[:3]}])

    kinds = kinds_of(plan)

    assert kinds["column pain=much"] == kinds["column pain: not none"] == frozenset(NAMES[:3])
    assert "column age" not in kinds


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"concepts": [AGE, PAIN | {"recorded_by": NAMES[:2]}]},
            "only 2 sites record the column pain: not none, but masking needs at least 3",
        ),
        ({"concepts": [AGE, PAIN | {"recorded_by": []}]}, "only 0 sites record the column pain: not none"),
        ({"concepts": []}, "List the columns in the plan, or list concepts"),
    ],
)
def test_what_would_sum_too_few_sites_or_is_said_twice_is_refused(changes: dict[str, Any], told: str) -> None:
    """Each with its reason, before a site reads the plan."""
    with pytest.raises(ValidationError, match=told):
        _plan(**changes)


@pytest.mark.parametrize("spread", [0.5, 3.0, 30.0])
def test_a_value_is_standardised_by_what_the_plan_declares(spread: float) -> None:
    """Typical plus one spread is 1 and typical is 0, whatever the range."""
    concept = NumberConcept(kind="number", name="x", definition="X.", low=-10.0, high=90.0, typical=20.0, spread=spread)
    (column,) = columns_of((concept,))

    typical, width = declared_standard(column)

    assert ((20.0 + spread + 10.0) / 100.0 - typical) / width == pytest.approx(1.0)
    assert (20.0 + 10.0) / 100.0 - typical == pytest.approx(0.0)
