"""Defines the statistics plan: Table 1, regressions, Cox models and curves of concepts, from sums. It trains no model.

Each analysis (protos/plan/analyses.py) lists the numbers that a site sends. On each occasion it has one number more:
whether the site may not answer it. Sites send only these integers, masked. With `privacy` each patient adds one clipped
term to noisy sums (protos/statistics/private_tables.py), in one round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from protos.plan.analyses import (
    Analysis,
    Arithmetic,
    CoxAnalysis,
    CurveAnalysis,
    Number,
    RegressionAnalysis,
    StudySize,
    concepts_used,
)
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.concepts import Concept
from protos.plan.plan_head import MOST_SITES, ListedSite, Stages, why_not_listed
from protos.plan.private_training import LARGEST_PATIENTS
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance
from protos.statistics.arithmetics import arithmetic_of, reasons_against
from protos.statistics.private_tables import PrivateTables
from protos.wire.messages import Stage


class CountingSite(ListedSite):
    """A site of a statistics plan."""

    tier: Literal["statistics"] = "statistics"


class StatisticsPlan(AnnouncingPlan):
    """A plan in which sites send sums for analyses of concepts.

    Attributes:
        smallest_cell: rows below which a site sends no count.
        newton_rounds: the largest number of Newton rounds. The first one counts sites with weight (model.py).
    """

    kind: Literal["statistics"]
    sites: Annotated[tuple[CountingSite, ...], Field(min_length=1, max_length=MOST_SITES)]
    concepts: tuple[Concept, ...] = Field(min_length=1, max_length=500)
    analyses: tuple[Analysis, ...] = Field(min_length=1, max_length=50)
    smallest_cell: int = Field(ge=1, le=1 << 20)
    newton_rounds: StrictInt = Field(default=12, ge=1, le=30)

    def _reasons(self) -> Iterator[str]:
        if self.privacy is not None and self.smallest_cell != 1:
            yield f"privacy: smallest_cell is {self.smallest_cell}, but noise hides small counts. Set it to 1"
        yield from why_not_listed(self.concepts, self.site_names)
        yield from self.why_too_many_rows()
        if self.privacy is None and self.fewest_sites < self.assumed_colluders + 2:
            yield f"fewest_sites must be at least {self.assumed_colluders + 2}, two more than assumed_colluders"
            return
        names = {name for one in self.analyses for used in concepts_used(one) for name in used}
        if len({self.recorders((name,)) for name in names}) > 1:
            yield "recorded_by differs between concepts, and a difference of sums would be of few sites: make two plans"
        yield from reasons_against(self.analyses, self.concepts, self._size, is_private=self.privacy is not None)

    def recorders(self, concepts: tuple[str, ...]) -> frozenset[str]:
        """Return the sites that, by the plan, record all these concepts."""
        return frozenset(self.site_names).intersection(*(self.lists[one] for one in concepts if one in self.lists))

    @cached_property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """Return `recorded_by` of the concepts that have this key, by name."""
        return {one.name: one.recorded_by for one in self.concepts if one.recorded_by is not None}

    @property
    def smallest_part(self) -> int:
        """Return how many rows a site needs in a cell of a model, so that those of its honest sites are enough.

        At most three honest sites are counted on, because fewer than `fewest_sites` may have the cell.
        """
        return -(-self.smallest_cell // max(1, min(self.fewest_sites - self.assumed_colluders, 3)))

    def _size(self, analysis: Analysis) -> StudySize:
        models = (one for one in self.analyses if isinstance(one, RegressionAnalysis | CoxAnalysis))
        return StudySize(
            compares=next(models, None) is analysis,
            joins=sum(isinstance(one, CurveAnalysis) for one in self.analyses) > 1,
            sites=min(len(self.recorders(used)) for used in concepts_used(analysis)),
            fewest_sites=self.fewest_sites,
            largest_rows=self.largest_rows,
            smallest_cell=self.smallest_cell,
            smallest_part=self.smallest_part,
            rows_per_unknown=self.rows_per_unknown,
        )

    @cached_property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        return tuple(arithmetic_of(analysis, self.concepts, self._size(analysis)) for analysis in self.analyses)

    @cached_property
    def private_tables(self) -> PrivateTables | None:
        """Return the private form of all analyses; None if the plan has no key `privacy`."""
        return None if self.privacy is None else PrivateTables(self.analyses, self.concepts, self.privacy.clip)

    @cached_property
    def numbers_by_round(self) -> tuple[tuple[Number, ...], tuple[Number, ...], tuple[Number, ...]]:
        """Return the numbers of the first round, of each Newton round and of the last round.

        Those of an analysis follow the one that counts the sites that may not answer it.
        """
        if self.private_tables is not None:
            largest = self.largest_private_number
            return tuple(Number(name, largest, PRIVATE_SCALE, True) for name in self.private_tables.names), (), ()
        found: tuple[list[Number], list[Number], list[Number]] = ([], [], [])
        for analysis, arithmetic in zip(self.analyses, self.arithmetics, strict=True):
            for numbers, place in zip((arithmetic.first, arithmetic.newton, arithmetic.last), found, strict=True):
                if numbers:
                    named = (Number("not answered", 1), *numbers)
                    place += [replace(one, name=f"{one.name}, {analysis.name}") for one in named]
        return tuple(found[0]), tuple(found[1]), tuple(found[2])

    @property
    def sizes(self) -> tuple[int, int, int]:
        first, newton, last = self.numbers_by_round
        return len(first), len(newton), len(last)

    @property
    def method_name(self) -> str:
        return "statistics"

    @cached_property
    def stages(self) -> Stages:
        """Return the stages: a round of counts, Newton rounds for models, and a last round of curves and estimates."""
        every = () if self.privacy is not None else self.arithmetics
        newton = [(Stage.NEWTON, self.newton_rounds)] if any(one.newton for one in every) else []
        return (Stage.STATISTICS, 1), *newton, *([(Stage.GUARD, 1)] if any(one.last for one in every) else [])

    @cached_property
    def noise_variance(self) -> int:
        return 0 if self.privacy is None else share_variance(self.privacy.ratio, self.honest)

    @property
    def largest_private_number(self) -> int:
        """Return the largest size of one integer of a private sum. A larger sum is clipped before noise is added."""
        return LARGEST_PATIENTS * PRIVATE_SCALE + LARGEST_NOISE
