"""Computes the standardisation and coefficients of federated-prior from the sums that sites send.

In every round the coordinator sends all sums announced so far, as one vector of fixed length: the statistics, then each
Newton round, then the guard. Sums of later rounds are 0. So a restarted program computes the same coefficients again,
and no program has to trust another one's coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.numbers.newton_sums import Float32, Float64, NewtonSums, OutOfBound, announced, read_announced
from protos.plan.concepts import ConceptColumn, declared_standard
from protos.plan.prior_plan import MOMENTS, PriorPlan
from protos.privacy.accounting import PRIVATE_SCALE

PRIOR_MOMENT_SCALE: Final = 1 << 30
GUARD_SCALE: Final = 1 << 20
LARGEST_ROW_LOSS: Final = 64  # nats of one row; a probability is at least 2.2e-16 away from 0 and 1, which is 36
GUARD: Final = "guard"
FEWEST_ROWS: Final = 10  # rows that differ from the most frequent value, so that a sum does not show a single row
_NARROWEST: Final = 1e-4  # the standard deviation of a column, as a part of its concept's range
LARGEST_STEP: Final = 1.0  # of one coefficient in one Newton round, in standardised units


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """The standardisation of the common columns, which is the same at every site.

    It follows from the announced statistics.

    Attributes:
        means, deviations: float64 of shape (columns,), of values scaled from the concept's range to 0..1.
        is_used: bool of shape (columns,): no site has too few values of the column, and it varies.
        rows: training rows with an outcome, of all sites; None in the private form, which does not count them.
        patients: of these rows.
        outcome_means: float64 of shape (outputs,): shares of classes, or the number's mean in 0..1.
        outcome_deviation: the deviation of a number, in 0..1; 1 for classes.
    """

    means: Float64 = field(repr=False)
    deviations: Float64 = field(repr=False)
    is_used: npt.NDArray[np.bool_]
    rows: int | None
    outcome_means: Float64 = field(repr=False)
    outcome_deviation: float
    patients: int = 0

    @classmethod
    def declared(cls, columns: Sequence[ConceptColumn]) -> Standard:
        """Return the typical values and spreads that a plan declares. No patient influences them."""
        means, deviations = np.array([declared_standard(column) for column in columns]).reshape(-1, 2).T
        is_used, halves = np.ones(len(means), np.bool_), np.full(1, 0.5)
        return cls(
            means=means, deviations=deviations, is_used=is_used, rows=None, outcome_means=halves, outcome_deviation=1.0
        )

    def applied(self, values: Float64) -> Float64:
        """Standardise values in 0..1, float64 of shape (rows, columns). Missing values and unused columns become 0."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(np.isnan(values) | ~self.is_used, 0.0, (values - self.means) / self.deviations))


