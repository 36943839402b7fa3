"""Defines what a study means: its question in words, and its concepts.

A concept is a column with the same meaning at several sites, with one definition, unit and range. Each hospital's
contract maps a column of its own to a concept, and a plan's conversions convert the column's unit to the concept's. The
rules:

* a concept is a number within a range, or one of several codes;
* a unit that is not the concept's needs a conversion that the plan declares;
* `recorded_by` names the sites that record the concept, so the fewest sites are checked for each concept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from protos.plan.documents import COMPOSED, NAME, READABLE, Document

ConceptName: TypeAlias = Annotated[str, StringConstraints(pattern=NAME)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=f"^{READABLE}+$"), COMPOSED]
Definition: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=f"^{READABLE}+$")]
# The micro sign and the Greek letter are one unit.
Unit: TypeAlias = Annotated[Text, AfterValidator(lambda unit: unit.replace("\u00b5", "\u03bc"))]


class Question(Document):
    """The question of a study, for a clinician and an ethics board.

    Attributes:
        time: the time of the prediction, and how far ahead it looks.
        responsible: the person, with the institution.
        approval_number: the number from the ethics board or authority.
    """

    outcome: Definition
    population: Definition
    time: Definition
    use: Definition
    responsible: Definition
    approval_number: Definition


class Conversion(Document):
    """Converts a value from another unit to the concept's: value = factor * other + offset."""

    unit: Unit
    factor: float
    offset: float = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.factor == 0.0:
            raise ValueError("the factor of a conversion of units must not be 0")
        return self


class LowAndHigh(Document):
    """The range of a number. In sums a value outside is replaced by the nearer limit."""

    low: float
    high: float

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not 0 < self.high - self.low < inf:
            raise ValueError("low must be below high, and their distance must be a number")
        return self


class NumberConcept(LowAndHigh):
    """A measured number. A value outside `low` to `high` is replaced by the nearer limit.

    Networks on concepts, and plans with `privacy`, use `typical` and `spread`. They are declared, not computed from
    patients. Rows are standardised by them, and a missing value counts as typical. The defaults are the middle of the
    range and a quarter of it.
    """

    kind: Literal["number"]
    name: ConceptName
    definition: Definition
    unit: Unit | None = None
    typical: float | None = None
    spread: float | None = Field(default=None, gt=0)
    conversions: tuple[Conversion, ...] = Field(default=(), max_length=20)
    recorded_by: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.typical is not None and not self.low <= self.typical <= self.high:
            raise ValueError("typical must be between low and high")
        units = [conversion.unit for conversion in self.conversions]
        if len({*units, self.unit}) != len(units) + 1:
            raise ValueError("conversions list a unit twice, or list the concept's own unit")
        if units and self.unit is None:
            raise ValueError("a concept with conversions needs a unit")
        return self


class CodedConcept(Document):
    """A column that has one of several codes.

    Attributes:
        codes: all others are compared with the first code. The third and later codes are also compared with the second,
            so the second code should be common at most sites.
    """

    kind: Literal["codes"]
    name: ConceptName
    definition: Definition
    codes: tuple[Text, ...] = Field(min_length=2, max_length=50)
    recorded_by: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.codes)) != len(self.codes):
            raise ValueError("the concept lists a code twice")
        return self


Concept: TypeAlias = Annotated[NumberConcept | CodedConcept, Field(discriminator="kind")]


class ListedConcepts(Document, extra="ignore"):
    """The concepts of a plan of any kind, which may be unfinished: all its other keys are ignored."""

    concepts: tuple[Concept, ...] = Field(max_length=500)


@dataclass(frozen=True)
class ConceptColumn:
    """One column of a regression on concepts: a number, or 1 for certain codes and 0 for all others.

    Attributes:
        name: its name in sums, "age", "sex=male" or "chest-pain: not none".
        ones: the codes that are 1 here; empty for a number.
    """

    name: str
    concept: NumberConcept | CodedConcept
    ones: tuple[str, ...] = ()


def columns_of(concepts: tuple[Concept, ...]) -> tuple[ConceptColumn, ...]:
    """Return the columns of a regression on these concepts, in the plan's sequence.

    A concept of k codes has k - 1 columns. The first column shows any code except the first. The others show one code
    each, from the third. So if a site has few rows of a code, these rows still count in the first column.
    """
    return tuple(column for concept in concepts for column in _columns(concept))


def declared_standard(column: ConceptColumn) -> tuple[float, float]:
    """Return the typical value and the spread that the plan declares for a column, scaled to 0..1."""
    concept = column.concept
    if isinstance(concept, NumberConcept):
        width = concept.high - concept.low
        typical = (concept.low + concept.high) / 2 if concept.typical is None else concept.typical
        spread = width / 4 if concept.spread is None else concept.spread
        return (typical - concept.low) / width, spread / width
    share = len(column.ones) / len(concept.codes)  # as if each code were as frequent as any other
    return share, sqrt(share * (1.0 - share))


def _columns(concept: NumberConcept | CodedConcept) -> Iterator[ConceptColumn]:
    if isinstance(concept, NumberConcept):
        yield ConceptColumn(concept.name, concept)
        return
    first, *others = concept.codes
    any_other = f"{concept.name}={others[0]}" if len(others) == 1 else f"{concept.name}: not {first}"
    yield ConceptColumn(any_other, concept, tuple(others))
    yield from (ConceptColumn(f"{concept.name}={code}", concept, (code,)) for code in others[1:])
