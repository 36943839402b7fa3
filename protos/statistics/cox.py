"""The arithmetic of a Cox model in which every site has its own baseline hazard.

Beside what model.py says, sites send in the last round the sums for a test of proportional hazards. The rules:

* a site with some events but fewer than `smallest_part` makes the model void for all. A site without an event adds its
  rows to the counts and nothing to the model, as in one pooled table. The result has the number of such sites;
* a time at the upper limit of its range is censored there;
* at no coefficients may fewer than `smallest_part` rows have almost all the weight.

The test of proportional hazards adds each column times log(time) to the model, and asks whether its coefficient is 0: a
score test, from the scaled Schoenfeld residuals against log(time) (Therneau, Grambsch 2000, section 6.2; cox.zph of R's
survival 3.0 and later). There a time of 0 counts as half a unit, because 0 has no logarithm.

A risk set has patients of one site. So the log partial likelihood, score and information of the stratified model,
with Efron's method for ties, are the sums over the sites, exactly. The time for n rows, p columns and d events is that
of sorting n rows once, and of products of n x p and d x p matrices at each position. Sources: Efron 1977, equation 5.6;
Therneau, Grambsch 2000, sections 3.1 and 6.2.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from protos.plan.analyses import (
    AnnouncedPart,
    Cox,
    Float64,
    Frame,
    Integers,
    Number,
    StudySize,
    Unanswerable,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.design import event_of
from protos.statistics.distributions import Test, chi_squared_test
from protos.statistics.model import LEAST_WEIGHT, Estimates, ModelArithmetic, ModelRows
from protos.statistics.newton_walk import LikelihoodSums, Position, symmetric

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


ROUNDING: Final = float(np.finfo(np.float64).eps) ** 0.5  # of times, also those that others computed
_LOG_UNIT: Final = 7.0  # so that the logarithm of a time is between -2 and 2; the test does not depend on it
_LEAST_LEFT: Final = 1e-9  # of a variance, as a share: less is the rounding of a difference


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows(ModelRows):
    sets: RiskSets = field(repr=False)


class CoxArithmetic(ModelArithmetic[_Rows]):
    """Implements protos.plan.analyses.Arithmetic."""

    ratio = "hazard ratio"

    def __init__(self, cox: Cox, concepts: tuple[Concept, ...], size: StudySize) -> None:
        terms = {name for term in cox.terms for name in term.split(":")}
        self._time = require_survival(cox.time, cox.event, concepts, terms)
        super().__init__(cox, concepts, size)
        self._cox = cox

    @cached_property
    def counted(self) -> tuple[Number, ...]:
        counts = dict.fromkeys(("rows", "events", "rows that take no part"), self._size.largest_rows)
        counts |= dict.fromkeys(("sites", "sites without events", "sites with several times of events"), 1)
        return tuple(Number(name, bound) for name, bound in counts.items())

    @cached_property
    def at_the_end(self) -> tuple[Number, ...]:
        """Score and two triangles for proportional hazards."""
        trend = [*self._names, *self._pairs, *(f"{pair} x log time" for pair in self._pairs)]
        return tuple(self._sum(f"log time x {name}") for name in trend)

    def _rows(self, frame: Frame) -> _Rows:
        frame.require_one_row_each()
        values = self._design.values(frame)
        times, events = followed(frame, self._time, self._cox.event, self._size.smallest_part)
        died, few = events == 1, self._design.few(values, frame)
        if 0 < frame.rows < frame.smallest_cell or 0 < died.sum() < self._size.smallest_part:
            raise Unanswerable(f"Too few complete rows of this hospital, or too few with {self._cox.event}.")
        if self._design.is_decided(times[died], frame.patients[died]):
            raise Unanswerable(f"Few events of this hospital have another {self._cox.time} than most.")
        sets = RiskSets.of(times, died)
        return _Rows(values=values, few=few, patients=frame.patients, adds=bool(died.any()), sets=sets)

    def _counts(self, frame: Frame, rows: _Rows) -> list[float]:
        number = len(rows.values)
        missing = frame.rows + frame.left_out - number
        logs = self._logs(rows.sets.times)
        several = rows.adds and logs.max() - logs.min() > LEAST_WEIGHT
        return [number, len(rows.sets.dying), missing, float(rows.adds), float(not rows.adds), float(several)]

    @staticmethod
    def _logs(times: Float64) -> Float64:
        return np.asarray(np.clip(np.log(np.where(times > 0.0, times, 0.5)) / _LOG_UNIT, -2.0, 2.0))

    def _events(self, rows: _Rows) -> float:
        return float(len(rows.sets.dying))

    def _sums_at(self, rows: _Rows, design: Float64, at: Float64, fewest: int, _: AnnouncedPart) -> LikelihoodSums:
        return WeightedRiskSets(rows.sets, design, at, fewest).likelihood_sums()

    def _at_the_end(self, frame: Frame, rows: _Rows, sums: AnnouncedPart) -> Float64:
        if not rows.adds:
            return np.zeros(len(self.at_the_end))
        design, at = self._standard_rows(rows, sums), self._walk(sums).following
        weighted = WeightedRiskSets(rows.sets, design, at, self._fewest_rows(frame))
        logs = self._logs(rows.sets.times)
        score, cross = weighted.sums_over_events(logs)
        return np.concatenate([score, cross[self._upper], weighted.sums_over_events(logs**2)[1][self._upper]])

    def _estimates(self, sums: AnnouncedPart, here: Position) -> Estimates:
        per_unit = self._standard(sums).per_unit
        covariance = here.sums.covariance * np.outer(per_unit, per_unit)
        return Estimates(values=here.following * per_unit, covariance=covariance)

    def _record(self, sums: AnnouncedPart, here: Position) -> dict[str, Any]:
        trend = self._trend(sums, here)
        return {
            "kind": "cox",
            "time": self._cox.time,
            "event": event_of(self._cox.event, self._concepts),
            "events": round(self._count(sums, "events")),
            "sites without events": round(self._count(sums, "sites without events")),
            "log_likelihood": None if self._ridge else here.sums.log_likelihood,
            "proportional": trend and trend[1],
        }

    def _term(self, sums: AnnouncedPart, found: Estimates, place: int) -> dict[str, Any]:
        trend = self._trend(sums, self._walk(sums))
        return super()._term(sums, found, place) | {"proportional": trend and trend[0][place]}

    def _trend(self, sums: AnnouncedPart, here: Position) -> tuple[list[Test], Test] | None:
        """Return the test of each column and of all together. None before the last round, or with a penalty."""
        if sums.last is None or self._ridge:
            return None
        columns, half, score = self._columns, len(self._pairs), sums.last[: self._columns]
        # The covariance at risk times log(time), and times its square, summed over events.
        parts = (sums.last[start : start + half] for start in (columns, columns + half))
        cross, information = (symmetric(part, columns) for part in parts)
        # The part of the score's variance that the estimates themselves explain is taken out.
        variance = information - cross @ here.sums.covariance @ cross
        if (np.diagonal(variance) <= _LEAST_LEFT * np.diagonal(information)).any():
            return None  # the events have hardly more than one time
        each = [chi_squared_test(float(one), 1) for one in score**2 / np.diagonal(variance)]
        return each, chi_squared_test(float(score @ np.linalg.lstsq(variance, score)[0]), columns)


def followed(frame: Frame, time: NumberConcept, event: str, smallest: int) -> tuple[Float64, Float64]:
    """Return the times, and 1 for an event. At the upper limit of its range a patient is still under observation.

    Times that differ only by rounding become the smallest of them, by the rule of R's survival (`timefix`). Raise
    Unanswerable if fewer than `smallest` events are at the limit: other analyses count them as events.
    """
    times = frame.columns[time.name]
    if 0 < np.count_nonzero((frame.columns[event] == 1) & (times >= time.high)) < smallest:
        raise Unanswerable(f"Few events of this hospital are at the end of the range of {time.name}: move `high`.")
    known, places = np.unique(times, return_inverse=True)
    is_first = ~(np.diff(known, prepend=-np.inf) <= ROUNDING * max(1.0, known.sum() / max(1, len(known))))
    return known[is_first][np.cumsum(is_first) - 1][places], frame.columns[event] * (times < time.high)


def require_survival(time: str, event: str, concepts: tuple[Concept, ...], others: Set[str]) -> NumberConcept:
    """Return the concept of the time. Raise ValueError or KeyError if the two are not a time and an event."""
    timed, ended = concept_named(concepts, time), concept_named(concepts, event)
    if isinstance(timed, CodedConcept) or timed.low < 0.0:
        raise ValueError(f"{time} is not a number from 0 on")
    if not isinstance(ended, CodedConcept) or len(ended.codes) != 2:
        raise ValueError(f"{event} does not have two codes, the second of which is the event")
    if {time, event} & others:
        raise ValueError(f"{time} or {event} is also a term or makes the groups")
    return timed
