"""Defines the plan's list of columns, with the sites that record them.

If a site does not record a column, the column's numbers in its update are 0, or follow from the plan alone. So their
sum is over the sites that record the column. The rules:

* a plan names the sites that record a column, unless all sites do;
* under masking, the plan is refused unless these sites are at least two more than the assumed colluders;
* each site's trainer compares its own table with the plan's declarations, and refuses a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from protos.plan.documents import Document

ColumnName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Recorders: TypeAlias = Annotated[tuple[str, ...], Field(max_length=100)]


class ListedColumn(Document):
    """An encoded column of the plan.

    `recorded_by` are the training sites that record it; None means all of them. If no site is listed, every site leaves
    the column out.
    """

    name: ColumnName
    recorded_by: Recorders | None = None


def _form(found: object) -> str:
    return "record" if isinstance(found, dict | Document) else "plain"


# A plan may write only a name instead of a column.
Column: TypeAlias = Annotated[
    Annotated[ColumnName, Tag("plain")] | Annotated[ListedColumn, Tag("record")], Discriminator(_form)
]


def why_refused(columns: tuple[ListedColumn, ...], *, training_sites: frozenset[str], fewest: int) -> Iterator[str]:
    """Yield each reason why the plan's list of partly recorded columns is refused, as one clause.

    Args:
        fewest: the number of contributors that every number needs.
    """
    for entry in columns:
        listed = entry.recorded_by or ()
        sites = frozenset(listed)
        if not sites <= training_sites or len(sites) != len(listed):
            yield (
                f"recorded_by of the column {entry.name} lists a site twice, or lists a site that does not train in "
                "this plan"
            )
        elif len(sites) < fewest:
            yield (
                f"only {len(sites)} sites record the column {entry.name}, but masking needs at least {fewest} sites. "
                "Set recorded_by to [], so that every site leaves it out, or choose a method that keeps its layer "
                "private (global-layers)"
            )
