"""The review as one HTML file to read, print and sign. It has no script and no link, and loads nothing.

Every word of a plan is text here: `host.printed_page` escapes it, and the page forbids everything active.
"""

from __future__ import annotations

from collections.abc import Iterable

from host.printed_page import Section as Part
from host.printed_page import page, paragraph, table
from site_agent.desk.plan_review import Section, Table


def review_page(title: str, sections: Iterable[Section], *, signatures: int) -> str:
    """Return a complete document.

    Args:
        title: shown at the top.
        sections: as the terminal shows them.
        signatures: how many lines to sign on.
    """
    lines = tuple((f"{number}.", "", "", "") for number in range(1, signatures + 1))
    signed = table("Signatures", ("line", "name", "date", "signature"), lines, style="sign")
    parts = [Part(heading=section.heading, parts=_parts(section)) for section in sections]
    return page(title, (), [*parts, Part(heading="Signatures", parts=[signed])])


def _parts(section: Section) -> list[str]:
    drawn = [paragraph(sentence) for sentence in section.sentences]
    return [*drawn, *([] if section.table is None else [_table(section.heading, section.table)])]


def _table(heading: str, found: Table) -> str:
    return table(heading, found.head, found.rows)
