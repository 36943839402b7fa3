"""Computes private statistics of a plan in one round: noisy counts and moments, one clipped term for each patient.

A complete row has 1 for each declared column. For a number it also has the position u in the declared range, and u^2.
So its norm is known from the plan alone. The rules:

* a patient's term is the sum over the patient's rows. It is shortened to the norm of `clip` complete rows;
* small cells are not removed, because a removal would depend on patients. The noise hides a small cell;
* a mean is computed only if the noisy count is several times as large as its noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Final

from protos.plan.federated_statistics import NumericColumn, Statistics, numbers_of
from protos.plan.patient_privacy import Privacy
from protos.plan.private_training import LARGEST_PATIENTS
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance

_SURE: Final = 5.0  # a mean needs a count above this many standard deviations of the count's noise


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
        """Return the names of the numbers that sites send."""
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
        """Return the variance of the noise that one site adds to each integer."""
        return share_variance(self.promise.ratio, self.honest)

    @property
    def bound(self) -> int:
        """Return the largest magnitude of one integer of one site. A larger sum is clipped before the noise."""
        return LARGEST_PATIENTS * PRIVATE_SCALE + LARGEST_NOISE

    def noise_rows(self, contributors: int) -> float:
        """Return the standard deviation of the noise in a count of rows that is summed over this many sites."""
        return sqrt(contributors * self.share_variance) / PRIVATE_SCALE * self.unit

    def mean_error(self, column: NumericColumn, rows: float, contributors: int, *, at_an_end: bool = False) -> float:
        """Return the standard deviation of the error that noise causes in a column's mean, in the column's unit.

        It follows from the noise in sum and count to first order, and is largest for a mean at an end of the range.

        Args:
            rows: rows with a value in the sum of all contributors.
            at_an_end: the mean is at an end of the declared range, and not at its middle.
        """
        half = (column.high - column.low) / 2
        return half * self.noise_rows(contributors) / rows * (sqrt(2.0) if at_an_end else 1.0)

    def fewest_rows(self, contributors: int) -> float:
        """Return the smallest noisy row count for which a mean is computed."""
        return _SURE * self.noise_rows(contributors)

    def summed(self, sums: Mapping[str, int], contributors: int) -> dict[str, dict[str, float | int | None]]:
        """Return each cell's noisy number of rows with its noise, and mean and standard deviation of numeric columns.

        Args:
            sums: the sums by their names in the manifest.

        Returns:
            By cell. `noise` is the standard deviation of the noise in `rows`. Moments are None if the noise hides them.
        """
        found = {name: number / PRIVATE_SCALE * self.unit for name, number in sums.items()}
        noise, told = self.noise_rows(contributors), dict[str, dict[str, float | int | None]]()
        for column in self.statistics.columns:
            if not isinstance(column, NumericColumn):
                for code in column.codes:
                    rows = found[f"count {column.name}={code}"]
                    told[f"{column.name}={code}"] = {"rows": max(0, round(rows)), "noise": noise}
                continue
            rows = found[f"count {column.name}"]
            facts: dict[str, float | int | None] = {"mean": None, "deviation": None}
            if rows > self.fewest_rows(contributors):
                centre, half = (column.low + column.high) / 2, (column.high - column.low) / 2
                mean = min(1.0, max(-1.0, found[f"sum {column.name}"] / rows))
                spread = min(1.0, max(0.0, found[f"squares {column.name}"] / rows - mean * mean))
                facts = {"mean": centre + half * mean, "deviation": half * sqrt(spread)}
            told[column.name] = facts | {"rows": max(0, round(rows)), "noise": noise}
        return told


def why_not_counted_privately(statistics: Statistics) -> Iterator[str]:
    """Yield each reason why a plan cannot have private statistics, as one clause."""
    if statistics.smallest_cell != 1:
        yield (
            f"smallest_cell is {statistics.smallest_cell}, and to leave out a small cell would depend on patients; set "
            "it to 1, because noise hides small cells"
        )
