"""The arithmetic of a Cox model in which every site has its own baseline hazard.

Beside what model.py says, sites send in the last round the sums for a test of proportional hazards. The rules:

* a site with some events but fewer than `smallest_part` makes the model void for all. A site without an event adds its
  rows to the counts and nothing to the model, as in one pooled table. The result has the number of such sites;
* a time at the upper limit of its range is censored there;
* at no coefficients may fewer than `smallest_part` rows have almost all the weight.

The test of proportional hazards adds each column times log(time) to the model, and asks whether its coefficient is 0: a
score test, from the scaled Schoenfeld residuals against log(time) (Therneau, Grambsch 2000, section 6.2; cox.zph of R's
survival 3.0 and later). There a time of 0 counts as half a unit, because 0 has no logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from protos.plan.analyses import AnnouncedPart, Cox, Float64, Frame, Number, StudySize, Unanswerable, concept_named
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.design import event_of
from protos.statistics.distributions import Test, chi_squared_test
from protos.statistics.model import Estimates, ModelArithmetic, ModelRows
from protos.statistics.newton_walk import LikelihoodSums, Position, symmetric
from protos.statistics.risk_sets import RiskSets, WeightedRiskSets

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
        self._time = require_survival(cox.time, cox.event, concepts)
        if {cox.time, cox.event} & {name for term in cox.terms for name in term.split(":")}:
            raise ValueError("the time or the event is one of the terms")
        super().__init__(cox, concepts, size)
        self._cox = cox

    @cached_property
    def counted(self) -> tuple[Number, ...]:
        rows, sites = ("rows", "events", "rows that take no part"), ("sites", "sites without events")
        counts = (Number(name, self._size.largest_rows) for name in rows)
        return (*counts, *(Number(name, 1) for name in sites))

    @cached_property
    def at_the_end(self) -> tuple[Number, ...]:
        """Score and two triangles for proportional hazards."""
        trend = [*self._names, *self._pairs, *(f"{pair} x log time" for pair in self._pairs)]
        return tuple(self._sum(f"log time x {name}") for name in trend)

    def _rows(self, frame: Frame) -> _Rows:
        frame.require_one_row_each()
        values, (times, events) = self._design.values(frame), followed(frame, self._time, self._cox.event)
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
        return [number, len(rows.sets.dying), missing, float(rows.adds), float(not rows.adds)]

    def _sums_at(self, rows: _Rows, design: Float64, at: Float64, fewest: int, _: AnnouncedPart) -> LikelihoodSums:
        return WeightedRiskSets(rows.sets, design, at, fewest).likelihood_sums()

    def _at_the_end(self, frame: Frame, rows: _Rows, sums: AnnouncedPart) -> Float64:
        if not rows.adds:
            return np.zeros(len(self.at_the_end))
        design, at = self._standard_rows(rows, sums), self._walk(sums).following
        weighted = WeightedRiskSets(rows.sets, design, at, self._fewest_rows(frame))
        times = np.where(rows.sets.times > 0.0, rows.sets.times, 0.5)
        logs = np.clip(np.log(times) / _LOG_UNIT, -2.0, 2.0)
        score, cross = weighted.sums_over_events(logs)
        return np.concatenate([score, cross[self._upper], weighted.sums_over_events(logs**2)[1][self._upper]])

    def _estimates(self, sums: AnnouncedPart, here: Position) -> Estimates:
        per_unit = self._standard(sums).per_unit
        return Estimates(
            values=here.following * per_unit, covariance=here.sums.covariance * np.outer(per_unit, per_unit)
        )

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


def followed(frame: Frame, time: NumberConcept, event: str) -> tuple[Float64, Float64]:
    """Return the times, and 1 for an event. At the upper limit of its range a patient is still under observation.

    Times that differ only by rounding become the smallest of them, by the rule of R's survival (`timefix`).
    """
    times = frame.columns[time.name]
    known, places = np.unique(times, return_inverse=True)
    is_first = ~(np.diff(known, prepend=-np.inf) <= ROUNDING * max(1.0, known.sum() / max(1, len(known))))
    return known[is_first][np.cumsum(is_first) - 1][places], frame.columns[event] * (times < time.high)


def require_survival(time: str, event: str, concepts: tuple[Concept, ...]) -> NumberConcept:
    """Return the concept of the time. Raise ValueError or KeyError if the two are not a time and an event."""
    timed, ended = concept_named(concepts, time), concept_named(concepts, event)
    if isinstance(timed, CodedConcept) or timed.low < 0.0:
        raise ValueError(f"{time} is not a number from 0 on")
    if not isinstance(ended, CodedConcept) or len(ended.codes) != 2:
        raise ValueError(f"{event} does not have two codes, the second of which is the event")
    return timed
