"""The arithmetic of survival curves by group, in one round: counts of each interval, and the log-rank test.

The log-rank test is stratified by site: each site adds up over its exact times the observed minus the expected events
of each group, and their covariance. Sources: Mantel 1966; Klein, Moeschberger 2003, section 7.5. The rules:

* fewer than `smallest_part` patients of a group at one site make this group and the test void for all, and further
  groups until no count follows from a total (`void_groups`);
* a group is printed if enough sites have it, and if it has no event or at least `smallest_cell` of them;
* a curve ends where fewer than `smallest_cell` patients are at risk.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil
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
from protos.statistics.survival_curve import SurvivalCurve
from protos.statistics.table_one import void_groups

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
