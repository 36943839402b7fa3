"""Computes a survival curve from counts of events and censored patients in the intervals of a declared grid.

A time inside an interval counts as the interval's end, and an event comes before a censoring of the same time. So this
is exactly the Kaplan-Meier curve of all patients together, with their times rounded up to the grid. With a grid of
days and times in whole days, nothing is rounded.

Sources: Kaplan, Meier 1958; Greenwood 1926; Kalbfleisch, Prentice 2002, section 1.4, for log-log intervals; Brookmeyer,
Crowley 1982, for the interval of the median; Klein, Moeschberger 2003, section 4.5, for the restricted mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt
from typing import Final

import numpy as np

from protos.plan.analyses import Float64
from protos.statistics.distributions import TWO_SIDED

_HALF: Final = 1e-12  # a survival this close to 1/2 is 1/2: a product of a thousand fractions is exact to 1e-13


@dataclass(frozen=True, kw_only=True, eq=False)
class SurvivalCurve:
    """The Kaplan-Meier curve of one group, at the ends of the grid's intervals.

    Attributes:
        grid: the ends, rising from 0 on, float64 of shape (intervals,).
        events, censored: counts in each interval, float64 of shape (intervals,).
        beyond: how many patients are followed longer than the grid.
    """

    grid: Float64 = field(repr=False)
    events: Float64 = field(repr=False)
    censored: Float64 = field(repr=False)
    beyond: float

    @property
    def patients(self) -> float:
        """Return the number of patients at time 0."""
        return float(self.events.sum() + self.censored.sum() + self.beyond)

    @cached_property
    def at_risk(self) -> Float64:
        """Return how many patients are at risk in each interval, float64 of shape (intervals,)."""
        gone = np.cumsum(self.events + self.censored)
        return np.asarray(self.patients - np.concatenate([[0.0], gone[:-1]]))

    def cut(self, smallest: int) -> SurvivalCurve:
        """Return the curve as long as at least `smallest` patients are at risk."""
        kept = int(np.count_nonzero(self.at_risk >= smallest))
        beyond = self.patients - float((self.events + self.censored)[:kept].sum())
        return SurvivalCurve(
            grid=self.grid[:kept], events=self.events[:kept], censored=self.censored[:kept], beyond=beyond
        )

    @cached_property
    def survival(self) -> Float64:
        """Return the share without the event after each interval, float64 of shape (intervals,)."""
        return np.asarray(np.cumprod(1.0 - self.events / np.maximum(self.at_risk, 1.0)))

    @cached_property
    def intervals(self) -> Float64:
        """Return the limits of the log-log 95% intervals, float64 (intervals, 2). NaN from where survival is 0."""
        left, survival = (self.at_risk - self.events) * self.at_risk, self.survival
        terms = np.divide(self.events, left, out=np.where(self.events > 0, inf, 0.0), where=left > 0)
        found = np.where(survival > 0.0, 1.0, np.nan)[:, None] * np.ones(2)
        inner = (survival > 0.0) & (survival < 1.0)
        logs = np.log(survival[inner])
        reach = TWO_SIDED * np.sqrt(np.cumsum(terms)[inner]) / -logs
        found[inner] = np.exp(logs[:, None] * np.exp(np.stack([reach, -reach], axis=1)))
        return found

    @property
    def median(self) -> dict[str, float | None]:
        """Return the time by which half of the patients have the event, with Brookmeyer and Crowley's interval.

        A time that the follow-up is too short for is None.
        """
        low, high = self.intervals.T
        curves = {"value": self.survival, "low": np.nan_to_num(low), "high": np.nan_to_num(high, nan=1.0)}
        return {name: self._reaches_half(curve) for name, curve in curves.items()}

    def _reaches_half(self, curve: Float64) -> float | None:
        """Return the time from which a falling curve is below 1/2, or the middle of the time during which it is 1/2."""
        below = np.flatnonzero(curve <= 0.5 + _HALF)
        under = np.flatnonzero(curve < 0.5 - _HALF)
        if not len(below):
            return None
        return float(self.grid[below[0]] + self.grid[(under if len(under) else below)[0]]) / 2

    @property
    def end(self) -> float:
        """Return the time up to which the curve is known."""
        return float(self.grid[-1]) if len(self.grid) else 0.0

    def restricted_mean(self, until: float) -> tuple[float, float]:
        """Return the mean time without the event up to `until`, at most `end`, and its standard error."""
        inside = self.grid < until
        heights = np.concatenate([[1.0], self.survival[inside]])
        areas = heights * np.diff(np.concatenate([[0.0], self.grid[inside], [until]]))
        after = np.cumsum(areas[::-1])[::-1][1:]  # from the end of each interval to `until`
        events, left = self.events[inside], (self.at_risk - self.events)[inside] * self.at_risk[inside]
        terms = np.divide(events * after**2, left, out=np.zeros(len(left)), where=left > 0)
        return float(areas.sum()), sqrt(float(terms.sum()))