class AnnouncedSums:
    """Computes standardisation, Newton sums and coefficients from the sums that the coordinator announced."""

    def __init__(self, prior: PriorPlan, vector: Float32) -> None:
        """Decode the sums that the coordinator announced. `vector` is float32 of shape (4 * prior.words,).

        Raises:
            OutOfBound: the numbers are not announced sums of this plan.
        """
        if vector.shape != (4 * prior.words,):
            raise OutOfBound("another number of announced sums")
        self._prior, self._words = prior, read_announced(vector)

    @property
    def terms(self) -> Float64:
        """Return the noisy sums of patients' terms under differential privacy, float64 of shape (numbers,)."""
        return np.array(self._words, np.float64) / PRIVATE_SCALE

    @cached_property
    def standard(self) -> Standard:
        """Return the means and deviations for standardising columns. Under differential privacy the plan declares them.

        Raises:
            OutOfBound: honest sites cannot have sent these statistics.
        """
        prior = self._prior
        if prior.private is not None:
            return Standard.declared(prior.columns)
        found = dict(zip(prior.statistics_names, self._words, strict=False))
        voids, counts, sums, squares = self._of_columns(found)
        rows, is_whole = found["outcomes"], voids == 0
        if min(found.values()) < 0 or (is_whole & ((counts > rows) | (squares > sums))).any() or rows < 1:
            raise OutOfBound("statistics that no honest sites can have sent")
        means, deviations = _moments(np.maximum(counts, 1.0), sums, squares)
        enough = is_whole & (deviations > _NARROWEST)
        totals = np.array([found[f"sum {output}"] for output in prior.outputs], np.float64)
        if prior.is_number:
            all_rows, of_squares = np.full(1, float(rows)), np.full(1, float(found["squares outcome"]))
            outcome_means, outcome_deviations = _moments(all_rows, totals, of_squares)
        else:
            outcome_means, outcome_deviations = totals / rows, np.ones(1)
        return Standard(
            means=means,
            deviations=np.where(enough, deviations, 1.0),
            is_used=enough,
            rows=rows,
            patients=found["patients"],
            outcome_means=outcome_means,
            outcome_deviation=max(float(outcome_deviations[0]), _NARROWEST),
        )

    def without(self, own: Sequence[int]) -> Standard:
        """Return the standardisation without one site's part: means and deviations of the other sites together.

        Args:
            own: the numbers that this site sent in the statistics round.
        """
        names = self._prior.statistics_names
        rest = {name: word - mine for name, word, mine in zip(names, self._words, own, strict=False)}
        _, counts, sums, squares = self._of_columns(rest)
        means, deviations = _moments(np.maximum(counts, 1.0), sums, squares)
        return replace(self.standard, means=means, deviations=deviations)

    def _of_columns(self, found: Mapping[str, int]) -> list[Float64]:
        """Return each column's number of voids, count, sum and sum of squares, float64 of shape (columns,)."""
        columns = self._prior.columns
        return [np.array([found[f"{kind} {column.name}"] for column in columns], np.float64) for kind in MOMENTS]

    def newton(self, round_number: int) -> NewtonSums:
        """Return the sums of the Hessian and the gradient of one Newton round. Rounds count from 1."""
        prior = self._prior
        words = self._words[prior.place(round_number, prior.training_rounds)]
        return NewtonSums.decoded(words, len(prior.columns), len(prior.outputs))

    def coefficients(self, rounds: int) -> tuple[Float64, ...]:
        """Return the coefficients before each of `rounds` Newton rounds, and the coefficients after the last one.

        For classes, a longer step is shortened to LARGEST_STEP in each regression.

        Returns:
            rounds + 1 arrays of shape (outputs, columns); the first one is 0.

        Raises:
            OutOfBound: honest sites cannot have sent these sums.
        """
        prior = self._prior
        rows = self.standard.rows
        assert rows is not None or not rounds  # the private form has no Newton round
        path = [np.zeros((len(prior.outputs), len(prior.columns)))]
        for number in range(1, rounds + 1):
            sums = self.newton(number)
            sums.require_possible(rows or 0, prior.largest_weight)
            step = sums.next_coefficients(path[-1], prior.ridge) - path[-1]
            # With a rare outcome, whole steps from 0 go too far and come back, and few patients would decide the next.
            if not prior.is_number:
                step /= np.maximum(1.0, np.abs(step).max(axis=1, keepdims=True) / LARGEST_STEP)
            path.append(path[-1] + step)
        return tuple(path)

    @property
    def guard(self) -> float:
        """Return how much the score of the other sites reduces the log loss, summed over all sites.

        For numbers it is half the decrease of squared errors.
        """
        return self._words[-1] / GUARD_SCALE


def place_sums(vector: Float32, place: slice, integers: Sequence[int]) -> None:
    """Write the sums of a round into the vector that sites receive, in place."""
    vector[4 * place.start : 4 * place.stop] = announced(integers)


def _moments(counts: Float64, sums: Float64, squares: Float64) -> tuple[Float64, Float64]:
    means = sums / counts / PRIOR_MOMENT_SCALE
    return means, np.sqrt(np.maximum(squares / counts / PRIOR_MOMENT_SCALE - means * means, 0.0))
