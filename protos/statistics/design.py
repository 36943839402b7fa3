"""Computes the columns of a regression or a Cox model from the terms of an analysis.

A number is one column, or k - 1 columns with k declared knots (`spline_column`). A concept of k codes has k - 1
columns, 1 for a code and 0 for all others; the reference has none. A product of concepts has the products of their
columns. The rules:

* a column is scaled from its possible range to 0..1, and then by rough sums of all sites, so every entry of a Hessian
  has a bound. Coefficients are printed in the units of the concepts;
* a site needs `smallest_part` patients, or none, beside the commonest value of a column, in each cell of the codes that
  a term crosses (references too), beside the commonest values of a term's numbers in such a cell, and between two
  neighbouring knots. Fewer would show single ones, so then every column of these concepts is void. So is a column if
  nearly all its squared distances are of one, and with a common intercept if few patients decide its product with
  another column or with the outcome;
* a column that too few sites have is no part of a model that anybody prints, nor is a cell of codes that one or two
  sites have: of a term, and with a common intercept of two terms, or of a term and the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, compress, islice, pairwise, permutations, product
from math import prod

import numpy as np

from protos.plan.analyses import (
    SUM_SCALE,
    VOID,
    Float64,
    Frame,
    Integers,
    Model,
    Number,
    Regression,
    StudySize,
    Unanswerable,
    concept_named,
)
from protos.plan.concepts import CodedConcept, Concept, NumberConcept
from protos.statistics.binned_values import Kinds, beside_commonest, is_of_one_patient

_SHOWN = 8  # names of columns in a sentence
_NARROWEST = 1e-4  # the standard deviation of a column, as a part of its possible range


@dataclass(frozen=True)
class _Factor:
    """A number, a column of its spline, or an indicator of a code. `place` is that of the code or of the column."""

    concept: str
    name: str
    place: int
    knots: tuple[float, ...] | None  # of a number; empty for a straight line. None for codes
    low: float
    high: float
    scale: str

    def of(self, values: Float64) -> Float64:
        if self.knots is None:
            return np.where(np.isnan(values), np.nan, values == self.place)
        return spline_column(values, self.knots, self.place)


@dataclass(frozen=True)
class DesignColumn:
    """One column: the product of numbers and of indicators of codes.

    Attributes:
        term: of the model, to which the column belongs.
        name: "age", "sex=male", "age:sex=male", or "age'" for the first curved column of a spline.
        factors: each a function of a concept's values.
        low, high: the possible range of the product.
    """

    term: str
    name: str
    factors: tuple[_Factor, ...]
    low: float
    high: float

    @property
    def scale(self) -> str:
        """Return what a coefficient compares: "per unit (years)" or "against female"; nothing for a spline."""
        return "" if any(factor.knots for factor in self.factors) else ", ".join(one.scale for one in self.factors)


@dataclass(frozen=True, eq=False)
class Standardised:
    """Means and deviations of the design's columns in 0..1 over all sites, float64 of shape (columns,).

    `per_unit` converts a standardised coefficient to the units of the concepts: float64 of shape (columns,).
    """

    means: Float64 = field(repr=False)
    deviations: Float64 = field(repr=False)
    per_unit: Float64 = field(repr=False)


class Design:
    """The columns of a model, with the numbers about them that sites send in the first round."""

    def __init__(self, model: Model, concepts: tuple[Concept, ...], size: StudySize) -> None:
        """Raises KeyError or ValueError: a concept is absent, a reference is no code, or knots do not fit a number."""
        self.size, self.beside = size, list[str]()
        if isinstance(model, Regression) and model.intercept == "common":
            self.beside = [model.outcome, *([model.exposure] if model.exposure else [])]
        self.concepts = tuple(dict.fromkeys(name for term in model.terms for name in term.split(":")))
        if strangers := sorted({*model.references, *model.splines} - {*self.concepts}):
            raise ValueError(f"{', '.join(strangers)} has a reference or knots, and is in no term")
        self._codes = {one.name: one.codes for one in concepts if isinstance(one, CodedConcept)}
        self.references = {f"{name}={model.references.get(name, own[0])}" for name, own in self._codes.items()}
        single = [term.split(":") for term in model.terms]
        known = [sorted(names) for names in single]
        for names in single:
            for lower in (some for length in range(1, len(names)) for some in combinations(names, length)):
                if sorted(lower) not in known:
                    raise ValueError(f"{':'.join(names)} is an interaction, so {':'.join(lower)} must be a term too")
        factors = {name: _factors(concept_named(concepts, name), model) for name in self.concepts}
        self.columns = tuple(column for term in model.terms for column in _columns(term, factors))
        if len({column.name for column in self.columns}) != len(self.columns):
            raise ValueError("a term is listed twice")
        self.are_numbers = np.array([column.name in {*self.concepts} - self._codes.keys() for column in self.columns])
        # The concepts whose products a model sums: those of a term and, with a common intercept, of two.
        both = combinations([*single, *([name] for name in self.beside)], 2) if self.beside else ()
        self._summed = [*single, *([*one, *two] for one, two in both)]
        crossed = (tuple(name for name in dict.fromkeys(names) if name in self._codes) for names in self._summed)
        self._crossed = dict.fromkeys(names for names in crossed if names)
        self.cells = tuple(
            Number(f"sites that have {':'.join(map('='.join, zip(names, cell, strict=True)))}", 1)
            for names in self._crossed
            for cell in product(*(self._codes[name] for name in names))
        )

    @cached_property
    def first(self) -> tuple[Number, ...]:
        found, moment = list[Number](), self.size.largest_rows * SUM_SCALE
        for name in (column.name for column in self.columns):
            found += [Number(f"sites {kind}{name}", 1) for kind in ("", "with few rows ")]
            found += [Number(f"{kind} {name}", moment, SUM_SCALE, may_be_void=True) for kind in ("sum", "squares")]
        return tuple(found)

    def cell_values(self, frame: Frame) -> list[float]:
        """Return for each cell of the codes that a term crosses, references too, whether a row is in it."""
        found = list[float]()
        for names in self._crossed:
            rows = np.bincount(self._cells_of(names, frame), minlength=prod(len(self._codes[name]) for name in names))
            found += (rows > 0).tolist()
        return found

    def _cells_of(self, names: tuple[str, ...], frame: Frame) -> Integers:
        """Return in which cell of the codes of these concepts each row is, (rows,), in the order of `product`."""
        places = [np.zeros(frame.rows, np.int64), *(frame.columns[name].astype(np.int64) for name in names)]
        return np.asarray(np.ravel_multi_index(places, [1, *(len(self._codes[name]) for name in names)]))

    def values(self, frame: Frame) -> Float64:
        """Return the columns scaled to 0..1, float64 of shape (rows, columns)."""
        found = np.empty((frame.rows, len(self.columns)))
        for place, column in enumerate(self.columns):
            values = np.ones(frame.rows)
            for factor in column.factors:
                values = values * factor.of(frame.columns[factor.concept])
            found[:, place] = (values - column.low) / (column.high - column.low)
        return np.clip(found, 0.0, 1.0)

    def few(self, scaled: Float64, frame: Frame) -> list[bool]:
        """Return for each column whether few patients of this site would decide a sum of it. `scaled` are `values`.

        The columns of a term and of its parts give each of its numbers less any value, also less the usual one. With a
        common intercept so do each two terms, and a term with outcome or exposure. But a count of events may be small.
        """
        concepts, patients, part, small = frame.columns, frame.patients, self.size.smallest_part, set[str]()
        everyone = Kinds(patients, patients)
        columns = {one: one.of(concepts[one.concept]) for column in self.columns for one in column.factors}
        numbers = {name: [Kinds(concepts[name], patients)] for name in self.beside if name not in self._codes}
        for name in set(self.concepts) - self._codes.keys():
            numbers[name] = [Kinds(found, patients) for one, found in columns.items() if one.concept == name]
        for names in self._summed:
            if names[-1] in self.beside[:1] and self._codes.keys() >= {*names}:
                continue
            codes = tuple(name for name in dict.fromkeys(names) if name in self._codes)
            cells = self._cells_of(codes, frame)
            chosen = [*product(*(numbers[name] for name in names if name in numbers))]
            for cell, some in product(np.unique(cells).tolist(), chosen):
                whole = np.flatnonzero(cells == cell)
                size = everyone.count(whole)
                # The first has straight lines. Curved columns are many, and mostly 0, so few orders give other rows.
                orders = islice(permutations(some), 24 if some is chosen[0] else 2)  # 4!
                for order in orders:
                    here = whole
                    for number in order:
                        here = number.beside(here)
                    left = everyone.count(here)
                    small |= {*names} if 0 < left < part and (size < part or 2 * left <= size) else set()
        for factor in (one for column in self.columns for one in column.factors if one.knots):
            places = np.searchsorted(factor.knots or (), concepts[factor.concept])
            inside = (len(np.unique(patients[places == place])) for place in range(1, len(factor.knots or ())))
            small |= {factor.concept} if any(0 < number < part for number in inside) else set()
        return [
            not small.isdisjoint(one.concept for one in column.factors) or self.is_decided(values, patients)
            for column, values in zip(self.columns, scaled.T, strict=True)
        ]

    def is_decided(self, values: Float64, patients: Integers) -> bool:
        """Return whether few patients of this site would decide the sum of values, (rows,), or of squares."""
        part = self.size.smallest_part
        return 0 < beside_commonest(values, patients) < part or (part > 1 and is_of_one_patient(values, patients))

    def first_values(self, few: list[bool], scaled: Float64, patients: Integers, *, adds: bool = True) -> Float64:
        """Return the numbers of `first`, from what `few` and `values` return.

        A site whose rows add nothing to the model's sums (not `adds`) counts as no site of a column.
        """
        found = np.zeros((len(self.columns), 4))
        for place, values in enumerate(scaled.T):
            moments = (VOID, VOID) if few[place] else rough_moments(values)
            is_there = adds and beside_commonest(values, patients) >= self.size.smallest_part
            found[place] = (is_there, few[place], *moments)
        return found.ravel()

    def standardised(self, first: Float64, rows: float) -> Standardised:
        """Return the standardisation that follows from the sums of `first` and of the complete rows.

        Raises:
            Unanswerable: a column has too few rows or sites, or does not vary.
        """
        sites, few, sums, squares = first.reshape(-1, 4).T
        means = sums / max(rows, 1.0)
        deviations = np.sqrt(np.maximum(squares / max(rows, 1.0) - means * means, 0.0))
        is_few, is_rare = few > 0, sites < self.size.fewest_sites
        names = [column.term if one else column.name for column, one in zip(self.columns, is_few, strict=True)]
        told = {
            f"Fewer than {self.size.smallest_part} patients of a hospital would decide": is_few,
            f"Fewer than {self.size.fewest_sites} hospitals have different values of": is_rare & ~is_few,
            "Within the declared range hardly any values differ of": ~(is_few | is_rare) & (deviations < _NARROWEST),
        }
        if reasons := [f"{words} {in_words(compress(names, which))}. " for words, which in told.items() if which.any()]:
            remedy = "Remove such a term, join codes, choose other knots, or declare a narrower range."
            raise Unanswerable("".join(reasons) + remedy)
        widths = np.array([column.high - column.low for column in self.columns])
        return Standardised(means, deviations, 1.0 / (deviations * widths))

    def collinear(self, hessian: Float64) -> str | None:
        """Return the columns that follow from each other, by a Hessian of standardised columns, or None.

        Args:
            hessian: float64 of shape (columns, columns), whose first entries are those of the design.
        """
        scale = np.sqrt(np.maximum(np.diagonal(hessian), 1e-300))
        values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
        if values[0] > 1e-9:
            return None
        shares = np.abs(vectors[: len(self.columns), values <= 1e-9]).max(axis=1)
        return in_words(compress((one.name for one in self.columns), shares > 0.1))


def groups_of(by: str | None, concepts: tuple[Concept, ...]) -> tuple[str, ...]:
    """Return the names of groups, one for each code of `by`, or "all" without it. Raises ValueError: it is a number."""
    concept = None if by is None else concept_named(concepts, by)
    if isinstance(concept, NumberConcept):
        raise ValueError(f"by names a concept with codes, and {by} is a number")
    return ("all",) if concept is None else tuple(f"{by}={code}" for code in concept.codes)


def event_of(name: str, concepts: tuple[Concept, ...]) -> str:
    """Return an outcome with the code that counts as the event, "died=yes", or the name of a number."""
    concept = concept_named(concepts, name)
    return f"{name}={concept.codes[-1]}" if isinstance(concept, CodedConcept) else name


def in_words(names: Iterable[str]) -> str:
    """Return columns for a sentence: the first ones by name, and how many more."""
    own = list(dict.fromkeys(names))
    return ", ".join([*own[:_SHOWN], *([f"{len(own) - _SHOWN} more"] if len(own) > _SHOWN else [])])


def _columns(term: str, factors: Mapping[str, tuple[_Factor, ...]]) -> Iterator[DesignColumn]:
    for chosen in product(*(factors[name] for name in term.split(":"))):
        ends = [prod(corner) for corner in product(*((one.low, one.high) for one in chosen))]
        yield DesignColumn(term, ":".join(one.name for one in chosen), chosen, min(ends), max(ends))


def _factors(concept: NumberConcept | CodedConcept, model: Model) -> tuple[_Factor, ...]:
    """Return the columns of a concept: of a number, of its spline, or of all codes but the reference."""
    name, knots = concept.name, tuple(model.splines.get(concept.name, ()))
    if isinstance(concept, CodedConcept):
        reference = model.references.get(name, concept.codes[0])
        if knots:
            raise ValueError(f"{name} has codes, and only numbers have knots: remove it from splines")
        if reference not in concept.codes:
            raise ValueError(f"{reference} is no code of {name}, which has {in_words(concept.codes)}")
        codes, scale = enumerate(concept.codes), f"against {reference}"
        return tuple(_Factor(name, f"{name}={one}", k, None, 0.0, 1.0, scale) for k, one in codes if one != reference)
    if name in model.references:
        raise ValueError(f"{name} is a number and has no reference")
    if knots and any(not one < other for one, other in pairwise((concept.low, *knots, concept.high))):
        raise ValueError(f"the knots of {name} must rise, strictly between {concept.low:g} and {concept.high:g}")
    limits, scale = np.array([concept.low, concept.high]), "per unit" + (f" ({concept.unit})" if concept.unit else "")
    found = []
    for place in range(max(1, len(knots) - 1)):
        low, high = spline_column(limits, knots, place).tolist()
        found.append(_Factor(name, name + "'" * place, place, knots, low, high, scale))
    return tuple(found)


def rough_moments(values: Float64) -> tuple[float, float]:
    """Return about the sum and the sum of squares of values in 0..1, (rows,).

    They only scale a column, and any scale gives the same estimates. Exact sums would show the value of a patient who
    alone differs from all others. So the deviation is a power of 2, and the mean a multiple of a quarter of it.
    """
    if not len(values):
        return 0.0, 0.0
    deviation = 2.0 ** float(np.round(np.log2(max(float(values.std()), _NARROWEST / 4))))
    mean = min(float(np.round(values.mean() / deviation * 4)) * deviation / 4, 1.0 - deviation**2)
    return len(values) * mean, len(values) * (mean**2 + deviation**2)


def spline_column(values: Float64, knots: Sequence[float], place: int) -> Float64:
    """Return a column for values of any shape: x itself at place 0, then the curved columns 1 to k - 2 of k knots.

    The spline is cubic between knots and straight beyond the outer ones, in the basis of Harrell 2015, equation 2.25,
    divided by the squared distance of the outer knots, as `rcs` of R's rms does. Curved columns are 0 up to their own
    knot, and never fall.
    """
    if place == 0:
        return values
    own, late, last = knots[place - 1], knots[-2], knots[-1]
    bent = (
        np.maximum(values - own, 0.0) ** 3
        - np.maximum(values - late, 0.0) ** 3 * ((last - own) / (last - late))
        + np.maximum(values - last, 0.0) ** 3 * ((late - own) / (last - late))
    )
    return np.asarray(bent / (last - knots[0]) ** 2)
