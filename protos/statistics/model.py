"""What regressions and Cox models have in common: rounds, standardised columns, estimates, tests, differences of sites.

A site sends log likelihood, score and information of its rows at the coefficients that follow from the sums so far. The
rules:

* the other sites have at least `rows_per_unknown` patients for each number that a reader could solve for;
* columns that follow from others or separate the outcomes are named, and nothing is printed (newton_walk.py);
* the first Newton round only counts the sites in which an outcome and each column has weight: where others hardly have
  any, sums would be those of one site;
* with a penalty, nothing is printed but the estimates;
* a site's own estimates enter sums, which are printed only if too many sites have some for a reader to solve for them.

A site's own estimate b of a coefficient has the weight w = 1 / error^2. The first sums are of 1, w, w^2, w b and
w b^2. They give the variance between sites, which all programs compute. With it each site sends v and v b with
v = 1 / (error^2 + variance). A site with an own estimate has two unknowns at each other site, and six equations: with
four other sites or more it cannot solve them, so fewer than FEWEST_ESTIMATES estimates print nothing. The equations of
several models together could be solved, so only the first model of a plan has them. Sources: Cochran 1954; Higgins,
Thompson 2002; DerSimonian, Laird 1986.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, groupby
from typing import Any, Final, Generic, TypeVar

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    VOID,
    AnnouncedPart,
    Arithmetic,
    Float64,
    Frame,
    Integers,
    Model,
    Number,
    StudySize,
    Unanswerable,
)
from protos.plan.concepts import Concept
from protos.statistics.binned_values import are_few, beside_commonest
from protos.statistics.design import Design, Standardised, in_words, spline_column
from protos.statistics.distributions import TWO_SIDED, chi_squared_test, limit_of_t, p_of_chi_squared, p_of_f, ratio_of
from protos.statistics.newton_walk import LikelihoodSums, Position, Walk, own_walk, require_estimate

FEWEST_ESTIMATES: Final = 5
FIRST_SUMS: Final = ("count", "weight", "squared", "weighted", "square")
_LEAST_SPREAD: Final = 0.25  # deviations of all sites' values that one site's must have beside a common intercept
_FARTHEST: Final = 2.0  # own deviations by which its mean may be off, or powers of the column would show its outcomes
LEAST_WEIGHT: Final = 1.0 / 64.0  # of a column at a site, as a part of what as many events would give elsewhere
_LARGEST_Z: Final = 40.0  # of an own estimate; a larger one is no estimate of a few patients


@dataclass(frozen=True)
class OwnEstimate:
    """An estimate of one coefficient, and its standard error."""

    value: float
    error: float

    @property
    def first(self) -> tuple[float, ...]:
        """Return the site's numbers in the first sums, in the order of FIRST_SUMS."""
        weight = 1.0 / self.error**2
        return 1.0, weight, weight**2, weight * self.value, weight * self.value**2

    def second(self, variance: float) -> tuple[float, float]:
        """Return the site's numbers in the second sums, for an announced variance between sites."""
        weight = 1.0 / (self.error**2 + variance)
        return weight, weight * self.value


def between_sites(
    count: float, weights: float, squares: float, first: float, second: float
) -> tuple[dict[str, float], float] | None:
    """Return what is printed and the variance between sites, from the sums of FIRST_SUMS. None with too few estimates.

    Printed are the sites with an own estimate, Q with its p value, for equal coefficients at all sites, and I^2, the
    share of the variation of estimates that is not chance. The variance is DerSimonian and Laird's.
    """
    sites = round(count)
    if sites < FEWEST_ESTIMATES or weights <= 0.0:
        return None
    q, degrees = max(0.0, second - first**2 / weights), sites - 1
    scale, share = weights - squares / weights, max(0.0, 1.0 - degrees / q) if q > 0.0 else 0.0
    printed = {"sites": sites, "q": q, "p": p_of_chi_squared(q, degrees), "i_squared": share}
    return printed, max(0.0, (q - degrees) / scale) if scale > 0.0 else 0.0


