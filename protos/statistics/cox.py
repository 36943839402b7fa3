"""The arithmetic of a Cox model in which every site has its own baseline hazard.

Sites send log partial likelihood, score and information at the coefficients that follow from the sums so far. In the
last round they send the sums for a test of proportional hazards, and for differences between sites. The rules:

* a site with some events but fewer than `smallest_part` makes the model void for all. A site without an event adds its
  rows to the counts and nothing to the model, as in one pooled table. The result has the number of such sites;
* rows with a missing value take no part. A time must be above 0;
* at no coefficients may fewer than `smallest_part` rows have almost all the weight;
* a site's own estimates enter sums, which are printed only if too many sites have some for a reader to solve for them.

The test of proportional hazards adds each column times log(time) to the model, and asks whether its coefficient is 0: a
score test, from the scaled Schoenfeld residuals against log(time) (Therneau, Grambsch 2000, section 6.2; cox.zph of R's
survival 3.0 and later).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    VOID,
    AnnouncedPart,
    Cox,
    Float64,
    Frame,
    Number,
    StudySize,
    Unanswerable,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.alone import estimates_alone
from protos.statistics.between_sites import (
    FEWEST_ESTIMATES,
    FIRST_SUMS,
    BetweenSites,
    OwnEstimate,
    between_sites,
    random_effects,
)
from protos.statistics.design import Design, Standardised
from protos.statistics.distributions import TWO_SIDED, p_of_chi_squared, p_of_z, ratio_of
from protos.statistics.newton_walk import LikelihoodSums, Position, own_walk, require_estimate, symmetric, walk
from protos.statistics.risk_sets import RiskSets, WeightedRiskSets

_LOG_UNIT: Final = 7.0  # so that the logarithm of a time is between -2 and 2; the test does not depend on it
_DISTINCT_ROUNDS: Final = 6
_LEAST_LEFT: Final = 1e-9  # of a variance, as a share: less is the rounding of a difference
_COUNTS: Final = (
    *("rows", "events", "rows with a missing value"),
    *("sites", "sites without events"),
)


class CoxArithmetic:
    """Implements protos.plan.analyses.Arithmetic."""

    def __init__(self, cox: Cox, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raise ValueError or KeyError if the plan's concepts do not fit the model."""
        require_survival(cox.time, cox.event, concepts)
        if {cox.time, cox.event} & {name for term in cox.terms for name in term.split(":")}:
            raise ValueError("the time or the event is one of the terms")
        self._cox, self._concepts, self._size = cox, concepts, size
        self._design = Design(cox.terms, concepts, cox.references, size)
        self._columns = len(self._design.columns)
        self._names = [column.name for column in self._design.columns]
        self._fit = LikelihoodSums.length(self._columns)  # numbers of likelihood, score and information

    @cached_property
    def first(self) -> tuple[Number, ...]:
        """Counts, and the moments of the columns."""
        rows = self._size.largest_rows
        counts = (Number(name, 1 if name.startswith("sites") else rows) for name in _COUNTS)
        return (*counts, *self._design.first)

    @cached_property
    def newton(self) -> tuple[Number, ...]:
        """The log partial likelihood, the score and the information; in the first Newton round also own estimates."""
        own = (f"own {kind} {name}" for name in self._names for kind in FIRST_SUMS if self._compares)
        fit = tuple(self._sum(name) for name in ("log likelihood", *self._names, *self._pairs))
        # A squared weight is at most the square of a number of events, and its sum stays below 2**62.
        squares = 1 << max(0, 61 - 2 * self._size.largest_rows.bit_length() - self._size.sites.bit_length())
        return fit + tuple(
            replace(
                self._sum(name),
                scale=squares if name.startswith("own squared") else SUM_SCALE,
                may_be_void=not name.startswith("own count"),
            )
            for name in own
        )

    @cached_property
    def last(self) -> tuple[Number, ...]:
        """Score and two triangles for proportional hazards, then two sums for each column's random effect."""
        trend = [*self._names, *self._pairs, *(f"{pair} x log time" for pair in self._pairs)]
        own = [f"own {kind} {name}" for name in self._names for kind in ("weight", "weighted") if self._compares]
        return tuple(self._sum(f"log time x {name}") for name in trend) + tuple(self._sum(name) for name in own)

    @property
    def _compares(self) -> bool:
        """Return whether so many sites take part that nobody can solve the sums of own estimates for one of them."""
        return self._size.sites >= max(FEWEST_ESTIMATES, self._size.fewest_sites + 2)

    @property
    def _pairs(self) -> list[str]:
        return [f"{one} x {other}" for place, one in enumerate(self._names) for other in self._names[place:]]

    def _sum(self, name: str) -> Number:
        return Number(name, (1 << 62) // self._size.sites, SUM_SCALE, is_signed=True)

    def _complete(self, frame: Frame) -> tuple[Float64, RiskSets]:
        """Return the scaled columns of complete rows, and their risk sets.

        Raises:
            Unanswerable: few rows have the event, or a time is not above 0.
        """
        values, times = self._design.values(frame), frame.columns[self._cox.time]
        events = frame.columns[self._cox.event]
        complete = ~(np.isnan(values).any(axis=1) | np.isnan(times) | np.isnan(events))
        values, times, died = values[complete], times[complete], events[complete] == 1
        require_times(times)
        if 0 < died.sum() < self._size.smallest_part:
            raise Unanswerable(f"Only {died.sum()} rows of this hospital have the event {self._cox.event}.")
        return values, RiskSets.of(times, died, self._cox.ties)

    def first_values(self, frame: Frame) -> Float64:
        """Return counts and moments."""
        values, sets = self._complete(frame)
        has_events = len(sets.dying) > 0
        counts = len(values), len(sets.dying), frame.rows - len(values), float(has_events), float(not has_events)
        return np.concatenate([counts, self._design.first_values(values, adds=has_events)])

    def newton_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        """Return likelihood, score and information at the coefficients that follow from the sums."""
        values, sets = self._complete(frame)
        has_events = len(sets.dying) > 0
        found = np.zeros(self._fit)
        if has_events:
            found = self._weighted(values, sets, sums, self._walk(sums).following).likelihood_sums().packed
        own = np.zeros(len(self.newton) - self._fit)
        if len(own) and not sums.newton:
            estimates: tuple[OwnEstimate | None, ...] = (None,) * self._columns
            if has_events:
                estimates = self._own_estimates(values, sets, self._standard(sums).deviations)
            nothing = (0.0, *[VOID] * (len(FIRST_SUMS) - 1))
            own[:] = [number for one in estimates for number in (one.first if one else nothing)]
        return np.concatenate([found, own])

    def last_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        """Return the sums for proportional hazards at the estimates, and those of this site's own estimates."""
        values, sets = self._complete(frame)
        if not len(sets.dying):
            return np.zeros(len(self.last))
        weighted = self._weighted(values, sets, sums, self._walk(sums).following)
        logs = np.clip(np.log(sets.times) / _LOG_UNIT, -2.0, 2.0)
        score, cross = weighted.sums_over_events(logs)
        upper = np.triu_indices(self._columns)
        trend = [score, cross[upper], weighted.sums_over_events(logs**2)[1][upper]]
        if not self._compares:
            return np.concatenate(trend)
        own = self._own_estimates(values, sets, self._standard(sums).deviations)
        pairs = [
            one.second(found.variance) if one and found else (0.0, 0.0)
            for one, found in zip(own, self._differences(sums), strict=True)
        ]
        return np.concatenate([*trend, np.array(pairs).ravel()])

    def has_converged(self, sums: AnnouncedPart) -> bool:
        """Return whether another Newton round would change nothing, or could not help."""
        try:
            self._require_columns(sums)
        except Unanswerable:
            return True
        here = self._walk(sums)
        return bool(sums.newton) and (here.has_converged or here.is_separated)

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        """Return coefficients, hazard ratios, tests and differences between sites."""
        self._require_columns(sums)
        if not sums.newton:
            raise Unanswerable("Few rows of a hospital would decide the sums: remove terms, or join codes.")
        here = self._walk(sums)
        require_estimate(here, self._names)
        counts, is_exact, trend = (
            dict(zip(_COUNTS, sums.first, strict=False)),
            not self._cox.ridge,
            self._trend(sums, here),
        )
        gain = 2.0 * (here.sums.log_likelihood - float(sums.newton[0][0]))
        return {
            "kind": "cox",
            "time": self._cox.time,
            "event": self._cox.event,
            "ties": self._cox.ties,
            "ridge": self._cox.ridge,
            "rows": round(counts["rows"]),
            "rows with a missing value": round(counts["rows with a missing value"]),
            "events": round(counts["events"]),
            "sites": round(counts["sites"]),
            "sites that record it": self._size.sites,
            "sites without events": round(counts["sites without events"]),
            "rounds": len(sums.newton),
            "ratio": "hazard ratio",
            "terms": self._terms(sums, here, trend and trend[0]),
            "log_likelihood": here.sums.log_likelihood if is_exact else None,
            "p": p_of_chi_squared(max(0.0, gain), self._columns) if is_exact else None,
            "proportional_p": trend and trend[1],
        }

    def _terms(self, sums: AnnouncedPart, here: Position, trend: list[float] | None) -> list[dict[str, Any]]:
        """Return a record for each column, in the units of the concepts. `trend` has p values of the columns."""
        per_unit, is_exact, found = self._standard(sums).per_unit, not self._cox.ridge, []
        errors = np.sqrt(np.diagonal(here.sums.covariance)) * per_unit
        for place, name in enumerate(self._names):
            value, error = float(here.following[place] * per_unit[place]), float(errors[place])
            found.append({
                "term": name,
                "estimate": value,
                "error": error if is_exact else None,
                "low": value - TWO_SIDED * error if is_exact else None,
                "high": value + TWO_SIDED * error if is_exact else None,
                "p": p_of_z(value / error) if is_exact else None,
                "deviation": float(1.0 / per_unit[place]),
                "ratio": ratio_of(value),
                "proportional_p": trend and trend[place],
                "between_sites": self._between(sums, place, float(per_unit[place])),
            })  # fmt: skip
        return found

    def own(self, frame: Frame) -> dict[str, Any]:
        """Return for each term the estimate of this site alone, with its interval."""
        return estimates_alone(partial(CoxArithmetic, self._cox, self._concepts), frame, self._size.largest_rows)

    def _require_columns(self, sums: AnnouncedPart) -> None:
        counts = dict(zip(_COUNTS, sums.first, strict=False))
        if counts["sites"] < self._size.fewest_sites:
            raise Unanswerable(
                f"{counts['sites']:.0f} hospitals have at least {max(1, self._size.smallest_part)} patients with the "
                f"event {self._cox.event}, and {self._size.fewest_sites} are needed: choose a longer follow-up or "
                "another event."
            )
        if counts["rows"] < self._rows_needed:
            raise Unanswerable(
                f"The hospitals have {counts['rows']:.0f} complete rows, and {self._columns} columns need "
                f"{self._rows_needed:.0f}: remove terms, or columns with many missing values."
            )
        self._standard(sums)
        if sums.newton:
            information = LikelihoodSums.unpacked(sums.newton[0][: self._fit], self._columns).information
            column = self._design.collinear(information)
            if column is not None:
                raise Unanswerable(f"{column} follows from the other columns of the model: remove it from the terms.")

    @property
    def _rows_needed(self) -> float:
        """Return how many rows the numbers of the first rounds need. Later rounds are too alike to tell more."""
        return self._size.rows_per_unknown * _DISTINCT_ROUNDS * (self._columns + 3) / 2

    def _standard(self, sums: AnnouncedPart) -> Standardised:
        return self._design.standardised(sums.first[len(_COUNTS) :], float(sums.first[0]))

    def _walk(self, sums: AnnouncedPart) -> Position:
        return walk([one[: self._fit] for one in sums.newton], self._columns, self._cox.ridge)

    def _weighted(
        self, values: Float64, sets: RiskSets, sums: AnnouncedPart, coefficients: Float64
    ) -> WeightedRiskSets:
        self._require_columns(sums)
        standard = self._standard(sums)
        if standard.rows - len(values) < self._rows_needed:
            raise Unanswerable("The other hospitals have too few rows.")
        design = (values - standard.means) / standard.deviations
        return WeightedRiskSets(sets, design, coefficients, self._size.smallest_part)

    def _own_estimates(self, values: Float64, sets: RiskSets, units: Float64) -> tuple[OwnEstimate | None, ...]:
        """Return this site's own estimate of each column, for a change by its unit. None without one, or a penalty.

        `values` are the columns in 0..1, float64 (rows, columns), and `units` parts of that range, float64 (columns,).
        """
        nothing = (None,) * self._columns
        deviations = values.std(axis=0)
        if self._cox.ridge or (deviations <= 0.0).any():
            return nothing
        design = (values - values.mean(axis=0)) / deviations
        if self._design.collinear(design.T @ design) is not None:
            return nothing
        here = own_walk(lambda at: WeightedRiskSets(sets, design, at, 1).likelihood_sums(), self._columns)
        if here is None or self._design.collinear(here.sums.information) is not None:
            return nothing
        errors = np.sqrt(np.diagonal(here.sums.covariance))
        found = zip(here.following / deviations * units, errors / deviations * units, strict=True)
        return tuple(OwnEstimate(float(value), float(error)) for value, error in found)

    def _differences(self, sums: AnnouncedPart) -> tuple[BetweenSites | None, ...]:
        if not self._compares:
            return (None,) * self._columns
        own = sums.newton[0][self._fit :].reshape(self._columns, len(FIRST_SUMS))
        # A site without an estimate makes the sums of its column void.
        return tuple(
            between_sites(*map(float, one)) if round(float(one[0])) == self._size.sites else None for one in own
        )

    def _between(self, sums: AnnouncedPart, place: int, per_unit: float) -> dict[str, float] | None:
        """Return Q, I^2 and the random-effects mean of a column, as a ratio for one unit of the concept."""
        found = self._differences(sums)[place]
        if found is None or sums.last is None:
            return None
        weight, weighted = sums.last[len(self.last) - 2 * self._columns :].reshape(self._columns, 2)[place]
        mean = random_effects(float(weight), float(weighted))
        return found.record | OwnEstimate(mean.value * per_unit, mean.error * per_unit).ratio

    def _trend(self, sums: AnnouncedPart, here: Position) -> tuple[list[float], float] | None:
        """Return the p value of each column and of all together. None before the last round, or with a penalty."""
        if sums.last is None or self._cox.ridge:
            return None
        columns, half = self._columns, self._columns * (self._columns + 1) // 2
        score, rest = sums.last[:columns], sums.last[columns:]
        cross, information = symmetric(rest[:half], columns), symmetric(rest[half : 2 * half], columns)
        # The part of the score's variance that the estimates themselves explain is taken out.
        variance = information - cross @ here.sums.covariance @ cross
        if (np.diagonal(variance) <= _LEAST_LEFT * np.diagonal(information)).any():
            return None  # the events have hardly more than one time
        squares = score**2 / np.diagonal(variance)
        whole = float(score @ np.linalg.lstsq(variance, score)[0])
        each = [p_of_chi_squared(max(0.0, float(one)), 1) for one in squares]
        return each, p_of_chi_squared(max(0.0, whole), columns)


def require_survival(time: str, event: str, concepts: tuple[Concept, ...]) -> NumberConcept:
    """Return the concept of the time. Raise ValueError or KeyError if the two are not a time and an event."""
    timed, ended = concept_named(concepts, time), concept_named(concepts, event)
    if isinstance(timed, CodedConcept) or timed.low < 0.0:
        raise ValueError(f"{time} is not a number from 0 on")
    if not isinstance(ended, CodedConcept) or len(ended.codes) != 2:
        raise ValueError(f"{event} does not have two codes, the second of which is the event")
    return timed


def require_times(times: Float64) -> None:
    """Raise Unanswerable if a time, float64 of shape (rows,), is not above 0."""
    wrong = int(np.count_nonzero(times <= 0.0))
    if wrong:
        raise Unanswerable(
            f"{wrong} rows have a time of 0 or below: correct them, or declare what a time of 0 means in the contract."
        )
