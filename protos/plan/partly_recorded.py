"""Checks the columns and outcomes that, according to the plan, only some sites record.

If a site does not record a column, the column's numbers in its update are 0, or follow from the plan alone. So their
sum is over the sites that record the column. The rules:

* a plan names the sites that record a column or have patients with an outcome, unless all sites do;
* under masking, the plan is refused unless these sites are at least two more than the assumed colluders;
* each site's trainer compares its own table with the plan's declarations, and refuses a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

from pydantic import Field, StringConstraints

from protos.plan.documents import Document

Column: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Recorders: TypeAlias = Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]


class PartlyRecorded(Document):
    """An encoded column of the plan that some training sites do not record."""

    column: Column
    recorded_by: Recorders

    @property
    def what(self) -> str:
        """Return the name that messages use for this column."""
        return f"column {self.column}"


class PartlyObserved(Document):
    """A class of the outcome of which some training sites have no training patients; `output` counts from 0."""

    output: int = Field(ge=0, lt=10_000)
    recorded_by: Recorders

    @property
    def what(self) -> str:
        """Return the name that messages use for this output."""
        return f"output {self.output}"


def why_refused(
    partly: tuple[PartlyRecorded | PartlyObserved, ...],
    *,
    columns: tuple[str, ...],
    outputs: int | None,
    training_sites: frozenset[str],
    fewest: int,
) -> Iterator[str]:
    """Yield each reason why the plan's list of partly recorded columns and outputs is refused, as one clause.

    Args:
        fewest: the number of contributors that every number needs.
    """
    if len({entry.what for entry in partly}) != len(partly):
        yield "the plan lists a column or an output twice under partly_recorded or partly_observed"
    for entry in partly:
        sites = frozenset(entry.recorded_by)
        is_listed = entry.column in columns if isinstance(entry, PartlyRecorded) else entry.output < (outputs or 0)
        if not is_listed:
            yield (
                f"the plan states that only some sites record the {entry.what}, but the plan has no such column or "
                "output"
            )
        if not sites <= training_sites or len(sites) != len(entry.recorded_by):
            yield (
                f"recorded_by of the {entry.what} lists a site twice, or lists a site that does not train in this plan"
            )
        elif len(sites) < fewest:
            yield (
                f"only {len(sites)} sites record the {entry.what}, but masking needs at least {fewest} sites. List "
                "the column under unused_columns, or choose a method that keeps its layer private (global-layers)"
            )
