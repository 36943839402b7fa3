"""Drafts a contract from a table. Each guess has a comment, and a person must correct the draft.

The draft has no value of a patient: ranges are rounded outward, and words that occur once are not listed.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

import numpy as np

from protos.errors import DataError
from site_agent.desk.drafting.column_draft import (
    Line,
    feature_line,
    identifier_line,
    is_coded,
    is_identifier,
    is_of_stay,
    scalar,
    suspicious_numbers,
    target_line,
)
from site_agent.desk.drafting.table_profile import ColumnDraft
from site_agent.desk.examination.read_hints import guess_format
from site_agent.trainer.data.contract import ExcelFormat, Format, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.table_sources import blocks_of, first_row, open_rows

MOST_ROWS: Final = 100_000
_MOST_CELLS: Final = 10_000_000
_MOST_COMMENTED: Final = 1000
_MANY: Final = 3
_FEWEST_COLUMNS: Final = 2  # a feature and the outcome
_MOST_NAMED: Final = 5
_OUTCOME: Final = re.compile(
    r"target|outcome|label|class|y|event|.*death.*|.*died.*|status|chd|num|diagnosis|.*mortality.*|.*readmi.*", re.I
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A drafted contract as YAML, the number of rows that were read, and whether the table has more rows."""

    text: str
    rows: int
    has_more: bool


def describe(path: Path, *, sheet: str | None = None, query: str | None = None) -> Draft:
    """Draft a contract from a hospital's table, as YAML with comments for the person who corrects it.

    Args:
        path: the table. The first hundred thousand rows of a long table are read, and fewer of a wide one.

    Raises:
        DataError: the table cannot be read, has no rows or no usable names.
    """
    try:
        form = guess_format(path, sheet=sheet, query=query)
    except OSError as cause:
        raise DataError(
            what=f"The table {path} cannot be read: {cause.strerror}.",
            consequence="No draft of a contract was written, and nothing was sent.",
            remedy="Give the path of an existing file that your user account may read.",
        ) from cause
    columns, nameless, rows, has_more = _columns(path, form)
    if not rows or len(columns) < _FEWEST_COLUMNS:
        raise _no_table(path, form, rows)
    shared = _shared_markers(columns)
    lines = _lines(columns, frozenset(shared))
    markers = sorted({marker for column in columns for marker in column.markers})
    markers += [f"{marker:g}" for marker in shared if f"{marker:g}" not in markers]
    head = [
        f"# Drafted by `site-agent data describe` from {'the first ' if has_more else ''}{rows} rows.",
        "# Every line is a guess. Correct it, add units and the meaning of codes, then run `site-agent data check`.",
        "# All keys are explained in deploy/examples/contract.yaml.",
        *_format_lines(form),
        *(f"# Column number {place} has no name in the header, so it is never read." for place in nameless),
        *_shared_words(shared),
        f"missing_markers: {json.dumps(markers, ensure_ascii=False)}",
        "columns:",
    ]
    is_commented = len(lines) <= _MOST_COMMENTED
    comments = ([f"  # {text}" for text in line.words if is_commented] for line in lines)
    body = [text for words, line in zip(comments, lines, strict=True) for text in (*words, f"  - {line.text}")]
    return Draft(text="\n".join([*head, *body]) + "\n", rows=rows, has_more=has_more)


def _no_table(path: Path, form: Format, rows: int) -> DataError:
    """Return the error about a table without rows, or with a single column, such as a sheet with a note."""
    what = f"The table {path} has names of columns, but no rows." if not rows else f"The table {path} has one column."
    remedy = "Export the table again with the rows of the patients and all their columns."
    if isinstance(form, ExcelFormat):
        from site_agent.trainer.data.workbook import sheet_names

        names = sheet_names(path)
        read = form.sheet or names[0]
        others = ", ".join(name for name in names if name != read)
        if others:
            what = f"{what.removesuffix('.')} in the sheet {read}. The other sheets are: {others}."
            remedy = (
                "Move the sheet with the patients to the first place in the workbook. Or name this sheet: `site-agent "
                f"data describe {path.name} --sheet NAME`."
            )
    return DataError(what=what, consequence="No draft of a contract was written, and nothing was sent.", remedy=remedy)


