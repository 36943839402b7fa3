"""Computes a generalised linear model from sums over sites: binomial, gaussian or poisson, with canonical link.

With `intercept: site` each site solves its own intercept and sends the score and information of the likelihood with
this intercept profiled out (Murphy, van der Vaart 2000). So coefficients, standard errors and p values are those of
one pooled table with an indicator of each site. The rules:

* a site with some complete rows but fewer than `smallest_cell`, or with some rows of an outcome but few, makes the
  model void for all. A site without one of two outcomes adds its rows to the counts and, with an intercept of its own,
  nothing to the model, as in one pooled table;
* rows whose weights are concentrated on few patients answer nothing;
* the other sites have at least `rows_per_unknown` rows for each number that a reader could solve for;
* a step that lowers the likelihood is halved. Without convergence the column that keeps moving is named, and nothing
  is printed.

Sources: McCullagh, Nelder 1989, chapters 2 and 4; Liang, Zeger 1986 for robust errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Any, Final

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    AnnouncedPart,
    Float64,
    Frame,
    Integers,
    Number,
    Regression,
    StudySize,
    Unanswerable,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.alone import estimates_alone
from protos.statistics.design import Design, Standardised
from protos.statistics.distributions import TWO_SIDED, p_of_z, ratio_of
from protos.statistics.intercepts import binomial_intercept, probabilities
from protos.statistics.student import limit_of_t, p_of_t

_CONVERGED: Final = 1e-10  # the largest step, in standardised units, relative to 1 and the coefficient
_LARGEST_TOTAL: Final = 1 << 62
_DISTINCT_ROUNDS: Final = 6  # later rounds are so close to the estimates that their sums tell nothing new
_STILL_MOVING: Final = 0.1  # of the largest step: such columns are named too
_HEAD: Final = 6  # numbers of the first round before those of the design
_RATIOS: Final = {"binomial": "odds ratio", "poisson": "rate ratio"}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """A site's complete rows: design, standardised, (rows, columns), outcomes and offsets (rows,), and patients."""

    design: Float64
    outcomes: Float64
    offsets: Float64
    patients: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class _Position:
    """The best coefficients so far with their sums, and the next coefficients; float64 of shape (unknowns,)."""

    best: Float64
    following: Float64
    likelihood: float
    information: Float64 = field(repr=False)

    @property
    def step(self) -> Float64:
        """Return the next step relative to the coefficients, float64 of shape (unknowns,)."""
        return np.asarray(np.abs(self.following - self.best) / (1.0 + np.abs(self.following)))


