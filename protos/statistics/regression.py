"""Computes a generalised linear model from sums over sites: binomial, gaussian or poisson, with canonical link.

With `intercept: site` each site solves its own intercept and sends the score and information of the likelihood with
this intercept profiled out (Murphy, van der Vaart 2000). So coefficients, standard errors and p values are those of
one pooled table with an indicator of each site. The rules:

* a site with some rows but fewer than `smallest_cell`, or with some rows of an outcome but few, makes the
  model void for all. A site without one of two outcomes adds its rows to the counts and, with an intercept of its own,
  nothing to the model, as in one pooled table;
* rows whose weights are concentrated on few patients, or a gaussian's residuals on one, answer nothing;
* with Firth's correction a site computes the leverages of its rows from the information that was announced last. Its
  own intercept is then finite whatever outcomes it has.

Sources: McCullagh, Nelder 1989, chapters 2 and 4; Liang, Zeger 1986 for robust errors; Heinze, Schemper
2002 for Firth's correction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import log, sqrt
from typing import Any, Final

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    AnnouncedPart,
    Float64,
    Frame,
    Number,
    Regression,
    StudySize,
    Unanswerable,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.binned_values import is_of_one_patient
from protos.statistics.design import event_of, rough_moments
from protos.statistics.model import LEAST_WEIGHT, Estimates, ModelArithmetic, ModelRows
from protos.statistics.newton_walk import (
    LikelihoodSums,
    Position,
    binomial_intercept,
    firth_intercept,
    probabilities,
    symmetric,
)

_RATIOS: Final = {"binomial": "odds ratio", "poisson": "rate ratio"}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows(ModelRows):
    """Outcomes in 0..1, or counts of a poisson model, offsets and exposures in 0..1; each (rows,)."""

    outcomes: Float64 = field(repr=False)
    offsets: Float64 = field(repr=False)
    exposures: Float64 = field(repr=False)

    def are_shared(self, weights: Float64, fewest: int) -> bool:
        """Return whether at least `fewest` patients have the weights, counted as (sum w)^2 / sum w^2."""
        total, each = float(weights.sum()), np.bincount(self.patients, weights)
        return bool(np.isfinite(total)) and total * total * (1.0 + 1e-9) >= fewest * float(each @ each) > 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Fitted:
    """Linear predictors of rows with their intercept, means, weights, leverages, all (rows,), and centred columns."""

    line: Float64
    means: Float64
    weights: Float64
    leverages: Float64
    columns: Float64

    def scores(self, outcomes: Float64) -> Float64:
        """Return the score of each row, float64 (rows, unknowns), with Firth's correction by the leverages."""
        errors = outcomes - self.means + self.leverages * (0.5 - self.means)
        return np.asarray(self.columns * errors[:, None])


