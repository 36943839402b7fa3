"""Computes one site's sums for a Cox model at given coefficients, with Efron's method for ties.

A site is a stratum with its own baseline hazard, so a risk set never has patients of two sites. The log partial
likelihood, score and information of the stratified model are the sums over the sites, exactly. The time for n rows,
p columns and d events is that of sorting n rows once, and of products of n x p and d x p matrices at each position.

Sources: Efron 1977, equation 5.6; Therneau, Grambsch 2000, sections 3.1 and 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.plan.analyses import Float64, Integers, Unanswerable
from protos.statistics.newton_walk import LikelihoodSums

LARGEST_RANGE: Final = 100.0  # of linear predictors; beyond it some rows have no weight beside others


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RiskSets:
    """Rows from the longest time to the shortest, and the times that have events, in the same sequence.

    Attributes:
        order: row numbers, int64 of shape (rows,); at equal times the rows with an event come first.
        times: the times that have events, from the longest, float64 of shape (times,).
        ends: how many rows are at risk at each time, int64 of shape (times,).
        deaths: how many events each time has, int64 of shape (times,).
        dying: the places in `order` of all events, by time, int64 of shape (events,).
        fractions: for each event l / d of Efron's method, float64 of shape (events,).
    """

    order: Integers
    times: Float64
    ends: Integers
    deaths: Integers
    dying: Integers
    fractions: Float64

    @classmethod
    def of(cls, times: Float64, events: npt.NDArray[np.bool_]) -> RiskSets:
        """Sort rows by their times, float64 (rows,), and by whether the time ends with the event, bool (rows,)."""
        order = np.lexsort((~events, -times))
        latest_first, dying = -times[order], np.flatnonzero(events[order])
        here, deaths = np.unique(latest_first[dying], return_counts=True)
        within = np.arange(len(dying)) - np.repeat(np.cumsum(deaths) - deaths, deaths)
        return cls(
            order=order,
            times=-here,
            ends=np.searchsorted(latest_first, here, side="right"),
            deaths=deaths,
            dying=dying,
            fractions=within / np.repeat(deaths, deaths),
        )


class WeightedRiskSets:
    """Risk sets in which each row has the weight exp(x b)."""

    def __init__(self, sets: RiskSets, design: Float64, coefficients: Float64, fewest_rows: int) -> None:
        """Compute the mean of the columns at each event.

        Args:
            sets: with at least one event.
            design: float64 of shape (rows, columns), in the sequence of the table.
            fewest_rows: the least effective number of rows, (sum w)^2 / sum w^2. Fewer would show single patients.

        Raises:
            Unanswerable: few rows have almost all the weight.
        """
        self._sets = sets
        line = (design @ coefficients)[sets.order]
        line -= line.max()
        self._weights = np.exp(line)
        effective = self._weights.sum() ** 2 / (self._weights @ self._weights)
        if line.min() < -LARGEST_RANGE or effective < min(fewest_rows, len(line)) - 1e-6:
            raise Unanswerable("a few patients have almost all the weight in the risk sets")
        columns = design[sets.order]
        # Centred at the weighted mean, so that the differences of sums below keep their digits.
        self._columns = columns - (self._weights @ columns) / self._weights.sum()
        self._firsts = np.cumsum(sets.deaths) - sets.deaths
        weighted = np.concatenate([self._weights[:, None], self._columns * self._weights[:, None]], axis=1)
        at_risk = np.cumsum(weighted, axis=0)[sets.ends - 1]
        dying = np.add.reduceat(weighted[sets.dying], self._firsts, axis=0)
        sums = np.repeat(at_risk, sets.deaths, axis=0) - sets.fractions[:, None] * np.repeat(dying, sets.deaths, axis=0)
        self._totals, self._means = sums[:, 0], sums[:, 1:] / sums[:, :1]
        self._line = line

    def likelihood_sums(self) -> LikelihoodSums:
        score, information = self.sums_over_events(np.ones(len(self._sets.times)))
        gain = float(self._line[self._sets.dying].sum() - np.log(self._totals).sum())
        return LikelihoodSums(log_likelihood=gain, score=score, information=information)

    def sums_over_events(self, factors: Float64) -> tuple[Float64, Float64]:
        """Return the sums of x - mean and of the covariance at risk over all events, each times a factor of its time.

        `factors` are float64 of shape (times,); the sums have the shapes (columns,) and (columns, columns).
        """
        sets = self._sets
        each = np.repeat(factors, sets.deaths)
        score = each @ (self._columns[sets.dying] - self._means)
        # A row is at risk at all times up to its own. At its own time, Efron's method counts an event in part.
        hazards = np.zeros(len(self._weights) + 1)
        hazards[sets.ends] = np.add.reduceat(each / self._totals, self._firsts)
        exposure = hazards[::-1].cumsum()[::-1][1:]  # of the row at place i: the times at which more than i rows are
        partly = np.add.reduceat(each * sets.fractions / self._totals, self._firsts)
        exposure[sets.dying] -= np.repeat(partly, sets.deaths)
        information = self._columns.T @ (self._columns * (self._weights * exposure)[:, None])
        information -= self._means.T @ (self._means * each[:, None])
        return score, (information + information.T) / 2
