"""Encodes a site's counts and measurements as the integers that the plan's manifest lists, for sums over all sites.

Every number is weighted by rows as the plan counts them. So a sum divided by the sum of weights is the mean that the
method requires. Validation rows are always rounded to the public grid. A number beyond its bound becomes the bound. No
number is ever negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from protos.numbers.fixed_point import round_rows
from protos.plan.manifest import (
    LARGEST_LOSS,
    LARGEST_SENSITIVITY,
    LOSS_SCALE,
    SENSITIVITY_SCALE,
)
from protos.plan.plan import Plan
from protos.plan.weighting import EqualWeights, RowWeights
from site_agent.trainer.choice import Choice


class Measures:
    """Computes the measurements that one site sends under a plan, weighted as the plan requires."""

    def __init__(self, plan: Plan, training_rows: int, validation_rows: int) -> None:
        self._plan = plan
        match plan.weighting:
            case EqualWeights():
                self.rows, self._weight = 0, 1.0
                self._validation_rows, self._validation_weight = 1, 1.0
            case RowWeights(largest_rows=largest) as weighting:
                self.rows = weighting.counted(training_rows)
                self._weight = self.rows / largest
                self._validation_rows = round_rows(validation_rows, largest)
                self._validation_weight = self._validation_rows / largest
            case _:
                assert_never(plan.weighting)

    def sensitivities(self, found: Sequence[float]) -> tuple[int, ...]:
        """Return the sensitivity F of every layer, for PLayer-FL. All sites have equal weight (algorithm 3)."""
        return tuple(_integer(value, LARGEST_SENSITIVITY, SENSITIVITY_SCALE) for value in found)

    def validation(self, choice: Choice) -> dict[str, int]:
        """Return the newest validation loss, its weight, and whether this site's own loss is still falling."""
        stopping = self._plan.early_stopping
        improving = stopping is None or choice.is_improving(stopping.patience)
        return self.validation_of(choice.curve[-1].loss, improving=improving)

    def validation_of(self, loss: float, *, improving: bool) -> dict[str, int]:
        """Return the numbers that this site sends about the validation loss of one model."""
        return {
            "validation weight": self._validation_rows,
            "validation loss": _integer(self._validation_weight * _or_largest(loss), LARGEST_LOSS, LOSS_SCALE),
            "still improving": int(improving),
        }


def _or_largest(loss: float) -> float:
    return min(loss, LARGEST_LOSS) if math.isfinite(loss) else LARGEST_LOSS


def _integer(value: float, largest: float, scale: int) -> int:
    return round((min(value, largest) if math.isfinite(value) else largest) * scale)
