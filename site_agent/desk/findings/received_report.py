"""Shows the report of a site that only received a model. The model was not tested at this site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from host.printed_page import Section, page, paragraph, table

Facts: TypeAlias = Mapping[str, Any]
RECEIVING: Final = "receiving"  # the key that a report has only at a site that received a model
_NEXT: Final = (
    "A model without a test here is a first guess. `site-agent predict` uses it. `site-agent monitor` scores it on a "
    "table with outcomes when they are known. A person should look at that score before the model is adopted."
)


def received_lines(facts: Facts) -> Iterator[str]:
    """Yield the report about a received model as lines for the terminal."""
    found = facts[RECEIVING]
    yield f"{facts['site']}: run {facts['run']}, method {facts['method']}, {facts['rows']['table']} rows in the table"
    yield found["sentence"]
    if not found["has_model"]:
        return
    yield f"Columns of the score that this site records: {_recorded(found)}."
    if facts["task"] == "binary":
        share, origin = found["prevalence"], found["prevalence_is_of"]
        told = f"the share with the outcome at {origin}" if share is None else f"{share:.1%}, as {origin} says"
        yield f"The mean predicted probability of this site's patients is {told}."
    yield _NEXT


def received_page(facts: Facts) -> str:
    """Return the report about a received model as one printable page, with the model's coefficients."""
    opening = [paragraph(line, "lead" if place == 1 else "") for place, line in enumerate(received_lines(facts))]
    rows = [
        [one["column"], f"{one['all_sites']:+.3f}", f"{one['standard_error']:.3f}", _where(one)]
        for one in facts[RECEIVING]["coefficients"]
    ]
    parts = [
        table("What the other hospitals found", ["column", "coefficient of all sites", "standard error", "here"], rows)
    ]
    sections = [Section(heading="What the other hospitals found", parts=parts)]
    return page(f"{facts['site']}: the model that was received in the run {facts['run']}", opening, sections)


def _recorded(found: Mapping[str, Any]) -> str:
    used = [one for one in found["coefficients"] if one["is_used"]]
    return f"{sum(one['is_recorded_here'] for one in used)} of {len(used)}"


def _where(one: Mapping[str, Any]) -> str:
    if not one["is_used"]:
        return "not used: too few sites record it"
    return "recorded" if one["is_recorded_here"] else "not recorded: counts as the mean of all sites"
