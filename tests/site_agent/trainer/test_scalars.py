"""A site's counts and measurements are sent as integers within the manifest's bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protos.numbers.fixed_point import round_rows
from protos.plan.manifest import LARGEST_LOSS, LOSS_SCALE, SENSITIVITY_SCALE, manifest_of
from protos.plan.plan import Plan
from site_agent.trainer.choice import Measures
from tests.site_agent.trainer.methods.tiny import tiny_plan

ROWS: dict[str, Any] = {"name": "rows", "largest_rows": 512}


def _plan(**changes: Any) -> Plan:
    return tiny_plan("fedavg", **changes)


def _bounds(plan: Plan) -> dict[str, int]:
    return {scalar.name: scalar.bound for scalar in manifest_of(plan).scalars}


@pytest.mark.parametrize("rows", [1, 3, 5, 100, 511, 512, 700])
def test_row_counts_lie_on_the_public_grid(rows: int) -> None:
    """Two significant bits, at most the cap: nobody learns a count by subtracting two sums."""
    measures = Measures(_plan(weighting=ROWS), rows, rows)

    assert measures.rows == round_rows(rows, 512)
    assert measures.rows.bit_count() <= 2
    assert 1 <= measures.rows <= 512
    assert Measures(_plan(), rows, rows).rows == 0


@pytest.mark.parametrize("weighting", [{"name": "equal"}, ROWS], ids=["equal", "rows"])
@pytest.mark.parametrize("loss", [0.0, 0.25, 3.7, LARGEST_LOSS, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("rows", [1, 90, 512, 100_000])
def test_a_validation_loss_is_weighed_by_its_rows_and_never_beyond_its_bound(
    weighting: dict[str, Any], loss: float, rows: int
) -> None:
    """Sum over sum is the mean; what is too large or no number counts as the largest loss."""
    plan = _plan(weighting=weighting, checkpoint="global")
    measures, bounds = Measures(plan, 10, rows), _bounds(plan)

    found = measures.validation_of(loss)

    cap = 1 if weighting["name"] == "equal" else 512
    weight = 1 if cap == 1 else round_rows(rows, 512)
    counted = min(loss, LARGEST_LOSS) if math.isfinite(loss) else LARGEST_LOSS
    assert found["validation weight"] == weight
    assert found["validation loss"] / LOSS_SCALE / (weight / cap) == pytest.approx(counted, abs=1e-6)
    assert all(0 <= found[name] <= bounds[name] for name in found)


def test_sensitivities_keep_their_digits_and_their_bound() -> None:
    """1e-12 is still told from 2e-12, and nothing counts as more than the largest."""
    plan = tiny_plan("player-fl")
    measures, bounds = Measures(plan, 10, 10), list(_bounds(plan).values())

    found = measures.sensitivities([1e-12, 2e-12, 0.5, 1e9, math.nan, math.inf])

    assert found[1] / found[0] == pytest.approx(2.0, rel=1e-3)
    assert found[2] / SENSITIVITY_SCALE == 0.5
    assert found[3] == found[4] == found[5] == bounds[0]
    assert len(bounds) == 2