def _columns(path: Path, form: Format) -> tuple[list[ColumnDraft], list[int], int, bool]:
    """Return the named columns, the numbers of those without a name, the rows read, and whether there are more."""
    with open_rows(path, form, []) as rest:
        first = first_row(rest)
        width = len(first[1])
        numbered = [f"column_{place}" for place in range(1, width + 1)]
        names = [cell.strip() for cell in first[1]] if form.header else numbered
        columns = {place: ColumnDraft(name, form.decimal) for place, name in enumerate(names) if name}
        nameless = [place for place, name in enumerate(names, start=1) if not name]
        _check_names(names)
        rest = rest if form.header else itertools.chain([first], rest)
        most, rows, has_more = min(MOST_ROWS, max(100, _MOST_CELLS // width)), 0, False
        for block in blocks_of(rest, width, list(columns)):
            numbers = sorted([*block.rows.tolist(), *block.ragged])
            taken = numbers[: most - rows]
            rows += len(taken)
            count = int(np.count_nonzero(block.rows <= taken[-1])) if taken else 0
            for place, column in columns.items():
                column.take(block.columns[place][:count])
            if has_more := len(numbers) > len(taken):
                break
        for column in columns.values():
            column.settle()
        return list(columns.values()), nameless, rows, has_more


def _check_names(names: list[str]) -> None:
    for place, name in enumerate(names, start=1):
        if not name.isprintable():
            refuse([f"the header's column number {place} has a name that cannot be printed"])
    given = [name.lower() for name in names if name]
    if not given:
        refuse(["the first row has no names of columns"])
    if len(set(given)) < len(given):
        refuse(["the header has a name twice, small and capital letters not distinguished"])


def _shared_markers(columns: list[ColumnDraft]) -> dict[float, list[str]]:
    """Return the numbers that seem to mean "not known" in many columns, with the names of these columns.

    A number is left out if it seems to have its normal meaning somewhere: among the amounts of another column, in the
    outcome, or, for 0, among the codes of any column.
    """
    outcome, found = _outcome(columns), dict[float, list[str]]()
    for column in columns:
        for marker in suspicious_numbers(column) if column is not outcome else ():
            found.setdefault(marker, []).append(column.name)

    def means_itself(marker: float, column: ColumnDraft) -> bool:
        is_code = is_coded(column) and marker != 0.0 and column is not outcome
        return marker in column.candidates and column.name not in found[marker] and not is_code

    return {
        marker: names
        for marker, names in sorted(found.items())
        if len(names) >= _MANY and not any(means_itself(marker, column) for column in columns)
    }


def _shared_words(shared: dict[float, list[str]]) -> list[str]:
    words = []
    for marker, names in shared.items():
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        words.append(
            f"# suspicious: {marker:g} lies far from all other values in {len(names)} columns"
            f" ({', '.join(map(scalar, names[:_MOST_NAMED]))}{more}), as a marker for not known does;"
            " it stands here once, for all columns"
        )
    return words


def _lines(columns: list[ColumnDraft], shared: frozenset[float]) -> list[Line]:
    outcome = _outcome(columns)
    identifiers = [column for column in columns if is_identifier(column) and column is not outcome]
    identifier = min(identifiers, key=is_of_stay, default=None)  # the first of the patients' own numbers, if any
    lines = []
    for column in columns:
        if column is outcome:
            lines.append(target_line(column))
        elif column is identifier:
            lines.append(identifier_line(column))
        else:
            lines.append(feature_line(column, shared))
    return lines


def _outcome(columns: list[ColumnDraft]) -> ColumnDraft:
    """Return the column that is probably the outcome: by its name, else the last column with codes, else the last."""
    named = [column for column in columns if _OUTCOME.fullmatch(column.name) and is_coded(column)]
    coded = [column for column in columns if is_coded(column)]
    if named:
        return named[-1]
    last = columns[-1]
    return last if is_coded(last) or last.is_numeric or not coded else coded[-1]


def _format_lines(form: Format) -> list[str]:
    match form:
        case TableFormat():
            told = "" if form.header else "  # no first row of names was found: name the columns below, in their order"
            return [
                "format:",
                f"  header: {str(form.header).lower()}{told}",
                f"  delimiter: {json.dumps(form.delimiter)}",
                f"  encoding: {form.encoding}",
                f'  decimal: "{form.decimal}"',
            ]
        case ExcelFormat():
            return ["format:", "  kind: excel", *([f"  sheet: {scalar(form.sheet)}"] if form.sheet else [])]
        case ParquetFormat():
            return ["format:", "  kind: parquet"]
        case SqlFormat():
            return ["format:", "  kind: sql", "  query: |", *(f"    {line}" for line in form.query.splitlines())]
        case _:
            assert_never(form)
