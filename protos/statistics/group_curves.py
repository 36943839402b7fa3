"""The arithmetic of survival curves by group, in two rounds: sites of each interval, then counts and the log-rank test.

The log-rank test is stratified by site: each site adds up over its exact times the observed minus the expected events
of each group, and their covariance. Sources: Mantel 1966; Klein, Moeschberger 2003, section 7.5. The rules:

* fewer than `smallest_part` patients of a group at one site make this group and the test void for all, and further
  groups until no count follows from a total (`void_groups`);
* groups are printed if enough sites have each, and three its events; those with some events but few are not;
* a curve ends while `fewest_sites` sites still have `smallest_part` patients at risk, and three later events, or none.
  Later times are not counted: they would be a model's events less the curve's;
* with several curves in a plan, as many leave in each interval. One alone would show the groups in each;
* a grid is as wide as the times of each site, or intervals between the times of some would be of the others;
* a time inside an interval counts as the interval's end, and an event comes before a censoring of the same time. So
  this is exactly the Kaplan-Meier curve of all patients together, with their times rounded up to the grid.

Sources: Kaplan, Meier 1958; Greenwood 1926; Kalbfleisch, Prentice 2002, section 1.4, for log-log intervals; Brookmeyer,
Crowley 1982, for the interval of the median; Klein, Moeschberger 2003, section 4.5, for the restricted mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    Integers,
    Number,
    StudySize,
    Unanswerable,
)
from protos.plan.concepts import Concept
from protos.statistics.binned_values import are_few
from protos.statistics.cox import ROUNDING, RiskSets, followed, require_survival
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

    def restricted_mean(self, until: float) -> tuple[float, float]:
        """Return the mean time without the event up to `until`, at most the grid's end, and its standard error."""
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
        time = require_survival(curve.time, curve.event, concepts, {str(curve.by)})
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
        self._curve, self._concepts, self._size = curve, concepts, size
        self._time, self._event = time, event_of(curve.event, concepts)

    @cached_property
    def first(self) -> tuple[Number, ...]:
        """For each group sites, and after each interval those with enough at risk, and with events; rows left out."""
        found = list[Number]()
        for group in self._groups:
            found += [Number(f"sites {kind}{group}", 1) for kind in ("", "with few patients ", "that have events ")]
            for kind in ("at risk", "with events"):
                found += [Number(f"sites {kind} {group} after {end:g}", 1, may_be_void=True) for end in self._grid]
        return (*found, Number("rows that take no part", self._size.largest_rows))

    @cached_property
    def last(self) -> tuple[Number, ...]:
        """For each group events and censored patients by interval, and those beyond; then the log-rank test."""
        rows, found = self._size.largest_rows, list[Number]()
        for group in self._groups:
            names = [f"{kind} {group} to {end:g}" for kind in ("events", "censored") for end in self._grid]
            found += [Number(name, rows, may_be_void=True) for name in (*names, f"followed beyond {group}")]
        pairs = len(self._groups) - 1
        test = (
            Number(f"log-rank {place}", rows * SUM_SCALE, SUM_SCALE, is_signed=True, may_be_void=True)
            for place in range(pairs + pairs * (pairs + 1) // 2)
        )
        return (*found, *test)

    def _rows(self, frame: Frame) -> tuple[Float64, list[int], Float64]:
        """Return events and censored patients, (groups, 2, intervals + beyond), void groups, and the log-rank test."""
        frame.require_one_row_each()
        step, error = frame.steps.get(self._time.name, (step_of(frame.columns[self._time.name]), 0.0))
        if frame.rows >= self._size.smallest_cell and step > self._grid[1] * (1 + ROUNDING) and self._size.sites > 1:
            raise Unanswerable(
                f"Times of this hospital are multiples of {step:g}, and on a finer grid intervals between them would "
                f"be of other hospitals alone: plan `grid: {step:g}` or more."
            )
        times, events = followed(frame, self._time, self._curve.event, self._size.smallest_part)
        groups = np.zeros(frame.rows) if self._curve.by is None else frame.columns[self._curve.by]
        ends = self._grid + ROUNDING * self._grid[1] + error  # 3 * 0.3 is below 0.9
        places = np.maximum(np.searchsorted(ends, times, side="left"), int(self._size.joins))
        counts = np.zeros((len(self._groups), 2, len(ends) + 1))
        np.add.at(counts, (groups.astype(np.int64), (events != 1).astype(np.int64), places), 1.0)
        patients = counts.sum(axis=(1, 2)).astype(int).tolist()
        void = void_groups(patients, lambda some: sum(patients[one] for one in some) < self._size.smallest_part)
        return counts, sorted(void), log_rank_numbers(times, events == 1, groups, len(patients))

    def first_values(self, frame: Frame) -> Float64:
        counts, void, _ = self._rows(frame)
        leaving, part = counts.sum(axis=1), self._size.smallest_part
        at_risk = leaving[:, ::-1].cumsum(axis=1)[:, ::-1]
        # At risk after each interval; or a total minus the curve would be those who remain. Alone there is no total.
        enough = (at_risk[:, 1:] if self._size.fewest_sites > 1 else at_risk[:, :-1]) >= part
        if self._size.joins:
            enough[:, 1:] &= leaving.sum(axis=0)[1:-1] >= part
        later = counts[:, 0, ::-1].cumsum(axis=1)[:, -2::-1] > 0
        found = np.column_stack([at_risk[:, 0] > 0, 0.0 * at_risk[:, 0], counts[:, 0].any(axis=1), enough, later])
        found[void] = 0.0, 1.0, 0.0, *[VOID] * 2 * len(self._grid)
        return np.append(found, frame.left_out)

    def last_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        counts, void, test = self._rows(frame)
        ends, is_open = self._ends(sums)[:, None, None], self._ends(sums) > 0
        inside = counts[:, :, :-1] * (np.arange(len(self._grid)) < ends)
        beyond = (counts.sum(axis=(1, 2)) - inside.sum(axis=(1, 2))) * is_open
        found = np.column_stack([inside.reshape(len(beyond), -1), beyond])
        found[void] = VOID
        return np.append(found, test * (VOID if void else float(is_open.all())))

    def _by_group(self, numbers: Float64) -> Float64:
        return numbers.reshape(len(self._groups), -1)

    def _ends(self, sums: AnnouncedPart) -> Integers:
        """Return for each group how many intervals are of enough sites; 0 if it is void, or nothing would show."""
        sites, few, with_events, *_ = numbers = self._by_group(sums.first[:-1]).T
        enough, later = np.split(numbers[3:], 2)
        is_end = np.logical_and.accumulate(enough >= self._size.fewest_sites) & ~are_few(later, self._size)
        ends = (is_end * np.arange(1, len(is_end) + 1)[:, None]).max(axis=0)
        # A group of few sites, or whose events few have, would be a total minus the others.
        if ((sites > 0) & (sites < self._size.fewest_sites)).any() or are_few(with_events, self._size).any():
            return np.zeros(len(ends), np.int64)
        return np.where((sites > 0) & (few == 0) & (ends > 1), ends, 0).astype(np.int64)

    def _counted(self, last: Float64) -> tuple[Float64, Float64]:
        """Return the counts of each group, (groups, numbers), and those of the log-rank test."""
        size = len(self._groups) * (2 * len(self._grid) + 1)
        return self._by_group(last[:size]), last[size:]

    def _curves(self, sums: AnnouncedPart) -> dict[str, tuple[SurvivalCurve, float]]:
        """Return the curve of each group that has one, with its number of sites."""
        sites, size, found = self._by_group(sums.first[:-1])[:, 0], len(self._grid), {}
        every = () if sums.last is None else self._counted(sums.last)[0]
        for place, (end, counts) in enumerate(zip(self._ends(sums).tolist(), every, strict=False)):
            events, censored, beyond = counts[:end], counts[size : size + end], float(counts[-1])
            if end:
                curve = SurvivalCurve(grid=self._grid[:end], events=events, censored=censored, beyond=beyond)
                found[self._groups[place]] = curve, float(sites[place])
        return found

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        every, smallest = self._curves(sums), self._size.smallest_cell
        shown = {name: one for name, one in every.items() if not 0.0 < one[0].events.sum() < smallest}
        if not shown or sums.last is None:
            needed = " who leave in each interval, which several curves of a plan need: widen `grid`, plan one curve, "
            raise Unanswerable(
                f"Not each group has {self._size.fewest_sites} hospitals with {self._size.smallest_part} patients"
                f"{needed if self._size.joins else ', and events at three or none: '}join groups, or leave out `by`."
            )
        compared = self._counted(sums.last)[1] if len(shown) == len(self._groups) > 1 else None
        until = min(float(curve.grid[-1]) for curve, _ in shown.values())
        return {
            "kind": "curve",
            "time": self._curve.time,
            "event": self._event,
            "by": self._curve.by,
            "unit": self._time.unit,
            "resolution": float(self._grid[1]),
            "planned end": self._curve.to,
            "groups": [self._record(name, *one, until) for name, one in shown.items()],
            "not shown": [name for name in self._groups if name not in shown],
            "log_rank": None if compared is None else log_rank_test(compared, len(self._groups)),
            "rows that take no part": round(float(sums.first[-1])),
        }

    def own(self, frame: Frame) -> dict[str, Any]:
        size = replace(self._size, sites=1, fewest_sites=1, smallest_part=1, joins=False)
        alone = CurveArithmetic(self._curve, self._concepts, size)
        sums = AnnouncedPart(first=alone.first_values(frame))
        curves = alone._curves(replace(sums, last=alone.last_values(frame, sums)))
        return {name: self._record(name, curve, 1.0, float(curve.grid[-1])) for name, (curve, _) in curves.items()}

    def means(self, sums: AnnouncedPart) -> dict[str, float]:
        if sums.last is None or self._by_group(sums.first[:-1])[:, 1].any():
            return {}
        counts, ends = self._counted(sums.last)[0].sum(axis=0), np.append(np.tile(self._grid, 2), self._grid[-1])
        return {self._time.name: float(counts @ ends / counts.sum())}

    def _record(self, name: str, curve: SurvivalCurve, sites: float, until: float) -> dict[str, Any]:
        low, high = ([None if np.isnan(limit) else limit for limit in one.tolist()] for one in curve.intervals.T)
        mean, error = curve.restricted_mean(until)
        ends = {"value": mean, "error": error, "low": mean - TWO_SIDED * error, "high": mean + TWO_SIDED * error}
        return {
            "group": name,
            "patients": round(curve.patients),
            "events": round(float(curve.events.sum())),
            "sites": round(sites),
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
    members, sets = groups[:, None] == np.arange(number), RiskSets.of(times, events)
    members = members[sets.order].astype(np.float64)
    at_risk, dying = members.cumsum(axis=0)[sets.ends - 1], np.zeros((len(sets.times), number))
    np.add.at(dying, np.repeat(np.arange(len(sets.times)), sets.deaths), members[sets.dying])
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


def step_of(times: Float64) -> float:
    """Return the largest decimal number of which all times, (rows,), are multiples; 0 if there is none."""
    for digits in range(7):
        scaled = times[~np.isnan(times)] * 10.0**digits
        if np.allclose(scaled, np.round(scaled), rtol=0.0, atol=1e-6):
            return float(np.gcd.reduce(np.round(scaled).astype(np.int64))) / 10.0**digits
    return 0.0