class RegressionArithmetic:
    """The arithmetic of one regression; see Arithmetic."""

    def __init__(self, model: Regression, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raises ValueError: the concepts do not fit the model."""
        self._model, self._concepts, self._size = model, concepts, size
        self._design = Design(model.terms, concepts, model.references, size)
        self._outcome = concept_named(concepts, model.outcome)
        self._exposure = None if model.exposure is None else concept_named(concepts, model.exposure)
        self._check()
        self._is_common = model.intercept == "common"
        self._columns = len(self._design.columns)
        self._unknowns = self._columns + self._is_common
        self._used = (*self._design.concepts, model.outcome, *([model.exposure] if model.exposure else []))
        self._upper = np.triu_indices(self._unknowns)

    def _check(self) -> None:
        model, outcome = self._model, self._outcome
        if model.family == "binomial" and not (isinstance(outcome, CodedConcept) and len(outcome.codes) == 2):
            raise ValueError("the outcome of a binomial model has two codes; the second one is the event")
        if model.family != "binomial" and not isinstance(outcome, NumberConcept):
            raise ValueError(f"the outcome of a {model.family} model is a number")
        if model.family == "poisson" and isinstance(outcome, NumberConcept) and outcome.low < 0:
            raise ValueError("the outcome of a poisson model is at least 0")
        if self._exposure is not None and (
            model.family != "poisson" or not isinstance(self._exposure, NumberConcept) or self._exposure.low < 0
        ):
            raise ValueError("exposure is a number from 0, and belongs to a poisson model")
        if {model.outcome, model.exposure} & set(self._design.concepts):
            raise ValueError("the outcome and the exposure cannot be terms")

    @property
    def first(self) -> tuple[Number, ...]:
        """Return rows, sites and moments."""
        rows = self._size.largest_rows
        return (
            Number("rows", rows),
            Number("sites", 1),
            Number("rows with a missing value", rows),
            Number("sum of outcomes", rows * SUM_SCALE, SUM_SCALE),
            Number("squares of outcomes", rows * SUM_SCALE, SUM_SCALE),
            Number("sum of exposures", rows * SUM_SCALE, SUM_SCALE),
            *self._design.first,
        )

    @property
    def newton(self) -> tuple[Number, ...]:
        """Return the log likelihood, the score, and the upper triangle of the information by rows."""
        names = [*(column.name for column in self._design.columns), *(["intercept"] if self._is_common else [])]
        pairs = zip(*self._upper, strict=True)
        return (
            self._number("log likelihood"),
            *(self._number(f"score {name}") for name in names),
            *(self._number(f"information {names[one]} x {names[other]}") for one, other in pairs),
        )

    @property
    def last(self) -> tuple[Number, ...]:
        """Return the numbers of a Newton round at the estimates and, for robust errors, those of the patients."""
        if not self._model.robust:
            return self.newton
        names = self.newton[1 + self._unknowns :]
        outer = (self._number(number.name.replace("information", "patients' scores")) for number in names)
        return (*self.newton, Number("patients", self._size.largest_rows), *outer)

    def _number(self, name: str) -> Number:
        # Twice the site's share, because one site can have most rows; a sum beyond 2**63 is refused by every site.
        return Number(name, _LARGEST_TOTAL // self._size.sites, SUM_SCALE, is_signed=True)

    def first_values(self, frame: Frame) -> Float64:
        """Return the numbers of `first`."""
        places, values = self._complete(frame)
        outcomes, exposures = self._scaled(frame, places)
        adds = self._adds(frame, outcomes)
        head = (
            len(places),
            float(adds),
            frame.rows - len(places),
            outcomes.sum(),
            outcomes @ outcomes,
            exposures.sum(),
        )
        return np.concatenate([head, self._design.first_values(values, adds=adds)])

    def newton_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        """Return the numbers of `newton` at the coefficients that follow from the sums."""
        rows = self._rows(frame, sums)
        if rows is None:
            return np.zeros(len(self.newton))
        return self._at(rows, self._position(sums).following, frame)[0]

    def last_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        """Return the numbers of `last` at the estimates."""
        rows = self._rows(frame, sums)
        if rows is None:
            found = np.zeros(len(self.last))
            if self._model.robust:  # a patient without a score is one of the patients
                found[len(self.newton)] = len(np.unique(frame.patients[self._complete(frame)[0]]))
            return found
        values, scores = self._at(rows, self._position(sums).following, frame)
        if not self._model.robust:
            return values
        patients, owners = np.unique(rows.patients, return_inverse=True)
        together = np.zeros((len(patients), self._unknowns))
        np.add.at(together, owners, scores)
        return np.concatenate([values, [len(patients)], (together.T @ together)[self._upper]])

    def has_converged(self, sums: AnnouncedPart) -> bool:
        """Return whether the next step is tiny, or the sums give no result."""
        try:
            self._standard(sums)
        except Unanswerable:
            return True
        if not sums.newton:
            return False
        position = self._position(sums)
        return bool(position.step.max() < _CONVERGED) or self._collinear(position) is not None

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        """Return the estimates with standard errors, intervals and p values; without the last three under a penalty."""
        standard = self._standard(sums)
        position = self._position(sums)
        if sums.newton:
            if (name := self._collinear(position)) is not None:
                raise Unanswerable(f"{name} follows from the other columns: remove it from the terms.")
            if position.step.max() >= _CONVERGED:
                raise Unanswerable(self._still_moving(position))
        if sums.last is None:
            raise Unanswerable("The run ended before this analysis.")
        covariance, degrees, dispersion = self._covariance(sums, standard, position.following)
        rows, sites, missing, outcomes = sums.first[:4]
        return {
            "kind": "regression",
            "family": self._model.family,
            "outcome": self._model.outcome,
            "intercept": self._model.intercept,
            "ridge": self._model.ridge,
            "robust": self._model.robust,
            "rows": round(rows),
            "rows with a missing value": round(missing),
            "events": round(outcomes) if self._model.family == "binomial" else None,
            "sites": round(sites),
            "sites that record it": self._size.sites,
            "rounds": len(sums.newton),
            "degrees of freedom": degrees,
            "dispersion": None if dispersion is None else float(dispersion * self._outcome_deviation(sums) ** 2),
            "ratio": _RATIOS.get(self._model.family),
            "terms": list(self._terms(sums, standard, position.following, covariance, degrees)),
        }

    def _terms(
        self,
        sums: AnnouncedPart,
        standard: Standardised,
        estimates: Float64,
        covariance: Float64,
        degrees: float | None,
    ) -> Iterator[dict[str, Any]]:
        """Yield a record for each column and a common intercept, in the units of the concepts."""
        estimates, errors = self._in_units(sums, standard, estimates, covariance)
        names = [*(column.name for column in self._design.columns), *(["intercept"] if self._is_common else [])]
        is_exact = self._model.ridge == 0.0
        limit = limit_of_t(degrees) if degrees else TWO_SIDED
        for place, (name, estimate, error) in enumerate(zip(names, estimates.tolist(), errors.tolist(), strict=True)):
            t = estimate / error
            found: dict[str, Any] = {
                "term": name,
                "estimate": estimate,
                "error": error if is_exact else None,
                "low": estimate - limit * error if is_exact else None,
                "high": estimate + limit * error if is_exact else None,
                "p": (p_of_t(t, degrees) if degrees else p_of_z(t)) if is_exact else None,
            }
            if place < self._columns:
                found["deviation"] = float(1.0 / standard.per_unit[place])
                if self._model.family in _RATIOS:
                    found["ratio"] = ratio_of(estimate)
            yield found

    def _in_units(
        self, sums: AnnouncedPart, standard: Standardised, estimates: Float64, covariance: Float64
    ) -> tuple[Float64, Float64]:
        """Return estimates and standard errors in the units of the concepts, float64 (unknowns,) each."""
        scale = np.append(standard.per_unit, [1.0] * self._is_common) * self._outcome_deviation(sums)
        if self._is_common:  # the intercept of columns that were not centred
            move = np.eye(self._unknowns)
            lows = np.array([column.low / (column.high - column.low) for column in self._design.columns])
            move[-1, :-1] = -(standard.means + lows) / standard.deviations
            estimates, covariance = move @ estimates, move @ covariance @ move.T
        estimates = estimates * scale
        if self._is_common and isinstance(self._outcome, NumberConcept) and self._model.family == "gaussian":
            share = float(sums.first[3] / sums.first[0])
            estimates[-1] += self._outcome.low + share * (self._outcome.high - self._outcome.low)
        return estimates, np.sqrt(np.diagonal(covariance)) * scale

    def own(self, frame: Frame) -> dict[str, Any]:
        """Return for each term the estimate of this site alone, with its interval."""
        make = partial(RegressionArithmetic, self._model, self._concepts)
        return estimates_alone(make, frame, self._size.largest_rows)

    def _complete(self, frame: Frame) -> tuple[Integers, Float64]:
        """Return the numbers of the complete rows, and the scaled design of these rows."""
        values = self._design.values(frame)
        is_there = ~np.isnan(values).any(axis=1) & ~np.isnan(frame.columns[self._model.outcome])
        if self._model.exposure is not None:
            is_there &= frame.columns[self._model.exposure] > 0.0
        places = np.flatnonzero(is_there)
        return places, values[places]

    def _scaled(self, frame: Frame, places: Integers) -> tuple[Float64, Float64]:
        """Return outcomes and exposures of these rows in 0..1; outcomes of a poisson model as a part of the largest."""
        own, outcome = frame.columns[self._model.outcome][places], self._outcome
        if isinstance(outcome, NumberConcept):
            low = 0.0 if self._model.family == "poisson" else outcome.low
            own = (own - low) / (outcome.high - low)
        exposures = np.zeros(len(places))
        if isinstance(self._exposure, NumberConcept):
            exposures = frame.columns[self._exposure.name][places] / self._exposure.high
        return np.clip(own, 0.0, 1.0), np.clip(exposures, 0.0, 1.0)

    def _adds(self, frame: Frame, outcomes: Float64) -> bool:
        """Return whether this site's complete rows add to the sums of the model.

        Raises:
            Unanswerable: few rows of this site, or few rows of an outcome, would decide a sum.
        """
        rows, events = len(outcomes), int(np.count_nonzero(outcomes))
        counts = {"gaussian": (rows,), "poisson": (events,), "binomial": (events, rows - events)}[self._model.family]
        if 0 < rows < frame.smallest_cell or any(0 < count < self._size.smallest_part for count in counts):
            raise Unanswerable(f"Too few complete rows of this hospital, or too few with {self._model.outcome}.")
        return rows > 0 and (self._is_common or all(counts))

    def _rows(self, frame: Frame, sums: AnnouncedPart) -> _Rows | None:
        """Return this site's rows, standardised by the announced sums; None if they add nothing."""
        places, values = self._complete(frame)
        outcomes, _ = self._scaled(frame, places)
        if not self._adds(frame, outcomes):
            return None
        standard = self._standard(sums)
        if standard.rows - len(places) < self._rows_needed:
            raise Unanswerable("The other hospitals have too few rows.")
        design = (values - standard.means) / standard.deviations
        if self._is_common:
            design = np.column_stack([design, np.ones(len(places))])
        outcome = self._outcome
        if self._model.family == "gaussian" and isinstance(outcome, NumberConcept):
            mean = sums.first[3] / standard.rows
            outcomes = (outcomes - mean) * (outcome.high - outcome.low) / self._outcome_deviation(sums)
        if self._model.family == "poisson" and isinstance(outcome, NumberConcept):
            outcomes = outcomes * outcome.high
        offsets = np.zeros(len(places))
        if isinstance(self._exposure, NumberConcept):
            offsets = np.log(frame.columns[self._exposure.name][places])
        patients = frame.patients[places]
        return _Rows(design=design, outcomes=outcomes, offsets=offsets, patients=patients)

    @property
    def _rows_needed(self) -> float:
        return self._size.rows_per_unknown * _DISTINCT_ROUNDS * (self._unknowns + 3) / 2

    def _standard(self, sums: AnnouncedPart) -> Standardised:
        rows, sites = sums.first[0], sums.first[1]
        if sites < self._size.fewest_sites:
            raise Unanswerable(
                f"{sites:.0f} hospitals have enough rows and events for this model, and {self._size.fewest_sites} are "
                "needed. Choose another outcome, or a longer time."
            )
        if rows < self._rows_needed:
            raise Unanswerable(
                f"The hospitals have {rows:.0f} complete rows, and {self._columns} columns need "
                f"{self._rows_needed:.0f}. Remove terms, or columns with many missing values."
            )
        if self._outcome_deviation(sums) <= 0.0:
            raise Unanswerable(
                f"{self._model.outcome} hardly varies within its declared range: declare a narrower one."
            )
        return self._design.standardised(sums.first[_HEAD:], rows)

    def _outcome_deviation(self, sums: AnnouncedPart) -> float:
        """Return the deviation of a gaussian outcome in its unit; 1 for others."""
        if self._model.family != "gaussian" or not isinstance(self._outcome, NumberConcept):
            return 1.0
        rows, mean = sums.first[0], sums.first[3] / sums.first[0]
        variance = sums.first[4] / rows - mean * mean
        return sqrt(variance) * (self._outcome.high - self._outcome.low) if variance > 1e-8 else 0.0

    def _start(self, sums: AnnouncedPart) -> Float64:
        """Return the first coefficients: 0, and for a common intercept that of a model without columns."""
        start = np.zeros(self._unknowns)
        if not self._is_common or self._model.family == "gaussian":
            return start
        share = sums.first[3] / sums.first[0]
        start[-1] = np.log(share / (1.0 - share)) if self._model.family == "binomial" else self._log_rate(sums)
        return start

    def _log_rate(self, sums: AnnouncedPart) -> float:
        assert isinstance(self._outcome, NumberConcept)
        total, rows = sums.first[3] * self._outcome.high, sums.first[0]
        exposed = sums.first[5] * self._exposure.high if isinstance(self._exposure, NumberConcept) else rows
        return float(np.log(total / exposed))

    def _at(self, rows: _Rows, coefficients: Float64, frame: Frame) -> tuple[Float64, Float64]:
        """Return a Newton round's numbers, and each row's score with the intercept profiled out, (rows, unknowns)."""
        line, outcomes = rows.design @ coefficients, rows.outcomes
        match self._model.family:
            case "binomial":
                line = line if self._is_common else line + binomial_intercept(line, outcomes)
                fitted = probabilities(line)
                weights = fitted * (1.0 - fitted)
                likelihood = float((outcomes * line - np.logaddexp(0.0, line)).sum())
            case "gaussian":
                fitted = line if self._is_common else line + (outcomes - line).mean()
                weights, likelihood = np.ones_like(line), float(-((outcomes - fitted) ** 2).sum() / 2)
            case "poisson":
                with np.errstate(over="ignore"):
                    fitted = np.exp(line + rows.offsets)
                    if not self._is_common:
                        line = line + np.log(outcomes.sum() / fitted.sum())
                        fitted = np.exp(line + rows.offsets)
                weights, likelihood = fitted, float((outcomes * line - fitted).sum())
        total, squares = float(weights.sum()), float(weights @ weights)
        if not (np.isfinite(total) and total * total >= frame.smallest_cell * squares > 0.0):
            raise Unanswerable("Few rows of this hospital would decide its sums.")
        centred = rows.design if self._is_common else rows.design - (weights @ rows.design) / total
        information = centred.T @ (centred * weights[:, None])
        scores = centred * (outcomes - fitted)[:, None]
        values = np.concatenate([[likelihood], scores.sum(axis=0), information[self._upper]])
        return values, scores

    def _position(self, sums: AnnouncedPart) -> _Position:
        """Return where the walk stands after these sums. Raises Unanswerable: they give no result."""
        self._standard(sums)
        start = self._start(sums)
        here = _Position(best=start, following=start, likelihood=-np.inf, information=np.eye(self._unknowns))
        for values in sums.newton:
            likelihood, score, information = self._penalised(values, here.following)
            if likelihood < here.likelihood - 1e-9 * (1.0 + abs(here.likelihood)):
                middle = (here.best + here.following) / 2
                here = _Position(
                    best=here.best, following=middle, likelihood=here.likelihood, information=here.information
                )
                continue
            scale = np.sqrt(np.maximum(np.diagonal(information), 1e-300))
            scaled = information / np.outer(scale, scale)
            step = np.linalg.lstsq(scaled, score / scale, rcond=1e-13)[0] / scale
            here = _Position(
                best=here.following, following=here.following + step, likelihood=likelihood, information=information
            )
        return here

    def _penalised(self, values: Float64, coefficients: Float64) -> tuple[float, Float64, Float64]:
        size = self._unknowns
        information = np.zeros((size, size))
        information[self._upper] = values[1 + size : 1 + size + len(self._upper[0])]
        information = information + information.T - np.diag(np.diagonal(information))
        ridge = np.full(size, self._model.ridge)
        ridge[self._columns :] = 0.0
        likelihood = float(values[0]) - float(ridge @ coefficients**2) / 2
        return likelihood, values[1 : 1 + size] - ridge * coefficients, information + np.diag(ridge)

    def _collinear(self, position: _Position) -> str | None:
        return self._design.collinear(position.information)

    def _still_moving(self, position: _Position) -> str:
        step = position.step[: self._columns]
        names = [
            column.name
            for column, one in zip(self._design.columns, step, strict=True)
            if one >= _STILL_MOVING * step.max()
        ]
        return (
            f"The coefficient of {', '.join(names)} keeps growing, because its values separate the outcomes or nearly "
            "do: join codes, remove the term, or plan a penalty (ridge)."
        )

    def _covariance(
        self, sums: AnnouncedPart, standard: Standardised, estimates: Float64
    ) -> tuple[Float64, float | None, float | None]:
        """Return the covariance of the standardised estimates, degrees of freedom of t, and a gaussian's variance."""
        assert sums.last is not None
        *_, information = self._penalised(sums.last, estimates)
        inverse = np.asarray(np.linalg.inv(information), np.float64)
        sites = 1.0 if self._is_common else float(sums.first[1])
        degrees = dispersion = None
        if self._model.family == "gaussian":
            degrees = standard.rows - self._columns - sites
            dispersion = -2.0 * float(sums.last[0]) / degrees
            inverse = np.asarray(inverse * dispersion)
        if not self._model.robust:
            return inverse, degrees, dispersion
        place = len(self.newton)
        patients, outer = sums.last[place], np.zeros((self._unknowns, self._unknowns))
        outer[self._upper] = sums.last[place + 1 :]
        outer = outer + outer.T - np.diag(np.diagonal(outer))
        bread = np.linalg.inv(information)
        rows = standard.rows
        correction = patients / (patients - 1.0) * (rows - 1.0) / (rows - self._columns - sites)
        robust = np.asarray(bread @ outer @ bread * correction)
        return robust, degrees and patients - 1.0, dispersion
