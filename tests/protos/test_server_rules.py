"""Server rules: from the sums of a round to the next parameters, compared with numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from protos.numbers.fixed_point import BLOCK, FixedPoint
from protos.numbers.round_sums import Sums
from protos.plan.ingredients import Moment
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.server_rules import RuleState, apply_rule, begin_rule
from tests.coordinator.totals import plan_of, sums_of
from tests.for_each import for_each

Float32 = npt.NDArray[np.float32]
MEAN: dict[str, Any] = {"name": "fedavg"}
ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 1024}}
DESCENT: dict[str, Any] = {"name": "sgd", "learning_rate": 0.5}


def begun(plan: Plan) -> RuleState:
    """What the plan's rule remembers before the first round."""
    return begin_rule(plan.ingredients.server_rule, manifest_of(plan).parameters)


def after(plan: Plan, start: npt.ArrayLike, *rounds: Sums, state: RuleState | None = None) -> Float32:
    """The parameters after these rounds."""
    parameters = np.array(start, np.float32)
    memory = begun(plan) if state is None else state
    for sums in rounds:
        apply_rule(plan, manifest_of(plan), sums, parameters, memory)
    return parameters


@pytest.mark.parametrize("size", [4, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@for_each("seed", range(20))
def test_the_mean_rule_adds_the_mean(size: int, seed: int) -> None:
    """Next is received plus sum over weight, computed in float64 and rounded once, block by block."""
    generator = np.random.default_rng(seed)
    plan = plan_of(MEAN, parameters=size, sites="abc", **ROWS)
    scale = FixedPoint(8.0, 3).scale
    received = generator.normal(size=size).astype(np.float32)
    totals = generator.integers(-(2**31), 2**31, size, dtype=np.int32)

    found = after(plan, received, sums_of(plan, totals / scale, {"rows": 2560}))

    expected = received.astype(np.float64) + totals.astype(np.float64) / (scale * 2.5)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


# Two rounds by hand from x = 1: the mean updates are 1/2 and -1/4, rate 0.1, first decay 0.9, offset 0.001.
# m: 0.05, then 0.045 - 0.025 = 0.02. v after each round, by kind, with second decay 0.99:
BY_HAND = {
    Moment.ADAM: (0.0025, 0.00310),  # 0.01 * 0.25; 0.99 * 0.0025 + 0.01 * 0.0625
    Moment.YOGI: (0.0025, 0.003125),  # 0 + 0.01 * 0.25; 0.0025 + 0.01 * 0.0625
    Moment.ADAGRAD: (0.25, 0.3125),
}
ADAPTIVE: dict[Moment, dict[str, Any]] = {
    moment: {"name": f"fed{moment}", "rate": 0.1, "offset": 0.001} for moment in Moment
}


@pytest.mark.parametrize("moment", Moment)
def test_an_adaptive_rule_steps_as_computed_by_hand(moment: Moment) -> None:
    """Two rounds of each adaptive rule end where the formula says, and m and v with them."""
    plan = plan_of(ADAPTIVE[moment])
    state = begun(plan)

    found = after(plan, np.ones(4), *[sums_of(plan, np.full(4, total)) for total in (1.0, -0.5)], state=state)

    first, second = BY_HAND[moment]
    middle = 1.0 + 0.1 * 0.05 / (math.sqrt(first) + 0.001)
    np.testing.assert_allclose(state["first moment"], np.full(4, 0.02), rtol=1e-12)
    np.testing.assert_allclose(state["second moment"], np.full(4, second), rtol=1e-12)
    np.testing.assert_allclose(found, np.full(4, middle + 0.1 * 0.02 / (math.sqrt(second) + 0.001)), rtol=1e-6)


def test_control_variates_follow_the_mean_change() -> None:
    """SCAFFOLD by hand: 2 of 4 sites, 2 steps of rate 1/2, server rate 1/4, mean updates 1 and -2. c: 0, then 0 + 2/4 *
    (-0 - 1/1) = -1/2, then -1/2 + 2/4 * (1/2 + 2/1) = 3/4. x: 1, 1.25, 0.75."""
    schedule = {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 2}
    plan = plan_of({"name": "scaffold", "rate": 0.25}, sites="abcd", optimiser=DESCENT, schedule=schedule)
    state = begun(plan)
    rounds = [sums_of(plan, np.full(4, 2 * mean), contributors=2) for mean in (1.0, -2.0)]

    first = after(plan, np.ones(4), rounds[0], state=state)
    control = state["control"].copy()
    second = after(plan, first, rounds[1], state=state)

    np.testing.assert_array_equal(first, np.full(4, 1.25))
    np.testing.assert_array_equal(control, np.full(4, -0.5))
    np.testing.assert_array_equal(second, np.full(4, 0.75))
    np.testing.assert_array_equal(state["control"], np.full(4, 0.75))
