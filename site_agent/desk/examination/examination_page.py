"""Writes the findings about a hospital's table as an HTML page that needs no other file, and as lines for a terminal.

The page has row numbers and counts of patients, so it stays at the site.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from host.printed_page import Section, page, paragraph, table
from site_agent.desk.examination.examine import Examination
from site_agent.desk.examination.finding import Level, counted
from site_agent.trainer.data.mistakes import KEPT_ROWS, as_sentences, where

_MOST_COLUMNS: Final = 1000
_MOST_NOTES: Final = 10


def examination_page(examination: Examination, *, site: str, accepted_by: str | None, warnings_stop: bool) -> str:
    """Return the HTML page about a hospital's table. `accepted_by` is the person who accepted the warnings, or None."""
    return page(
        f"The table of {site}",
        [
            paragraph(verdict(examination, accepted_by, warnings_stop=warnings_stop), "lead"),
            paragraph(
                "This page has row numbers and counts of patients. The program does not send this page to anyone "
                "outside this hospital.",
                "soft",
            ),
            paragraph(f"The digest of this examination is {examination.digest}.", "soft"),
        ],
        [
            _findings("Errors", examination, "error"),
            _findings("Warnings", examination, "warning"),
            _findings("Notes", examination, "note"),
            _parts(examination),
            _columns(examination),
        ],
    )


def verdict(examination: Examination, accepted_by: str | None, *, warnings_stop: bool) -> str:
    """Return one or two short sentences: the size of the table, and whether the table is ready."""
    errors, warnings = len(examination.errors), len(examination.warnings)
    size = counted(examination.table.rows, "row")
    if examination.patients is not None:
        size += f" of {counted(examination.patients, 'patient')}"
    if errors:
        return f"{size}. The check found {counted(errors, 'error')}, and the table must be corrected."
    found = f"{size}. The check found {counted(warnings, 'warning')}"
    if warnings and accepted_by is not None:
        return f"{found}, accepted by {accepted_by}."
    if warnings and warnings_stop:
        return f"{found}. First a person must accept the warnings."
    if warnings:
        return f"{found}. Nobody has accepted them, but hospital.yaml allows a run anyway."
    return f"{size}. The check found no error and no warning, so the table is ready."


def _findings(heading: str, examination: Examination, level: Level) -> Section:
    lines = [
        (as_sentences(one.words), str(one.count or ""), ", ".join(map(str, one.rows[:KEPT_ROWS])))
        for one in examination.findings
        if one.level == level
    ]
    head = ("what was found", "number of rows", f"the first {KEPT_ROWS} row numbers")
    return Section(heading=heading, parts=[table(heading, head, lines)] if lines else [])


def _parts(examination: Examination) -> Section:
    if examination.parts is None:
        return Section(heading="Parts of the split", parts=[])
    head = ("part", "rows", "patients", *examination.table.contract.target.classes)
    lines = [
        (
            part.name,
            str(part.rows),
            "" if part.patients is None else str(part.patients),
            *(f"{count} ({count / max(part.rows, 1):.1%})" for count in part.by_class.values()),
        )
        for part in examination.parts
    ]
    return Section(heading="Parts of the split", parts=[table("Parts of the split", head, lines)])


def _columns(examination: Examination) -> Section:
    lines = []
    for column in examination.table.contract.columns[:_MOST_COLUMNS]:
        missing, alone = examination.missing.get(column.name), examination.alone.get(column.name)
        shown = "" if missing is None else f"{missing:.1%}", "" if alone is None else f"{alone:.2f}"
        parts = [getattr(column, "type", None) or getattr(column, "task", None), getattr(column, "unit", None)]
        what = ", ".join([column.role, *(part for part in parts if part)])
        lines.append((column.name, what, *shown, column.note or ""))
    words = (
        "The number under alone shows how well this column alone predicts the outcome, without the test rows. The "
        "value 0.5 is no better than chance. If the outcome is a number, the value 0 is no better than chance."
    )
    head = ("column", "declared as", "missing", "alone", "note")
    of_alone = [paragraph(words, "soft")] if examination.alone else []
    return Section(heading="Columns", parts=[*of_alone, table("Columns", head, lines)])


def finding_lines(examination: Examination) -> Iterator[str]:
    """Yield a line for every error and warning with its first rows, then a line for each of the first ten notes."""
    for finding in [*examination.errors, *examination.warnings]:
        yield f"{finding.level.upper()}: {as_sentences(finding.words, where(finding.rows, finding.count))}"
    notes = [finding for finding in examination.findings if finding.level == "note"]
    yield from (f"note: {as_sentences(finding.words)}" for finding in notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        yield f"note: {len(notes) - _MOST_NOTES} further notes are on the HTML page."
