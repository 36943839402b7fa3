"""Defines the prior plan (method federated-prior): a score computed from other hospitals' data.

Each hospital chooses the score's weight.

The sites fit one regression on common concepts together, from sums alone. Each site then subtracts its own part from
these sums, so that the score is the result of the others. It combines the score with its own models. There is one round
of statistics, some rounds of Newton's method, and one guard round. The guard tests over all sites whether the others'
score helps at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from itertools import combinations, combinations_with_replacement
from typing import Annotated, Final, Literal, TypeAlias, assert_never

from pydantic import Field, StrictInt

from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.concepts import Concept, ConceptColumn, LowAndHigh, NumberConcept, Text, columns_of
from protos.plan.documents import Document
from protos.plan.methods import FEDERATED_PRIOR
from protos.plan.plan_head import MOST_SITES, ListedSite, Stages, why_not_listed
from protos.plan.private_prior import PrivateSums
from protos.wire.messages import Stage

MOST_SUMS: Final = 1 << 17  # of one round: about 500 columns of a regression with one outcome
MOMENTS: Final = ("voids", "count", "sum", "squares")


class YesOrNo(Document):
    """The outcome is present or absent."""

    task: Literal["binary"]


class OneOfClasses(Document):
    """The outcome is one of these classes. One regression for each class predicts this class against all others."""

    task: Literal["multi-class"]
    classes: tuple[Text, ...] = Field(min_length=3, max_length=50)


class Number(LowAndHigh):
    """The outcome is a number."""

    task: Literal["regression"]

    @property
    def width(self) -> float:
        return self.high - self.low


PriorOutcome: TypeAlias = Annotated[YesOrNo | OneOfClasses | Number, Field(discriminator="task")]


class PriorSite(ListedSite):
    """A site of a prior plan. A site of the tier `receiving` sends no number and receives the result."""

    tier: Literal["receiving", "training"] = "training"


class PriorPlan(AnnouncingPlan):
    """A plan in which sites fit a regression on common concepts from sums.

    Attributes:
        outcome: the kind of outcome that all sites predict.
        ridge: the penalty is ridge / 2 times the squared coefficients, in standardised units.
        newton_rounds: the largest number of Newton rounds; they stop when no coefficient moves by 1e-8.
        fewest_sites: the number of sites that must record a concept, according to the plan. With three, each of the
            three can compute the sum of the two others.
        largest_rows: the largest number of training rows of all sites together, for the bounds of sums.
        rows_per_unknown: the least number of other sites' patients for each number that a reader could solve for: this
            times rounds times (columns + 3) / 2.
    """

    kind: Literal["prior"]
    sites: Annotated[tuple[PriorSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    concepts: tuple[Concept, ...] = Field(min_length=1, max_length=500)
    outcome: PriorOutcome = YesOrNo(task="binary")
    ridge: float = Field(default=10.0, gt=0, le=1e6)
    newton_rounds: StrictInt = Field(default=15, ge=1, le=50)

    def _reasons(self) -> Iterator[str]:
        # Every pair of columns has a sum, so this is counted before anything is listed.
        columns = sum(1 if isinstance(one, NumberConcept) else len(one.codes) - 1 for one in self.concepts)
        sums = len(self.outputs) * columns * (columns + 3) // 2
        if sums > MOST_SUMS:
            yield f"the concepts have {columns} columns and need {sums:,} sums in a round; {MOST_SUMS:,} are allowed"
            return
        yield from why_not_listed(self.concepts, self.site_names)
        if len(set(self.outputs)) != len(self.outputs):
            yield "the outcome lists a class twice"
        if self.privacy is not None and not isinstance(self.outcome, YesOrNo):
            yield (
                "privacy: the outcome must be binary, because the program cannot clip the gradients of other outcomes "
                "yet"
            )
        yield from self.why_too_many_rows()
        places = {name: 1 << place for place, name in enumerate(self.site_names)}
        sets = [
            (one.name, sum(places.get(site, 0) for site in set(places if one.recorded_by is None else one.recorded_by)))
            for one in self.concepts
        ]
        for (one, some), (other, others) in combinations_with_replacement(sets, 2):
            count = (some & others).bit_count()
            if count < self.fewest_sites:
                names = one if one == other else f"{one} and {other}"
                why = " (three sites could each compute the sum of the other two)" if count == 3 else ""
                yield f"only {count} sites record {names}, but fewest_sites is {self.fewest_sites}{why}"
                return

    @property
    def method_name(self) -> str:
        return FEDERATED_PRIOR

    @cached_property
    def stages(self) -> Stages:
        """Return the stages: statistics, Newton rounds and the guard; with privacy one round sends all sums.

        A number as the outcome needs one Newton round, because one step is then exact.
        """
        if self.privacy is not None:
            return ((Stage.STATISTICS, 1),)
        return (Stage.STATISTICS, 1), (Stage.NEWTON, 1 if self.is_number else self.newton_rounds), (Stage.GUARD, 1)

    @cached_property
    def private(self) -> PrivateSums | None:
        """Return the one round of the private form; None if the plan has no key `privacy`."""
        if self.privacy is None:
            return None
        return PrivateSums(self.columns, self.site_names, self.privacy, self.assumed_colluders, self.largest_rows)

    @property
    def noise_variance(self) -> int:
        return 0 if self.private is None else self.private.share_variance

    @cached_property
    def columns(self) -> tuple[ConceptColumn, ...]:
        return columns_of(self.concepts)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each fitted regression."""
        match self.outcome:
            case YesOrNo() | Number():
                return ("outcome",)
            case OneOfClasses(classes=classes):
                return tuple(f"outcome={name}" for name in classes)
            case other:
                assert_never(other)

    @property
    def is_number(self) -> bool:
        return isinstance(self.outcome, Number)

    @property
    def largest_weight(self) -> float:
        """Return the largest weight that one row can have in the Hessian."""
        return 1.0 if self.is_number else 0.25

    @cached_property
    def statistics_names(self) -> tuple[str, ...]:
        """Return the names of the sums in round 0.

        They are voids and moments for each column, and outcomes. In the private form these are all sums of the
        regression, which has no other round.
        """
        if self.private is not None:
            return self.private.names
        moments = [f"{kind} {column.name}" for column in self.columns for kind in MOMENTS]
        outcomes = [f"sum {output}" for output in self.outputs]
        return (*moments, "outcomes", "patients", *outcomes, *(["squares outcome"] if self.is_number else []))

    @cached_property
    def newton_names(self) -> tuple[str, ...]:
        """Return the names of the sums in one Newton round, in the sequence of `NewtonSums.encoded`."""
        columns = [column.name for column in self.columns]
        return tuple(
            name
            for output in self.outputs
            for name in (
                *(f"hessian {output}: {one} x {other}" for i, one in enumerate(columns) for other in columns[i:]),
                *(f"gradient {output}: {one}" for one in columns),
            )
        )

    def recorders(self) -> dict[tuple[str, ...], frozenset[str]]:
        """Return the sites that, by the plan, contribute to the sums of each concept and each pair of concepts."""
        everybody = frozenset(self.site_names)
        sites = {
            one.name: everybody if one.recorded_by is None else frozenset(one.recorded_by) for one in self.concepts
        }
        alone: dict[tuple[str, ...], frozenset[str]] = {(name,): found for name, found in sites.items()}
        both = cache(frozenset[str].intersection)  # few sets are different
        return alone | {(one, other): both(sites[one], sites[other]) for one, other in combinations(sites, 2)}

    @property
    def sizes(self) -> tuple[int, int, int]:
        if self.private is not None:
            return len(self.statistics_names), 0, 0
        return len(self.statistics_names), len(self.newton_names), 1
