"""A researcher who requests statistics in such a way that a sum over three sites is one patient's value.

The attacker writes the plan, and so the columns and their ranges. The sums are those of the sites' own trainers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

import site_agent.trainer.released_numbers
from protos.plan.statistics_plan import MOMENT_SCALE
from site_agent.trainer.before_rounds import own_numbers
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.site_agent.trainer.test_statistics import asking, site

OLDEST = 97.3
AGES = [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 35.0, 45.0, 55.0, 65.0, 75.0]
SMALLEST_CELL = 10


def without_rows_within_the_range() -> AbstractContextManager[None]:
    """A site counts all its rows towards the smallest cell, also those that the range clips."""
    return patched(site_agent.trainer.released_numbers, within=lambda values, column: np.asarray(values))


def range_around_one_patient(weakened: bool) -> bool:
    """Declare a range in which one patient of three sites lies: all others are clipped, and the sum is its value."""
    low, high = 95.0, 120.0
    plan = asking({"name": "age", "low": low, "high": high}, smallest_cell=SMALLEST_CELL)
    with scratch() as folder, in_copy(weakened, without_rows_within_the_range):
        total = 0
        for name, ages in (("a", [*AGES[:-1], OLDEST]), ("b", AGES), ("c", AGES)):
            total += own_numbers(site(folder / name, ages, smallest_cell=SMALLEST_CELL), plan, Path(folder / name))[1]
        return abs(low + (high - low) * total / MOMENT_SCALE - OLDEST) < 0.001


ATTACKS = (
    Attack(
        name="statistics-range-around-one-patient",
        tries="a plan declares a range in which one patient lies, so that the sum of three sites is that value",
        without="the smallest cell of rows within a range",
        run=range_around_one_patient,
    ),
)
