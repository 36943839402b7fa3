"""Makes up patients for the simulations of `coordinator check`. Each patient has some values and an outcome, 0 or 1.

No patient of any hospital is used. The columns have one common factor, so each pair has the same correlation. Real
columns of one patient depend on each other too. The correlation is assumed, and no plan can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]

# Correlation of each pair of columns; age, blood pressure and laboratory values often have .1 to .3.
CORRELATION: Final = 0.2
ASSUMED: Final = f"Made-up columns have a correlation of {CORRELATION:g} with each other. This is assumed."
_SLOPE: Final = 1.35  # standard deviation of the true score in the logit; its AUROC is about 0.79


@dataclass(frozen=True)
class MadeUpPatients:
    """Made-up table rows, one row for each patient.

    Attributes:
        features: columns with mean 0 and variance 1, float64 of shape (patients, columns).
        outcomes: 0 or 1, float64 of shape (patients,).
    """

    features: Float64
    outcomes: Float64

    def part(self, rows: slice) -> MadeUpPatients:
        """Return the made-up patients in a range of table rows."""
        return MadeUpPatients(self.features[rows], self.outcomes[rows])


def made_up_patients(patients: int, columns: int, generator: np.random.Generator) -> MadeUpPatients:
    """Return made-up patients whose outcome depends on a linear score of all columns of the table."""
    direction = generator.standard_normal(columns)
    variance = (1 - CORRELATION) * float(direction @ direction) + CORRELATION * float(direction.sum()) ** 2
    direction *= _SLOPE / sqrt(variance)
    own = generator.standard_normal((patients, columns))
    common = generator.standard_normal((patients, 1))
    features = sqrt(1 - CORRELATION) * own + sqrt(CORRELATION) * common
    outcomes = (generator.random(patients) < 1 / (1 + np.exp(-features @ direction))).astype(np.float64)
    return MadeUpPatients(features, outcomes)


def ranked(scores: Float64, outcomes: Float64) -> float:
    """Return the AUROC of scores (how well they separate the outcomes). Equal scores are ranked in random order."""
    order = np.lexsort((np.random.default_rng(0).random(len(scores)), scores))
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    there = outcomes == 1
    positive, negative = int(there.sum()), int((~there).sum())
    return float((ranks[there].sum() - positive * (positive + 1) / 2) / (positive * negative))
