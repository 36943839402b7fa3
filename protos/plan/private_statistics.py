"""Lists the private statistics of a plan: noisy counts and moments, to which each patient adds one clipped term.

A complete row has 1 for each declared column. For a number it also has the position u in the declared range, and u^2.
So its norm is known from the plan alone. The rules:

* a patient's term is the sum over the patient's rows. It is shortened to the norm of `clip` complete rows;
* small cells are not removed, because a removal would depend on patients. The noise hides a small cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from protos.plan.federated_statistics import NumericColumn, Statistics, numbers_of
from protos.plan.patient_privacy import Privacy
from protos.plan.private_training import LARGEST_PATIENTS
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance


@dataclass(frozen=True)
class PrivateStatistics:
    """The noisy statistics of a plan with privacy.

    Attributes:
        honest: the number of sites whose shares of the noise are in the sum and count.
    """

    statistics: Statistics
    promise: Privacy
    honest: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the noisy counts and moments that sites send."""
        return tuple(f"{kind} {cell}" for kind, cell in numbers_of(self.statistics))

    @property
    def unit(self) -> float:
        """Return the largest norm of the numbers that one patient adds to the sums. The unit is rows.

        With -1 <= u <= 1 a number's column has at most the squared norm 1 + u^2 + u^4 <= 3. A row has only one of a
        category's codes.
        """
        columns = self.statistics.columns
        return self.promise.clip * sqrt(sum(3 if isinstance(column, NumericColumn) else 1 for column in columns))

    @cached_property
    def share_variance(self) -> int:
        """Return the variance of the noise that one site adds to each integer that it sends."""
        return share_variance(self.promise.ratio, self.honest)

    @property
    def bound(self) -> int:
        """Return the largest size of one integer that a site sends. A larger sum is clipped before noise is added."""
        return LARGEST_PATIENTS * PRIVATE_SCALE + LARGEST_NOISE


def why_not_counted_privately(statistics: Statistics) -> Iterator[str]:
    """Yield each reason why a plan cannot have statistics with differential privacy, as a short text."""
    if statistics.smallest_cell != 1:
        yield (
            f"smallest_cell is {statistics.smallest_cell}, but with privacy noise hides small counts, and leaving out "
            "small counts is not permitted. Set smallest_cell to 1"
        )
