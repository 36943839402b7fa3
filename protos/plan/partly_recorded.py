"""Defines the plan's lists of columns and outputs, with the sites that record them.

If a site does not record a column, the column's numbers in its update are 0, or follow from the plan alone. So their
sum is over the sites that record the column. The rules:

* a plan names the sites that record a column or have patients with an outcome, unless all sites do;
* under masking, the plan is refused unless these sites are at least two more than the assumed colluders;
* each site's trainer compares its own table with the plan's declarations, and refuses a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from protos.plan.documents import Document

OutputCount: TypeAlias = Annotated[int, Field(ge=1, le=10_000)]
ColumnName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Recorders: TypeAlias = Annotated[tuple[str, ...], Field(max_length=100)]


class ListedColumn(Document):
    """An encoded column of the plan.

    `recorded_by` are the training sites that record it; None means all of them. If no site is listed, every site leaves
    the column out.
    """

    name: ColumnName
    recorded_by: Recorders | None = None

    @property
    def what(self) -> str:
        """Return the name that messages use for this column."""
        return f"column {self.name}"


class PartlyObserved(Document):
    """A class of the outcome of which some training sites have no training patients; `output` counts from 0."""

    output: int = Field(ge=0, lt=10_000)
    recorded_by: Annotated[Recorders, Field(min_length=1)]

    @property
    def what(self) -> str:
        """Return the name that messages use for this output."""
        return f"output {self.output}"


class ListedOutputs(Document):
    """The number of outputs: 1 for two classes or for a number, otherwise the number of classes."""

    count: OutputCount
    partly_observed: tuple[PartlyObserved, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        numbers = [entry.output for entry in self.partly_observed]
        if len(set(numbers)) != len(numbers) or max(numbers, default=0) >= self.count:
            raise ValueError("partly_observed lists an output twice, or an output that the plan does not have")
        return self


def _form(found: object) -> str:
    return "record" if isinstance(found, dict | Document) else "plain"


# A plan may write only a name instead of a column, and only a number instead of outputs.
Column: TypeAlias = Annotated[
    Annotated[ColumnName, Tag("plain")] | Annotated[ListedColumn, Tag("record")], Discriminator(_form)
]
Outputs: TypeAlias = Annotated[
    Annotated[OutputCount, Tag("plain")] | Annotated[ListedOutputs, Tag("record")], Discriminator(_form)
]


def why_refused(
    partly: tuple[ListedColumn | PartlyObserved, ...], *, training_sites: frozenset[str], fewest: int
) -> Iterator[str]:
    """Yield each reason why the plan's list of partly recorded columns and outputs is refused, as one clause.

    Args:
        fewest: the number of contributors that every number needs.
    """
    for entry in partly:
        listed = entry.recorded_by or ()
        sites = frozenset(listed)
        if not sites <= training_sites or len(sites) != len(listed):
            yield (
                f"recorded_by of the {entry.what} lists a site twice, or lists a site that does not train in this plan"
            )
        elif len(sites) < fewest:
            yield (
                f"only {len(sites)} sites record the {entry.what}, but masking needs at least {fewest} sites. Set "
                "recorded_by to [], so that every site leaves it out, or choose a method that keeps its layer private "
                "(global-layers)"
            )
