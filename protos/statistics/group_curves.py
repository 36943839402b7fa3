"""The arithmetic of survival curves by group, in one round: counts of each interval, and the log-rank test.

The log-rank test is stratified by site: each site adds up over its exact times the observed minus the expected events
of each group, and their covariance. Sources: Mantel 1966; Klein, Moeschberger 2003, section 7.5. The rules:

* fewer than `smallest_part` patients of a group at one site make this group and the test void for all, and further
  groups until no count follows from a total (`void_groups`);
* a group is printed if enough sites have it, and if it has no event or at least `smallest_cell` of them;
* a curve ends where fewer than `smallest_cell` patients are at risk;
* a time inside an interval counts as the interval's end, and an event comes before a censoring of the same time. So
  this is exactly the Kaplan-Meier curve of all patients together, with their times rounded up to the grid.

Sources: Kaplan, Meier 1958; Greenwood 1926; Kalbfleisch, Prentice 2002, section 1.4, for log-log intervals; Brookmeyer,
Crowley 1982, for the interval of the median; Klein, Moeschberger 2003, section 4.5, for the restricted mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protos.plan.analyses import (
    SUM_SCALE,
    VOID,
    AnnouncedPart,
    Arithmetic,
    Curve,
    Float64,
    Frame,
    Number,
    StudySize,
    Unanswerable,
)
from protos.plan.concepts import Concept
from protos.statistics.cox import ROUNDING, followed, require_survival
from protos.statistics.design import event_of, groups_of
from protos.statistics.distributions import TWO_SIDED, Test, chi_squared_test
from protos.statistics.newton_walk import symmetric
from protos.statistics.table_one import void_groups

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


MONTH: Final = 365.25 / 12  # days
MOST_INTERVALS: Final = 4_000


class CurveArithmetic(Arithmetic):
    """Implements protos.plan.analyses.Arithmetic."""

    def __init__(self, curve: Curve, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raise ValueError or KeyError if the plan's concepts do not fit the curves."""
        time = require_survival(curve.time, curve.event, concepts)
        if curve.grid == "monthly" and time.unit != "days":
            raise ValueError(f"a monthly grid needs the unit days, and {curve.time} has {time.unit or 'no unit'}")
        if curve.to >= time.high:
            raise ValueError(f"the curve ends at {curve.to:g}, and the range of {curve.time} must go on beyond it")
        length = MONTH if curve.grid == "monthly" else curve.grid
        intervals = ceil(curve.to / length - 1e-9)
        if intervals > MOST_INTERVALS:
            raise ValueError(f"the grid has {intervals:,} intervals of {MOST_INTERVALS:,}: widen it or shorten `to`")
        self._grid = np.minimum(np.arange(intervals + 1) * length, curve.to)
        self._groups = groups_of(curve.by, concepts)
        self._curve, self._size, self._time, self._event = curve, size, time, event_of(curve.event, concepts)

    @cached_property
    def first(self) -> tuple[Number, ...]:
        """For each group sites, events and censored patients by interval; then the log-rank test, and rows left out."""
        rows, found = self._size.largest_rows, []
        for group in self._groups:
            found += [Number(f"sites {group}", 1), Number(f"sites with few patients {group}", 1)]
            found += [Number(f"events {group} to {end:g}", rows, may_be_void=True) for end in self._grid]
            found += [Number(f"censored {group} to {end:g}", rows, may_be_void=True) for end in self._grid]
            found.append(Number(f"followed beyond {group}", rows, may_be_void=True))
        pairs = len(self._groups) - 1
        test = (
            Number(f"log-rank {place}", rows * SUM_SCALE, SUM_SCALE, is_signed=True, may_be_void=True)
            for place in range(pairs + pairs * (pairs + 1) // 2)
        )
        return (*found, *test, Number("rows that take no part", rows))

    def first_values(self, frame: Frame) -> Float64:
        frame.require_one_row_each()
        times, events = followed(frame, self._time, self._curve.event)
        groups = np.zeros(frame.rows) if self._curve.by is None else frame.columns[self._curve.by]
        died = events == 1
        found: list[float] = []
        patients = [int(np.count_nonzero(groups == place)) for place in range(len(self._groups))]
        void = void_groups(patients, lambda some: sum(patients[one] for one in some) < self._size.smallest_part)
        for place, number in enumerate(patients):
            here = groups == place
            if place in void:
                found += [0.0, 1.0] + [VOID] * (2 * len(self._grid) + 1)
            else:
                found += [float(number > 0), 0.0, *self._counts(times[here], died[here])]
        if len(self._groups) > 1:
            test = log_rank_numbers(times, died, groups, len(self._groups))
            found += [VOID] * len(test) if void else test.tolist()
        return np.array([*found, float(frame.left_out)])

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        by_group, compared = self._parts(sums.first)
        shown = {name: one for name, one in by_group.items() if self._is_printed(one)}
        if not shown:
            raise Unanswerable(
                f"No group has {self._size.fewest_sites} hospitals with at least {self._size.smallest_part} patients: "
                "join groups, or leave out `by`."
            )
        curves = {name: self._read(one[2:]).cut(self._size.smallest_cell) for name, one in shown.items()}
        test = log_rank_test(compared, len(by_group)) if len(shown) == len(by_group) > 1 else None
        until = min(curve.end for curve in curves.values())
        return {
            "kind": "curve",
            "time": self._curve.time,
            "event": self._event,
            "by": self._curve.by,
            "unit": self._time.unit,
            "resolution": float(self._grid[1]),
            "groups": [self._record(name, curve, shown[name], until) for name, curve in curves.items()],
            "not shown": [name for name in self._groups if name not in shown],
            "log_rank": test,
            "rows that take no part": round(float(sums.first[-1])),
        }

    def own(self, frame: Frame) -> dict[str, Any]:
        found = {}
        for name, one in self._parts(self.first_values(frame))[0].items():
            if one[0]:
                curve = self._read(one[2:]).cut(frame.smallest_cell)
                found[name] = self._record(name, curve, one, curve.end)
        return found

    def means(self, sums: AnnouncedPart) -> dict[str, float]:
        numbers = np.sum([*self._parts(sums.first)[0].values()], axis=0)
        curve = self._read(numbers[2:])
        total = (curve.events + curve.censored) @ self._grid + curve.beyond * self._grid[-1]
        return {} if numbers[1] else {self._time.name: float(total / curve.patients)}

    def _parts(self, first: Float64) -> tuple[dict[str, Float64], Float64]:
        """Return the numbers of each group, and those of the log-rank test."""
        size = len(self._groups) * (2 * len(self._grid) + 3)
        return dict(zip(self._groups, first[:size].reshape(len(self._groups), -1), strict=True)), first[size:-1]

    def _counts(self, times: Float64, died: Any) -> list[float]:
        places = np.searchsorted(self._grid + ROUNDING * self._grid[1], times, side="left")  # 3 * 0.3 is below 0.9
        inside = places < len(self._grid)
        counts = [np.bincount(places[inside & kind], minlength=len(self._grid)) for kind in (died, ~died)]
        return [*np.concatenate(counts).astype(np.float64).tolist(), float(np.count_nonzero(~inside))]

    def _read(self, counts: Float64) -> SurvivalCurve:
        number = len(self._grid)
        return SurvivalCurve(
            grid=self._grid, events=counts[:number], censored=counts[number:-1], beyond=float(counts[-1])
        )

    def _is_printed(self, numbers: Float64) -> bool:
        events = float(numbers[2 : 2 + len(self._grid)].sum())
        enough = numbers[0] >= self._size.fewest_sites and numbers[2:].sum() >= self._size.smallest_cell
        return bool(not numbers[1] and enough and (events == 0.0 or events >= self._size.smallest_cell))

    def _record(self, name: str, curve: SurvivalCurve, numbers: Float64, until: float) -> dict[str, Any]:
        low, high = ([None if np.isnan(limit) else limit for limit in one.tolist()] for one in curve.intervals.T)
        mean, error = curve.restricted_mean(until)
        ends = {"value": mean, "error": error, "low": mean - TWO_SIDED * error, "high": mean + TWO_SIDED * error}
        return {
            "group": name,
            "patients": round(curve.patients),
            "events": round(float(curve.events.sum())),
            "sites": round(float(numbers[0])),
            "median": curve.median,
            # Without an event before `until` nobody knows how far the mean is from it.
            "restricted_mean": (ends if error > 0.0 else dict.fromkeys(ends)) | {"until": until},
            "times": curve.grid.tolist(),
            "survival": curve.survival.tolist(),
            "low": low,
            "high": high,
            "at_risk": [round(one) for one in curve.at_risk.tolist()],
            "interval_events": [round(one) for one in curve.events.tolist()],
            "interval_censored": [round(one) for one in curve.censored.tolist()],
        }  # fmt: skip


def log_rank_numbers(times: Float64, events: npt.NDArray[np.bool_], groups: Float64, number: int) -> Float64:
    """Return one site's numbers for groups 0 to number - 1: the differences, then the covariance's upper triangle.

    The last group has no numbers of its own, because all differences add up to 0. Arguments have the shape (rows,).
    """
    upper = np.triu_indices(number - 1)
    if not events.any():
        return np.zeros(number - 1 + len(upper[0]))
    moments = np.unique(times[events])
    members = groups[:, None] == np.arange(number)
    followed = np.zeros((len(moments) + 1, number))
    np.add.at(followed, np.searchsorted(moments, times, side="right"), members)
    at_risk = followed[::-1].cumsum(axis=0)[::-1][1:]
    dying = np.zeros((len(moments), number))
    np.add.at(dying, np.searchsorted(moments, times[events]), members[events])
    risk, deaths = at_risk.sum(axis=1), dying.sum(axis=1)
    shares = at_risk / risk[:, None]
    factors = deaths * np.divide(risk - deaths, risk - 1.0, out=np.zeros(len(risk)), where=risk > 1.0)
    difference = (dying - deaths[:, None] * shares).sum(axis=0)
    variance = np.diag(factors @ shares) - (shares * factors[:, None]).T @ shares
    return np.concatenate([difference[:-1], variance[:-1, :-1][upper]])


def log_rank_test(sums: Float64, number: int) -> Test | None:
    """Return the test. None if the groups never meet at a site."""
    difference, variance = sums[: number - 1], symmetric(sums[number - 1 :], number - 1)
    spread = np.sqrt(np.maximum(np.diagonal(variance), 0.0))
    if spread.min() < 1e-4 or np.linalg.cond(variance / np.outer(spread, spread)) > 1e10:
        return None
    return chi_squared_test(float(difference @ np.linalg.solve(variance, difference)), number - 1)
