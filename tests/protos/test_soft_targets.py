"""What a plan may say of the sites' own baselines, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.manifest import manifest_of
from tests.protos.examples import METHODS, NETWORK, plan_of_method, plan_with

WITH_PATH: dict[str, Any] = {"architecture": NETWORK | {"linear_path": True}}


def test_a_baseline_changes_the_agreement_and_nothing_that_travels() -> None:
    """Sites approve a plan with a baseline as another plan, and it exchanges the same tensors and numbers."""
    without, with_baseline = plan_with(**WITH_PATH), plan_with(**WITH_PATH, expert={})

    assert without.expert is None
    assert with_baseline.expert is not None
    assert with_baseline.expert.model_dump() == {"target_share": 0.5, "path_start": 0.5, "result_share": 0.5}
    assert without.digest != with_baseline.digest
    assert manifest_of(without) == manifest_of(with_baseline)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_every_method_takes_a_baseline_that_adds_no_column(method: dict[str, Any]) -> None:
    """Targets and result are the site's own affair, whatever the method federates."""
    plan = plan_of_method(method, expert={"path_start": 0.0})

    assert plan.expert is not None
    assert manifest_of(plan) == manifest_of(plan_of_method(method))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": {"name": "fedavg"}, "columns": ["age"], "outputs": 1, **WITH_PATH}, "private column"),
        ({}, "linear path"),
        ({"architecture": {"name": "dense", "hidden": [4]}}, "linear path"),
    ],
)
def test_a_baselines_column_needs_a_private_linear_path(keys: dict[str, Any], reason: str) -> None:
    """Where all sites' columns are agreed, or the network has no such path, the plan is refused."""
    with pytest.raises(ValidationError, match=reason):
        plan_with(**keys, expert={})


@pytest.mark.parametrize(
    "use",
    [
        {"target_share": 1.1},
        {"target_share": -0.1},
        {"path_start": -0.5},
        {"path_start": 2.5},
        {"result_share": 1.0},
        {"target_share": 0.0, "path_start": 0.0, "result_share": 0.0},
        {"share": 0.5},
    ],
)
def test_shares_out_of_range_are_refused(use: dict[str, float]) -> None:
    """Shares are shares, the network always has one in the result, and an idle baseline is no baseline."""
    with pytest.raises(ValidationError):
        plan_with(**WITH_PATH, expert=use)
