"""Defines the analyses of a statistics plan: Table 1, regressions, Cox models and curves.

Here are the documents that people write, and the interface that the arithmetic of each analysis fulfils
(protos/statistics). A plan is refused if an analysis names a concept that it does not declare.

An analysis sends numbers on three occasions: in the first round (counts, moments, grids), in each Newton round, and
once after the last Newton round. The coordinator announces all sums so far, and every program computes coefficients
from them. So no program trusts the coefficients of another, and a restart needs no state. The rules:

* a number has a bound. A site that would exceed it, or whose rows may not answer, raises `Unanswerable`. The site then
  sends zeros and a masked count of 1, and no site answers this analysis again;
* own rows decide nothing else in the open: methods are total functions of frame and sums;
* a number is a function of the rows of one site, and its sum over the sites is all that is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, StringConstraints, Tag

from protos.plan.concepts import CodedConcept, Concept, ConceptName, NumberConcept, Text
from protos.plan.documents import Document

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
# A concept, or the product of up to three: "age", "age:sex".
Term: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}(:[a-z][a-z0-9-]{0,39}){0,2}$", max_length=125)
]
Terms: TypeAlias = Annotated[tuple[Term, ...], Field(min_length=1, max_length=100)]
References: TypeAlias = Mapping[ConceptName, Text]
Splines: TypeAlias = Mapping[ConceptName, Annotated[tuple[float, ...], Field(min_length=3, max_length=7)]]
SUM_SCALE: Final = 1 << 36  # of moments and Newton sums


class TableOne(Document):
    """Describes patients by group: rows, missing, mean, deviation, quartiles, and the rows of each code.

    Attributes:
        columns: concepts.
        by: a concept with codes, whose groups have a column each beside the column of all; None without groups.
        bins: of how many equal parts of a number's range rows are counted, for quartiles. Their width is the quartiles'
            resolution. None prints no quartiles.
    """

    columns: tuple[ConceptName, ...] = Field(min_length=1, max_length=200)
    by: ConceptName | None = None
    bins: int | None = Field(default=None, ge=4, le=200)


class Model(Document):
    """What regressions and Cox models have in common.

    Attributes:
        terms: concepts and their products. A concept of k codes has k - 1 columns, one for each code but the reference.
        references: the code with which others are compared, by concept; by default the concept's first code.
        splines: the knots of numbers whose effect is a restricted cubic spline, by concept.
        ridge: the penalty is ridge / 2 times the squared standardised coefficients. With a penalty, the result has no
            interval and no p value.
    """

    terms: Terms
    references: References = Field(default_factory=dict)
    splines: Splines = Field(default_factory=dict)
    ridge: float = Field(default=0.0, ge=0, le=1e6)


class Regression(Model):
    """A generalised linear model.

    Attributes:
        outcome: a concept. For binomial it has two codes, and the second one is the event.
        intercept: `site` gives each site its own, as indicators of the sites in a pooled table would.
        exposure: a concept with the time or the persons of a row, for poisson; its logarithm is the offset.
        robust: whether standard errors allow for several rows of one patient (sandwich, by patient).
        firth: whether the likelihood has Firth's correction, for few events or separation in a binomial model.
    """

    family: Literal["binomial", "gaussian", "poisson"]
    outcome: ConceptName
    intercept: Literal["site", "common"] = "site"
    exposure: ConceptName | None = None
    robust: bool = False
    firth: bool = False


class Cox(Model):
    """A Cox model in which every site has its own baseline hazard.

    Attributes:
        time: a concept with the time from the start to the event, or to the end of follow-up.
        event: a concept with two codes; the second one is the event.
    """

    time: ConceptName
    event: ConceptName


class Curve(Document):
    """Survival curves (Kaplan-Meier) of groups.

    Attributes:
        by: a concept with codes, whose groups have a curve each; None for one curve.
        grid: the length of an interval in the unit of the time, or `monthly` if the unit is days.
        to: the end of the curve, in the unit of the time.
    """

    time: ConceptName
    event: ConceptName
    by: ConceptName | None = None
    grid: Literal["monthly"] | Annotated[float, Field(gt=0)] = "monthly"
    to: float = Field(gt=0)


AnalysisName: TypeAlias = Annotated[Text, StringConstraints(max_length=60)]


class _Named(Document):
    name: AnalysisName


class TableOneAnalysis(_Named):
    """A Table 1 of the plan."""

    table_one: TableOne


class RegressionAnalysis(_Named):
    """A regression of the plan."""

    regression: Regression


class CoxAnalysis(_Named):
    """A Cox model of the plan."""

    cox: Cox


class CurveAnalysis(_Named):
    """Curves of the plan."""

    curve: Curve


def _kind(value: Any) -> str | None:  # pydantic's input before any check
    there = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    kinds = [kind for kind in ("table_one", "regression", "cox", "curve") if kind in there]
    return kinds[0] if len(kinds) == 1 else None


Analysis: TypeAlias = Annotated[
    Annotated[TableOneAnalysis, Tag("table_one")]
    | Annotated[RegressionAnalysis, Tag("regression")]
    | Annotated[CoxAnalysis, Tag("cox")]
    | Annotated[CurveAnalysis, Tag("curve")],
    Discriminator(_kind, "kind", "an analysis has a name and one of table_one, regression, cox and curve"),
]


def concepts_used(analysis: Analysis) -> tuple[tuple[ConceptName, ...], ...]:
    """Return sets of concepts. A number of the analysis has the rows of the sites that record all concepts of a set."""
    match analysis:
        case TableOneAnalysis(table_one=table):
            return tuple((name, *([table.by] if table.by else [])) for name in table.columns)
        case RegressionAnalysis(regression=model):
            return ((model.outcome, *([model.exposure] if model.exposure else []), *_factors(model.terms)),)
        case CoxAnalysis(cox=cox):
            return ((cox.time, cox.event, *_factors(cox.terms)),)
        case CurveAnalysis(curve=curve):
            return ((curve.time, curve.event, *([curve.by] if curve.by else [])),)


def _factors(terms: Terms) -> Iterator[ConceptName]:
    yield from dict.fromkeys(name for term in terms for name in term.split(":"))


def complete_rows(analyses: Sequence[Analysis], frame: Frame) -> Bools:
    """Return which rows all analyses of a plan describe, (rows,), because a difference of two sums has fewer patients.

    They have a value in each column of a model or curve, in each column of groups, and an exposure above 0.
    """
    kept = np.ones(frame.rows, np.bool_)
    for one in analyses:
        for name in concepts_used(one)[0][isinstance(one, TableOneAnalysis) :]:  # of a Table 1 the groups
            kept &= ~np.isnan(frame.columns.get(name, np.zeros(frame.rows)))
        if isinstance(one, RegressionAnalysis) and (exposure := one.regression.exposure) is not None:
            kept &= frame.columns.get(exposure, np.ones(frame.rows)) > 0.0
    return kept


VOID: Final = float("nan")


@dataclass(frozen=True)
class Number:
    """A number that a site sends as the integer round(scale * number), masked.

    `bound` is the integer's largest magnitude at one site. Only a signed number can be negative. In place of a number
    that `may_be_void` the arithmetic of a site can give VOID: the site then sends a secret random integer up to the
    bound, so the sum is random too. A zero would make it the sum of the other sites.
    """

    name: str
    bound: int
    scale: int = 1
    is_signed: bool = False
    may_be_void: bool = False

    @property
    def lowest(self) -> int:
        return -self.bound if self.is_signed else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """The rows of one site, as the plan's concepts describe them.

    Attributes:
        columns: by concept float64 of shape (rows,), NaN if missing. A number is in the concept's unit, within low and
            high. A code is its position among the concept's codes. A concept that the site does not record is absent.
        patients: int64 of shape (rows,), 0, 1, ..., equal for rows of one patient. Without patients each row is one.
        smallest_cell: the larger of the plan's and of this hospital's smallest number of patients of a count.
        left_out: how many further rows take no part: they lack a value that others have (complete_rows), or the
            contract leaves them out, because they have no outcome.
        steps: by time to an event, of what number all are multiples, and how far they were rounded; if converted.
    """

    columns: Mapping[str, Float64] = field(repr=False)
    patients: Integers = field(repr=False)
    smallest_cell: int
    left_out: int = 0
    steps: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.patients)

    def only(self, kept: Bools) -> Frame:
        """Return some rows, flags of shape (rows,), and count the others as left out."""
        return replace(
            self,
            columns={name: values[kept] for name, values in self.columns.items()},
            patients=np.unique(self.patients[kept], return_inverse=True)[1].astype(np.int64),
            left_out=self.left_out + int(np.count_nonzero(~kept)),
        )

    def require_one_row_each(self) -> None:
        """Raise Unanswerable if a patient has several rows: a time to event would count once for each."""
        if len(np.unique(self.patients)) < self.rows:
            raise Unanswerable("Patients of this hospital have several rows. A time to event needs one row for each.")


@dataclass(frozen=True, kw_only=True, eq=False)
class StudySize:
    """What the plan says about its sites and rows, for bounds and for the smallest parts of a sum.

    Attributes:
        sites: that record all concepts of the analysis.
        fewest_sites: that every printed number needs.
        largest_rows: of all sites together.
        smallest_cell: patients below which no count is printed.
        smallest_part: patients that a site needs in a cell of a model. So the sum of the sites that do not collude has
            at least `smallest_cell` patients, whatever their number is.
        rows_per_unknown: patients of other sites for each number that a reader could solve for.
        compares: whether sites' own estimates are summed. Those of several models could be solved for one site's.
        joins: whether the plan has several curves.
    """

    sites: int
    fewest_sites: int
    largest_rows: int
    smallest_cell: int
    smallest_part: int
    rows_per_unknown: float
    compares: bool = True
    joins: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class AnnouncedPart:
    """The sums of one analysis so far, over all sites, already divided by their scales.

    Attributes:
        first: float64 of shape (numbers of the first round,).
        newton: for each Newton round so far float64 of shape (numbers of a Newton round,).
        last: float64 of shape (numbers of the last round,), or None before it.
    """

    first: Float64 = field(repr=False)
    newton: tuple[Float64, ...] = field(default=(), repr=False)
    last: Float64 | None = field(default=None, repr=False)


class Unanswerable(ValueError):
    """A site's rows may not answer, or the sums give no result. The text is one sentence for people.

    At a site it is shown to the hospital's own people only. In a result it names the column and the remedy.
    """


class Arithmetic(ABC):
    """The arithmetic of one analysis. It is made from the document, the plan's concepts and a StudySize.

    Each of `first`, `newton` and `last` lists the numbers of an occasion; an analysis without Newton rounds has empty
    `newton` and `last`. The functions of a frame return their values, float64 of the same length, and raise
    Unanswerable if the site may not answer. `result` raises it if there is nothing to print.
    """

    @property
    @abstractmethod
    def first(self) -> tuple[Number, ...]: ...
    @property
    def newton(self) -> tuple[Number, ...]:
        return ()

    last = newton

    @abstractmethod
    def first_values(self, frame: Frame) -> Float64:
        """Return what a site sends in the first round."""

    def newton_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:  # noqa: ARG002
        """Return what a site sends in the Newton round after these sums."""
        return np.empty(0)

    def last_values(self, frame: Frame, sums: AnnouncedPart) -> Float64:  # noqa: ARG002
        """Return what a site sends after the last Newton round."""
        return np.empty(0)

    def has_converged(self, sums: AnnouncedPart) -> bool:  # noqa: ARG002
        """Return whether another Newton round would change nothing; also if no round can help. True without rounds."""
        return True

    def own(self, frame: Frame) -> dict[str, Any]:  # noqa: ARG002
        """Return the estimates of this site alone, for its own page; empty if there are none. Nothing of it is sent."""
        return {}

    def means(self, sums: AnnouncedPart) -> dict[str, float]:  # noqa: ARG002
        """Return about the mean of each number, by concept, from sums of some sites; not if they are void."""
        return {}

    @abstractmethod
    def result(self, sums: AnnouncedPart) -> dict[str, Any]:
        """Return what is printed, as values for JSON: numbers, texts, lists and records, None where none may stand."""


def concept_named(concepts: tuple[Concept, ...], name: str) -> NumberConcept | CodedConcept:
    """Return the concept with this name. Raises KeyError: the plan declares none."""
    for concept in concepts:
        if concept.name == name:
            return concept
    raise KeyError(name)