class RegressionArithmetic(ModelArithmetic[_Rows]):
    """The arithmetic of one regression; see Arithmetic."""

    _people = "patients"

    def __init__(self, model: Regression, concepts: tuple[Concept, ...], size: StudySize) -> None:
        self._model = model
        self._outcome = concept_named(concepts, model.outcome)
        self._exposure = None if model.exposure is None else concept_named(concepts, model.exposure)
        self.ratio = _RATIOS.get(model.family)
        self._is_steep, self._lags = model.family == "poisson", model.firth
        self.unknowns_beside = ("intercept",) if model.intercept == "common" else ()
        super().__init__(model, concepts, size)
        self._check()

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
        if model.outcome == model.exposure or {model.outcome, model.exposure} & set(self._design.concepts):
            raise ValueError("the outcome and the exposure are two concepts, and no terms")
        if model.firth and (model.family != "binomial" or model.ridge or model.robust):
            raise ValueError("firth belongs to a binomial model without ridge and robust")

    @cached_property
    def counted(self) -> tuple[Number, ...]:
        """Rows, sites whose outcome varies, sites with rows, and moments."""
        rows, moments = self._size.largest_rows, ("sum of outcomes", "squares of outcomes", "sum of exposures")
        counts = {"rows": rows, "patients": rows, "sites": 1, "sites that have rows": 1, "rows that take no part": rows}
        counts |= {f"sites with several {name}": 1 for name in ("outcomes", "exposures")}
        sums = (Number(name, rows * SUM_SCALE, SUM_SCALE) for name in moments)
        return (*(Number(name, bound) for name, bound in counts.items()), *sums)

    @cached_property
    def at_the_end(self) -> tuple[Number, ...]:
        """The numbers of a Newton round at the estimates and, for robust errors, those of the patients."""
        fit = self.newton[: self._fit]
        if not self._model.robust:
            return fit
        outer = (self._sum(f"patients' scores {pair}") for pair in self._pairs)
        return (*fit, *outer)

    @property
    def _compares(self) -> bool:
        return super()._compares and not (self._model.firth or self._model.robust)

    @property
    def _against_separation(self) -> str | None:
        if self._model.family != "binomial" or self._model.robust or self._ridge:
            return super()._against_separation
        return None if self._model.firth else "a ridge or Firth's correction with newton_rounds: 30"

    def _fewest_rows(self, frame: Frame) -> int:
        return frame.smallest_cell

    def _rows(self, frame: Frame) -> _Rows:
        values, exposure = self._design.values(frame), self._model.exposure
        outcomes, exposures = self._scaled(frame)
        numbers = (outcomes, exposures) if isinstance(self._outcome, NumberConcept) else ()
        if any(self._design.is_decided(values, frame.patients) for values in numbers):
            raise Unanswerable(f"Few patients of this hospital would decide {self._model.outcome} or the exposure.")
        return _Rows(
            values=values,
            few=self._design.few(values, frame),
            adds=self._adds(frame, outcomes),
            outcomes=outcomes,
            offsets=np.zeros(frame.rows) if exposure is None else np.log(frame.columns[exposure]),
            exposures=exposures,
            patients=frame.patients,
        )

    def _scaled(self, frame: Frame) -> tuple[Float64, Float64]:
        """Return outcomes and exposures in 0..1; outcomes of a poisson model as a part of the largest."""
        own, outcome = frame.columns[self._model.outcome], self._outcome
        if isinstance(outcome, NumberConcept):
            low = 0.0 if self._model.family == "poisson" else outcome.low
            own = (own - low) / (outcome.high - low)
        exposures = np.zeros(frame.rows)
        if isinstance(self._exposure, NumberConcept):
            exposures = frame.columns[self._exposure.name] / self._exposure.high
        return np.clip(own, 0.0, 1.0), np.clip(exposures, 0.0, 1.0)

    def _adds(self, frame: Frame, outcomes: Float64) -> bool:
        """Return whether this site's rows add to the sums of the model.

        Raises:
            Unanswerable: few patients of this site, or few with an outcome, would decide a sum.
        """
        rows, events, others = (
            len(np.unique(frame.patients[which])) for which in (outcomes >= 0, outcomes > 0, outcomes == 0)
        )
        counts = {"gaussian": (rows,), "poisson": (events,), "binomial": (events, others)}[self._model.family]
        if 0 < rows < frame.smallest_cell or any(0 < count < self._size.smallest_part for count in counts):
            raise Unanswerable(f"Too few complete rows of this hospital, or too few with {self._model.outcome}.")
        return rows > 0 and (bool(self.unknowns_beside) or self._model.firth or all(counts))

    def _events(self, rows: _Rows) -> float:
        events, number = int(np.count_nonzero(rows.outcomes)), len(rows.outcomes)
        return {"gaussian": number, "poisson": events, "binomial": min(events, number - events)}[self._model.family]

    def _weighs(self, rows: _Rows, here: LikelihoodSums) -> Float64:
        found = super()._weighs(rows, here)
        if self._model.family == "gaussian":  # whether its outcome varies here
            found[0] = -2.0 * here.log_likelihood >= LEAST_WEIGHT * len(rows.outcomes)
        return found

    def _counts(self, frame: Frame, rows: _Rows) -> list[float]:
        outcomes, number = rows.outcomes, len(rows.values)
        differ = rows.adds and len(np.unique(outcomes)) > 1
        varies = differ if isinstance(self._outcome, NumberConcept) else rows.adds
        is_scale = self._model.family == "gaussian"  # and no number of events
        total, squares = rough_moments(outcomes) if is_scale else (float(outcomes.sum()), float(outcomes @ outcomes))
        patients, lacking = len(np.unique(rows.patients)), frame.rows + frame.left_out - number
        exposed = rows.adds and rows.offsets.std() > LEAST_WEIGHT
        exposures = float(rows.exposures.sum())
        return [number, patients, varies, number > 0, lacking, differ, exposed, total, squares, exposures]

    def means(self, sums: AnnouncedPart) -> dict[str, float]:
        """Return also the mean of the exposure, and of a gaussian's outcome."""
        found, rows, outcome, exposure = super().means(sums), self._count(sums, "rows"), self._outcome, self._exposure
        if isinstance(exposure, NumberConcept):
            found[exposure.name] = self._count(sums, "sum of exposures") / rows * exposure.high
        if isinstance(outcome, NumberConcept) and self._model.family == "gaussian":
            width = outcome.high - outcome.low
            found[outcome.name] = outcome.low + width * self._count(sums, "sum of outcomes") / rows
        return found

    def _require_counts(self, sums: AnnouncedPart) -> None:
        super()._require_counts(sums)
        events, rows = self._count(sums, "sum of outcomes"), self._count(sums, "rows")
        if self._model.family != "gaussian" and not 0 < events < (rows if self._model.family == "binomial" else np.inf):
            raise Unanswerable(f"All patients have the same {self._model.outcome}: choose another outcome.")
        if self._outcome_unit(sums) <= 0.0:
            raise Unanswerable(
                f"{self._model.outcome} hardly varies within its declared range: declare a narrower one."
            )

    def _outcome_unit(self, sums: AnnouncedPart) -> float:
        if self._model.family != "gaussian" or not isinstance(self._outcome, NumberConcept):
            return 1.0
        rows, total = self._count(sums, "rows"), self._count(sums, "sum of outcomes")
        variance = (self._count(sums, "squares of outcomes") - total * total / max(rows, 1.0)) / max(rows, 1.0)
        return sqrt(variance) * (self._outcome.high - self._outcome.low) if variance > 1e-8 else 0.0

    def _start(self, sums: AnnouncedPart) -> Float64:
        """Return the first coefficients: 0, and for a common intercept that of a model without columns."""
        start = np.zeros(self._unknowns)
        if not self.unknowns_beside or self._model.family == "gaussian":
            return start
        total, rows = self._count(sums, "sum of outcomes"), self._count(sums, "rows")
        if isinstance(self._outcome, NumberConcept):
            exposures = self._count(sums, "sum of exposures")
            exposed = exposures * self._exposure.high if isinstance(self._exposure, NumberConcept) else rows
            start[-1] = log(total * self._outcome.high / exposed)
        else:
            start[-1] = log(total / (rows - total))
        return start

    def _outcomes(self, rows: _Rows, sums: AnnouncedPart) -> Float64:
        """Return outcomes, float64 (rows,): 0 and 1, counts, or standardised by the announced sums."""
        if not isinstance(self._outcome, NumberConcept):
            return rows.outcomes
        if self._model.family == "poisson":
            return rows.outcomes * self._outcome.high
        mean = self._count(sums, "sum of outcomes") / self._count(sums, "rows")
        return (rows.outcomes - mean) * (self._outcome.high - self._outcome.low) / self._outcome_unit(sums)

    def _sums_at(self, rows: _Rows, design: Float64, at: Float64, fewest: int, sums: AnnouncedPart) -> LikelihoodSums:
        outcomes = self._outcomes(rows, sums)
        fitted = self._fitted(rows, design, at, fewest, sums)
        match self._model.family:
            case "binomial":
                likelihood = float((outcomes * fitted.line - np.logaddexp(0.0, fitted.line)).sum())
            case "gaussian":
                likelihood = float(-((outcomes - fitted.means) ** 2).sum() / 2)
            case "poisson":
                likelihood = float((outcomes * fitted.line - fitted.means).sum())
        information = fitted.columns.T @ (fitted.columns * fitted.weights[:, None])
        score = fitted.scores(outcomes).sum(axis=0)
        return LikelihoodSums(log_likelihood=likelihood, score=score, information=information)

    def _fitted(self, rows: _Rows, design: Float64, at: Float64, fewest: int, sums: AnnouncedPart) -> _Fitted:
        """Return the fit at coefficients, with the own intercept that has the largest likelihood unless it is common.

        Raises:
            Unanswerable: fewer than about `fewest` rows have all the weight.
        """
        line, outcomes, is_common = design @ at, self._outcomes(rows, sums), design.shape[1] > self._columns
        spread = self._spread(sums)
        with np.errstate(over="ignore", invalid="ignore"):
            match self._model.family:
                case "binomial" if not is_common and self._model.firth:
                    line = line + firth_intercept(line, outcomes, design, spread)
                case "binomial" if not is_common:
                    line = line + binomial_intercept(line, outcomes)
                case "gaussian" if not is_common:
                    line = line + (outcomes - line).mean()
                case "poisson" if not is_common:
                    line = line + np.log(outcomes.sum() / np.exp(line + rows.offsets).sum())
            means, weights = self._mean(line, rows)
        errors = outcomes - means if self._model.family == "gaussian" and self._size.smallest_part > 1 else line[:0]
        if not rows.are_shared(weights, fewest) or is_of_one_patient(errors, rows.patients[: len(errors)]):
            raise Unanswerable("Few patients of this hospital would decide its sums.")
        total = float(weights.sum())
        columns = design if is_common else design - (weights @ design) / total
        leverages = np.zeros(len(line))
        if spread is not None:
            own = 0.0 if is_common else 1.0 / total
            leverages = weights * (own + np.einsum("ij,jk,ik->i", columns, spread, columns))
            if not rows.are_shared(leverages, fewest):
                raise Unanswerable("Few patients of this hospital would decide the correction.")
        return _Fitted(line=line, means=means, weights=weights, leverages=leverages, columns=columns)

    def _mean(self, line: Float64, rows: _Rows) -> tuple[Float64, Float64]:
        match self._model.family:
            case "binomial":
                means = probabilities(line)
                return means, means * (1.0 - means)
            case "gaussian":
                return line, np.ones_like(line)
            case "poisson":
                means = np.exp(line + rows.offsets)
                return means, means

    def _spread(self, sums: AnnouncedPart) -> Float64 | None:
        """Return the inverse of the information that was announced last, for Firth's correction; None without it."""
        if not (self._model.firth and len(sums.newton) > 1):
            return None
        found = LikelihoodSums.unpacked(sums.newton[-1][: self._fit], self._unknowns)
        if self._design.collinear(found.information) is not None:
            raise Unanswerable("The announced information has no inverse.")
        return found.covariance

    def _at_the_end(self, frame: Frame, rows: _Rows, sums: AnnouncedPart) -> Float64:
        if not rows.adds:
            return np.zeros(len(self.at_the_end))
        design, at, fewest = self._standard_rows(rows, sums), self._walk(sums).following, self._fewest_rows(frame)
        values = self._sums_at(rows, design, at, fewest, sums).packed
        if not self._model.robust:
            return values
        scores = self._fitted(rows, design, at, fewest, sums).scores(self._outcomes(rows, sums))
        patients, owners = np.unique(rows.patients, return_inverse=True)
        together = np.zeros((len(patients), self._unknowns))
        np.add.at(together, owners, scores)
        places = np.arange(len(patients))
        if self._size.smallest_part > 1 and any(is_of_one_patient(one, places) for one in together.T):
            raise Unanswerable("One patient of this hospital would decide the robust errors.")
        return np.concatenate([values, (together.T @ together)[self._upper]])

    def _own_variance(self, rows: _Rows, fitted: LikelihoodSums) -> float:
        left = len(rows.values) - self._columns - 1
        if self._model.family != "gaussian":
            return 1.0
        return -2.0 * fitted.log_likelihood / left if left > 0 else np.inf

    def _estimates(self, sums: AnnouncedPart, here: Position) -> Estimates:
        standard, covariance, degrees = self._standard(sums), *self._covariance(sums)
        estimates, per_unit = here.following, np.append(standard.per_unit, [1.0] * len(self.unknowns_beside))
        scale = per_unit * self._outcome_unit(sums)
        if self.unknowns_beside:  # the intercept of columns that were not centred
            move = np.eye(self._unknowns)
            lows = np.array([column.low / (column.high - column.low) for column in self._design.columns])
            move[-1, :-1] = -(standard.means + lows) / standard.deviations
            estimates, covariance = move @ estimates, move @ covariance @ move.T
        estimates = estimates * scale
        if self.unknowns_beside and isinstance(self._outcome, NumberConcept) and self._model.family == "gaussian":
            share = self._count(sums, "sum of outcomes") / self._count(sums, "rows")
            estimates[-1] += self._outcome.low + share * (self._outcome.high - self._outcome.low)
        return Estimates(values=estimates, covariance=covariance * np.outer(scale, scale), degrees=degrees)

    def _dispersion(self, sums: AnnouncedPart) -> tuple[float, float] | None:
        """Return a gaussian's residual degrees of freedom and variance, in standardised units."""
        if self._model.family != "gaussian" or sums.last is None:
            return None
        degrees = self._count(sums, "rows") - self._parameters(sums)
        if degrees <= 0.0:
            raise Unanswerable("The model has as many coefficients as rows.")
        return degrees, -2.0 * float(sums.last[0]) / degrees

    def _parameters(self, sums: AnnouncedPart) -> float:
        return self._columns + (1.0 if self.unknowns_beside else self._count(sums, "sites that have rows"))

    def _covariance(self, sums: AnnouncedPart) -> tuple[Float64, float | None]:
        """Return the covariance of the standardised estimates, and degrees of freedom of t."""
        assert sums.last is not None
        fit = LikelihoodSums.unpacked(sums.last[: self._fit], self._unknowns)
        bread = fit.penalised(np.zeros(self._unknowns), self._walk_of(sums).ridges).covariance
        residual = self._dispersion(sums)
        if not self._model.robust:
            return (bread, None) if residual is None else (bread * residual[1], residual[0])
        patients, outer = self._count(sums, "patients"), symmetric(sums.last[self._fit :], self._unknowns)
        if patients <= 1.0:
            raise Unanswerable("Robust errors need several patients.")
        rows = self._count(sums, "rows")
        correction = patients / (patients - 1.0) * (rows - 1.0) / (rows - self._parameters(sums))
        return np.asarray(bread @ outer @ bread * correction), None if residual is None else patients - 1.0

    def _record(self, sums: AnnouncedPart, here: Position) -> dict[str, Any]:  # noqa: ARG002
        model, residual, events = self._model, self._dispersion(sums), self._count(sums, "sum of outcomes")
        exposed = self._count(sums, "sum of exposures") * getattr(self._exposure, "high", 0.0)
        return {
            "kind": "regression",
            "family": model.family,
            "outcome": event_of(model.outcome, self._concepts),
            "intercept": model.intercept,
            "exposure": model.exposure,
            "robust": model.robust,
            "patients": round(self._count(sums, "patients")) if model.robust else None,
            "firth": model.firth,
            "events": round(events * getattr(self._outcome, "high", 1.0)) if model.family != "gaussian" else None,
            "total exposure": exposed or None,
            "unit": getattr(self._exposure, "unit", None) or model.exposure,
            "degrees of freedom": residual and (self._covariance(sums)[1] if model.robust else residual[0]),
            "dispersion": residual and residual[1] * self._outcome_unit(sums) ** 2,
        }
