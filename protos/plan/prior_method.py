"""Defines the method federated-prior: a score computed from other hospitals' data. Each hospital chooses its weight.

The sites fit one regression on common concepts together, from sums alone. Each site then subtracts its own part from
these sums, so that the score is the result of the others. It combines the score with its own models. There is one round
of statistics, some rounds of Newton's method, and one guard round. The guard tests over all sites whether the others'
score helps at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, StrictInt, model_validator

from protos.plan.concepts import ConceptName, Text
from protos.plan.documents import Document
from protos.plan.ingredients import Method, Nothing


class YesOrNo(Document):
    """The outcome is present or absent."""

    task: Literal["binary"]


class OneOfClasses(Document):
    """The outcome is one of these classes. One regression for each class predicts this class against all others."""

    task: Literal["multi-class"]
    classes: tuple[Text, ...] = Field(min_length=3, max_length=50)


class Number(Document):
    """The outcome is a number. In sums, a value outside `low` to `high` is replaced by the nearer limit."""

    task: Literal["regression"]
    low: float
    high: float

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    @property
    def width(self) -> float:
        """Return the width of the outcome's range: the highest value minus the lowest value."""
        return self.high - self.low


PriorOutcome: TypeAlias = Annotated[YesOrNo | OneOfClasses | Number, Field(discriminator="task")]


class FederatedPrior(Document):
    """The sites fit a regression on common concepts from sums, and each site combines it with its own models.

    Attributes:
        outcome: the kind of outcome that all sites predict.
        concepts: the names of the concepts to use; None for all concepts of the plan.
        ridge: the penalty is ridge / 2 times the squared coefficients, in standardised units.
        rounds: the largest number of Newton rounds; they stop when no coefficient moves by 1e-8.
        fewest_sites: the number of sites that must record a concept, according to the plan. With three, each of the
            three can compute the sum of the two others. With four or more, one may prove to have too few different
            values.
        largest_rows: the largest number of training rows of all sites together, for the bounds of sums.
        rows_per_unknown: the least number of other sites' rows for each number that a reader could solve for: this
            times rounds times (columns + 3) / 2.
    """

    name: Literal["federated-prior"]
    outcome: PriorOutcome = YesOrNo(task="binary")
    concepts: tuple[ConceptName, ...] | None = None
    ridge: float = Field(default=10.0, gt=0, le=1e6)
    rounds: StrictInt = Field(default=15, ge=1, le=50)
    fewest_sites: StrictInt = Field(default=4, ge=3, le=100)
    largest_rows: StrictInt = Field(default=1 << 20, ge=1, le=1 << 26)
    rows_per_unknown: float = Field(default=5.0, ge=1.0, le=1e6)

    def method(self) -> Method:
        """Return the method's record: the sites share no parameters of a network."""
        return Method(federated=Nothing())

    @property
    def newton_rounds(self) -> int:
        """Return the largest number of Newton rounds; 1 if the outcome is a number, because one step is then exact."""
        return 1 if isinstance(self.outcome, Number) else self.rounds

    def why_impossible(self, sites: int, known: tuple[str, ...]) -> Iterator[str]:
        """Yield each reason why a plan cannot use federated-prior, as a short text.

        Args:
            sites: the number of sites in the plan.
        """
        if not known:
            yield (
                "federated-prior needs concepts in the plan. A concept is a column with the same meaning at several "
                "sites"
            )
        missing = [name for name in self.concepts or () if name not in known]
        if missing:
            yield f"federated-prior lists concepts that the plan does not have: {', '.join(missing)}"
        if self.largest_rows * sites >= 1 << 27:
            yield f"largest_rows ({self.largest_rows}) times the number of sites ({sites}) must be below 134,217,728"