_DISTINCT_ROUNDS: Final = 6  # later rounds are so close to the estimates that their sums tell nothing new
_NOT_ANSWERED: Final = "Few rows of a hospital or for an unknown: remove terms, join codes or lower rows_per_unknown."


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRows:
    """A site's complete rows: columns in 0..1, float64 (rows, columns), patients, and whether they add to the sums.

    `few` says of each column whether few patients would decide it.
    """

    values: Float64 = field(repr=False)
    few: list[bool] = field(repr=False)
    patients: Integers = field(repr=False)
    adds: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimates:
    """Estimates in the units of the concepts, float64 (unknowns,), their covariance, and degrees of freedom of t."""

    values: Float64 = field(repr=False)
    covariance: Float64 = field(repr=False)
    degrees: float | None = None

    def contrast(self, weights: Float64) -> dict[str, float]:
        """Return a weighted sum of the estimates with error, interval and p value. `weights` are (unknowns,)."""
        value, error = float(weights @ self.values), float(np.sqrt(weights @ self.covariance @ weights))
        if not error > 0.0:
            raise Unanswerable("The model fits without any residual, so its coefficients have no errors.")
        reach = (limit_of_t(self.degrees) if self.degrees else TWO_SIDED) * error
        square = value**2 / error**2
        p = p_of_f(square, 1, self.degrees) if self.degrees else p_of_chi_squared(square, 1)
        return {"estimate": value, "error": error, "low": value - reach, "high": value + reach, "p": p}

    def joint(self, places: list[int]) -> dict[str, float]:
        """Return Wald's test of whether all coefficients at these places are 0, as F if the errors are those of t."""
        values, errors = self.values[places], np.sqrt(np.diagonal(self.covariance)[places])
        correlation = self.covariance[np.ix_(places, places)] / np.outer(errors, errors)
        found = float(values / errors @ np.linalg.solve(correlation, values / errors))
        if not self.degrees:
            return chi_squared_test(found, len(places))
        f, number = found / len(places), len(places)
        return {"f": f, "degrees": number, "residual_degrees": self.degrees, "p": p_of_f(f, number, self.degrees)}


Rows = TypeVar("Rows", bound=ModelRows)


class ModelArithmetic(Arithmetic, Generic[Rows]):
    """Implements protos.plan.analyses.Arithmetic but for what a kind of model adds."""

    ratio: str | None = None  # what the exponential of an estimate is
    unknowns_beside: tuple[str, ...] = ()  # coefficients that are no column, without penalty
    _is_steep = True  # whether the weight of a row grows exponentially with its columns
    _lags = False  # as in Walk
    _people = "rows"  # which of `counted` are patients

    def __init__(self, model: Model, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raises ValueError or KeyError: the concepts do not fit the model."""
        self._document, self._size, self._concepts = model, size, concepts
        self._splines, self._ridge = model.splines, model.ridge
        self._design = Design(model, concepts, size)
        self._columns = len(self._design.columns)
        self._names = [*(column.name for column in self._design.columns), *self.unknowns_beside]
        self._unknowns = len(self._names)
        self._fit = LikelihoodSums.length(self._unknowns)
        self._upper = np.triu_indices(self._unknowns)

    # What a kind of model adds.

    @property
    @abstractmethod
    def counted(self) -> tuple[Number, ...]:
        """Return the numbers of the first round before the moments of the columns. One has the name rows."""

    @abstractmethod
    def _rows(self, frame: Frame) -> Rows:
        """Return the complete rows. Raises Unanswerable: few of them would decide a sum."""

    @abstractmethod
    def _counts(self, frame: Frame, rows: Rows) -> list[float]:
        """Return the values of `counted`."""

    @abstractmethod
    def _events(self, rows: Rows) -> float:
        """Return about the information that a column with the deviation of all sites would have at this site."""

    @abstractmethod
    def _sums_at(self, rows: Rows, design: Float64, at: Float64, fewest: int, sums: AnnouncedPart) -> LikelihoodSums:
        """Return the sums at coefficients. Raises Unanswerable: fewer than about `fewest` rows have all the weight."""

    @property
    @abstractmethod
    def at_the_end(self) -> tuple[Number, ...]:
        """Return the numbers of the last round before those of own estimates."""

    @abstractmethod
    def _at_the_end(self, frame: Frame, rows: Rows, sums: AnnouncedPart) -> Float64:
        """Return the values of `at_the_end`."""

    @abstractmethod
    def _estimates(self, sums: AnnouncedPart, here: Position) -> Estimates:
        """Return the estimates in the units of the concepts."""

    @abstractmethod
    def _record(self, sums: AnnouncedPart, here: Position) -> dict[str, Any]:
        """Return what is printed of a kind of model beside counts and terms."""

    def _start(self, sums: AnnouncedPart) -> Float64:  # noqa: ARG002
        return np.zeros(self._unknowns)

    def _outcome_unit(self, sums: AnnouncedPart) -> float:  # noqa: ARG002
        """Return what a standardised outcome of 1 is in the unit of its concept."""
        return 1.0

    def _own_variance(self, rows: Rows, fitted: LikelihoodSums) -> float:  # noqa: ARG002
        """Return the variance of an outcome around one site's own fit."""
        return 1.0

    def _fewest_rows(self, frame: Frame) -> int:  # noqa: ARG002
        return self._size.smallest_part

    @property
    def _against_separation(self) -> str | None:
        return None if self._ridge else "a ridge"

    @property
    def _compares(self) -> bool:
        """Return whether so many sites take part that nobody can solve the sums of own estimates for one of them."""
        return (
            self._size.compares
            and not self._ridge
            and self._size.sites >= max(FEWEST_ESTIMATES, self._size.fewest_sites + 2)
        )

    def _require_counts(self, sums: AnnouncedPart) -> None:
        sites, fewest, part = self._count(sums, "sites"), self._size.fewest_sites, max(1, self._size.smallest_part)
        if sites < fewest:
            raise Unanswerable(
                f"{sites:.0f} hospitals have enough rows for this model, with events of at least {part} patients, and "
                f"{fewest} hospitals are needed: choose another outcome, or a longer time."
            )
        for name in (one.name for one in self.counted if one.name.startswith("sites with several")):
            if are_few(np.array(self._count(sums, name)), self._size):
                alone = name.removeprefix("sites with ")
                raise Unanswerable(f"One or two hospitals alone have {alone}: choose another outcome, or no exposure.")

    # The three occasions.

    @cached_property
    def first(self) -> tuple[Number, ...]:
        """Counts, and the moments of the columns."""
        return (*self.counted, *self._design.first, *self._design.cells)

    @cached_property
    def newton(self) -> tuple[Number, ...]:
        """Log likelihood, score, information, with own estimates in the second round; in the first counts of sites."""
        own = (f"own {kind} {name}" for name in self._names[: self._columns] for kind in FIRST_SUMS if self._compares)
        fit = tuple(self._sum(name) for name in ("log likelihood", *self._names, *self._pairs))
        # A squared weight is at most the square of a number of rows or events, and its sum stays below 2**62.
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
        """The numbers of the kind of model, then two sums for each column's random effect."""
        own = [f"own {kind} {name}" for name in self._names[: self._columns] for kind in ("weight", "weighted")]
        return self.at_the_end + tuple(self._sum(name) for name in own if self._compares)

    @property
    def _pairs(self) -> list[str]:
        return [f"{one} x {other}" for place, one in enumerate(self._names) for other in self._names[place:]]

    def _sum(self, name: str) -> Number:
        return Number(name, (1 << 62) // self._size.sites, SUM_SCALE, is_signed=True)

    def first_values(self, frame: Frame) -> Float64:
        rows = self._rows(frame)
        moments = self._design.first_values(rows.few, rows.values, rows.patients, adds=rows.adds)
        cells = rows.adds * np.array(self._design.cell_values(frame))
        return np.concatenate([self._counts(frame, rows), moments, cells])

    def newton_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        rows, found = self._rows(frame), np.zeros(self._fit)
        if rows.adds:
            at = self._walk(sums).following
            here = self._sums_at(rows, self._standard_rows(rows, sums), at, self._fewest_rows(frame), sums)
            found = here.packed if sums.newton else self._weighs(rows, here)
        own = np.zeros(len(self.newton) - self._fit)
        if len(own) and len(sums.newton) == 1:
            own[:] = [number for one in self._own_estimates(rows, sums) for number in self._as_sums(one)]
        return np.concatenate([found, own])

    def _weighs(self, rows: Rows, here: LikelihoodSums) -> Float64:
        """Return 1 for the outcome and for each column that has weight here, (fit,), from the sums at the start."""
        found, least = np.zeros(self._fit), LEAST_WEIGHT * max(self._size.smallest_part, self._events(rows))
        found[0] = 1.0
        found[1 : 1 + self._columns] = np.diagonal(here.information)[: self._columns] >= least
        return found

    def _as_sums(self, one: OwnEstimate | None) -> tuple[float, ...]:
        # A weight beyond the bounds of its sums is that of a perfect fit, and no estimate; nor is one too far from 0.
        # A site without an estimate makes the sums void: zeros would show the estimates of few sites.
        is_perfect = one is not None and one.error**2 * self._size.largest_rows < 1.0
        if one is None or is_perfect or abs(one.value) > _LARGEST_Z * one.error:
            return (0.0, *[VOID] * (len(FIRST_SUMS) - 1))
        return one.first

    def last_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:
        rows = self._rows(frame)
        found = self._at_the_end(frame, rows, sums)
        if not self._compares:
            return found
        pairs = [
            one.second(between[1]) if one and between else (0.0, 0.0)
            for one, between in zip(self._own_estimates(rows, sums), self._differences(sums), strict=True)
        ]
        return np.concatenate([found, np.array(pairs).ravel()])

    def has_converged(self, sums: AnnouncedPart) -> bool:
        try:
            self._require(sums)
        except Unanswerable:
            return True
        if len(sums.newton) < 2:
            return False
        here = self._walk(sums)
        return here.has_converged or here.separated is not None

    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        self._require(sums)
        if len(sums.newton) < 2:
            raise Unanswerable(_NOT_ANSWERED)
        here = self._walk(sums)
        require_estimate(here, self._names[: self._columns], self._against_separation)
        if sums.last is None:
            raise Unanswerable(_NOT_ANSWERED)
        found = self._estimates(sums, here)
        head = {
            "rows": round(self._count(sums, "rows")),
            "rows that take no part": round(self._count(sums, "rows that take no part")),
            "sites": round(self._count(sums, "sites")),
            "sites that record it": self._size.sites,
            "rounds": len(sums.newton) - 1,
            "ridge": self._ridge,
            "ratio": self.ratio,
        }
        terms = [self._term(sums, found, place) for place in range(self._unknowns)]
        tests, curves = ([], []) if self._ridge else (list(self._tests(found)), list(self._curved(found)))
        return head | self._record(sums, here) | {"terms": terms, "tests": tests, "splines": curves}

    # How a term is printed.

    def _term(self, sums: AnnouncedPart, found: Estimates, place: int) -> dict[str, Any]:
        one: dict[str, Any] = {"term": self._names[place], **found.contrast(np.eye(self._unknowns)[place])}
        if self._ridge:
            one |= dict.fromkeys(("error", "low", "high", "p"))
        if place < self._columns:
            per_unit = float(self._standard(sums).per_unit[place])
            one["scale"] = self._design.columns[place].scale
            one |= {"ridge_unit": 1.0 / per_unit} if self._ridge else {}
            is_alone = one["scale"] != ""  # a column of a spline alone says nothing
            one["between_sites"] = self._between(sums, place, per_unit * self._outcome_unit(sums)) if is_alone else None
            if self.ratio is not None and is_alone:
                one["ratio"] = ratio_of(one["estimate"])
        return one

    def _tests(self, found: Estimates) -> Iterator[dict[str, Any]]:
        for term, group in groupby(enumerate(self._design.columns), key=lambda one: one[1].term):
            own = list(group)
            places = [place for place, _ in own]
            curved = [place for place, one in own if any(each.knots and each.place for each in one.factors)]
            if len(places) > 1:
                yield {"term": term, **found.joint(places)}
            if curved:
                yield {"term": f"{term}, not a straight line", **found.joint(curved)}

    def _curved(self, found: Estimates) -> Iterator[dict[str, Any]]:
        for name, knots in self._splines.items():
            if not (places := [place for place, column in enumerate(self._design.columns) if column.term == name]):
                continue  # in products alone
            at = np.array(knots)
            basis = np.stack([spline_column(at, knots, place) for place in range(len(places))], axis=1)
            middle, rows, zero = len(knots) // 2, [], dict.fromkeys(("estimate", "low", "high"), 0.0)
            for knot, moved in zip(knots, basis - basis[middle], strict=True):
                weights = np.zeros(self._unknowns)
                weights[places] = moved
                ends = found.contrast(weights) if moved.any() else zero
                rows.append({"value": knot, **{key: ends[key] for key in zero}})
            yield {"concept": name, "reference": knots[middle], "at": rows}

    def own(self, frame: Frame) -> dict[str, Any]:
        one = replace(self._size, sites=1, fewest_sites=1, smallest_cell=1, smallest_part=1, rows_per_unknown=0.0)
        alone, own = type(self)(self._document, self._concepts, one), replace(frame, smallest_cell=1)
        sums = AnnouncedPart(first=alone.first_values(own))
        while not alone.has_converged(sums) and len(sums.newton) < 25:  # else without an estimate
            sums = replace(sums, newton=(*sums.newton, alone.newton_values(own, sums)))
        terms = alone.result(replace(sums, last=alone.last_values(own, sums)))["terms"]
        kept = "estimate", "low", "high"
        return {term["term"]: {key: term[key] for key in kept} for term in terms if term["low"] is not None}

    def means(self, sums: AnnouncedPart) -> dict[str, float]:
        found, rows, start = {}, self._count(sums, "rows"), len(self.counted)
        moments = sums.first[start : start + len(self._design.first)].reshape(-1, 4)
        for one, (_, few, total, _) in zip(self._design.columns, moments, strict=True):
            if one.name in self._design.concepts and not few:
                found[one.name] = float(one.low + (one.high - one.low) * total / rows)
        return found

    # What follows from the sums.

    def _count(self, sums: AnnouncedPart, name: str) -> float:
        return float(next(value for one, value in zip(self.counted, sums.first, strict=False) if one.name == name))

    def _require(self, sums: AnnouncedPart) -> None:
        """Raise Unanswerable if the sums so far give no model."""
        self._require_counts(sums)
        if (patients := self._count(sums, self._people)) < self._needed:
            raise Unanswerable(
                f"The hospitals have {patients:.0f} patients with complete rows, and {self._columns} columns need "
                f"{self._needed:.0f}: remove terms, or columns with many missing values."
            )
        names = [one.name.removeprefix("sites that have ") for one in self._design.cells]
        sites = sums.first[len(sums.first) - len(names) :]
        if absent := {*compress(names, sites == 0.0)} & self._design.references:
            told = "with which others are compared: name another code in `references`, or correct the codes."
            raise Unanswerable(f"No hospital has {in_words(sorted(absent))}, {told}")
        self._standard(sums)
        if (rare := are_few(sites, self._size)).any():
            cells = in_words(compress(names, rare))
            raise Unanswerable(f"One or two hospitals have {cells}: join codes, or remove the term.")
        if sums.newton and (light := sums.newton[0][: 1 + self._columns] < self._size.fewest_sites - 0.5).any():
            words = in_words(compress(("the outcome", *self._names), light))
            few = f"Fewer than {self._size.fewest_sites} hospitals have more than a trace of the weight of {words}"
            raise Unanswerable(f"{few}, so sums would be theirs: remove such a term, or correct its unit.")
        if len(sums.newton) > 1:
            first = LikelihoodSums.unpacked(sums.newton[1][: self._fit], self._unknowns).information
            if (columns := self._design.collinear(first + np.diag(self._walk_of(sums).ridges))) is not None:
                raise Unanswerable(f"Of {columns}, one follows from the others or the hospital: remove it.")

    @property
    def _needed(self) -> float:
        return self._size.rows_per_unknown * _DISTINCT_ROUNDS * (self._unknowns + 3) / 2

    def _standard(self, sums: AnnouncedPart) -> Standardised:
        moments = sums.first[len(self.counted) : len(self.counted) + len(self._design.first)]
        return self._design.standardised(moments, self._count(sums, "rows"))

    def _standard_rows(self, rows: Rows, sums: AnnouncedPart) -> Float64:
        """Return the standardised design. Raises Unanswerable: the other sites have too few rows, or this one."""
        if any(rows.few):  # whatever is announced; the own reason comes first
            few = [beside_commonest(values, rows.patients) for values in rows.values.T]
            told = (
                f"{name} ({n})" if n < self._size.smallest_part else name
                for name, n in zip(self._names, few, strict=False)
            )
            words = in_words(compress(told, rows.few))
            raise Unanswerable(f"Few patients of this hospital, or one, would decide sums of {words}.")
        self._require(sums)
        standard = self._standard(sums)
        if self._count(sums, self._people) - len(np.unique(rows.patients)) < self._needed:
            raise Unanswerable("The other hospitals have too few patients.")
        design = (rows.values - standard.means) / standard.deviations
        if self._design.beside and len(design):
            far, own = np.abs(design.mean(axis=0)), design.std(axis=0)
            apart = self._design.are_numbers & ((own < _LEAST_SPREAD) | (far > _FARTHEST * own))
            if apart.any():
                words = in_words(compress(self._names, apart))
                raise Unanswerable(f"{words} nearly tell this hospital from others: plan an intercept of each site.")
        return np.column_stack([design, *(np.ones(len(design)) for _ in self.unknowns_beside)])

    def _walk_of(self, sums: AnnouncedPart) -> Walk:
        ridges = np.full(self._unknowns, self._ridge)
        ridges[self._columns :] = 0.0
        standard, extents = self._standard(sums), np.zeros(self._unknowns)
        if self._is_steep:
            extents[: self._columns] = np.maximum(standard.means, 1.0 - standard.means) / standard.deviations
        return Walk(start=self._start(sums), ridges=ridges, extents=extents, lags=self._lags)

    def _walk(self, sums: AnnouncedPart) -> Position:
        return self._walk_of(sums).position([one[: self._fit] for one in sums.newton[1:]])

    # Differences between sites.

    def _own_estimates(self, rows: Rows, sums: AnnouncedPart) -> tuple[OwnEstimate | None, ...]:
        """Return this site's own estimate of each column, for a change by its announced deviation; None without one."""
        nothing, units = (None,) * self._columns, self._standard(sums).deviations
        deviations = rows.values.std(axis=0) if rows.adds else np.zeros(self._columns)
        if (deviations <= 0.0).any():
            return nothing
        design = (rows.values - rows.values.mean(axis=0)) / deviations
        if self._design.collinear(design.T @ design) is not None:
            return nothing
        try:
            here = own_walk(lambda at: self._sums_at(rows, design, at, 1, sums), design)
        except Unanswerable:  # of these rows alone
            return nothing
        if here is None or self._design.collinear(here.sums.information) is not None:
            return nothing
        errors = np.sqrt(np.diagonal(here.sums.covariance) * self._own_variance(rows, here.sums))
        found = zip(here.following / deviations * units, errors / deviations * units, strict=True)
        return tuple(OwnEstimate(float(value), float(error)) for value, error in found)

    def _differences(self, sums: AnnouncedPart) -> tuple[tuple[dict[str, float], float] | None, ...]:
        if not self._compares:
            return (None,) * self._columns
        own = sums.newton[1][self._fit :].reshape(self._columns, len(FIRST_SUMS))
        # A site without an estimate makes the sums of its column void.
        return tuple(
            between_sites(*map(float, one)) if round(float(one[0])) == self._size.sites else None for one in own
        )

    def _between(self, sums: AnnouncedPart, place: int, per_unit: float) -> dict[str, float] | None:
        """Return Q, I^2 and the random-effects mean of a column with its interval, for one unit of the concept."""
        found = self._differences(sums)[place]
        if found is None or sums.last is None:
            return None
        weight, weighted = sums.last[len(self.at_the_end) :].reshape(self._columns, 2)[place]
        mean, reach = per_unit * float(weighted / weight), TWO_SIDED * per_unit * float(1.0 / np.sqrt(weight))
        return found[0] | {"estimate": mean, "low": mean - reach, "high": mean + reach}
