"""Drafts a contract from a table. Each guess has a comment, and a person must correct the draft."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as arrow

from protos.plan.concepts import Concept, NumberConcept
from site_agent.desk.drafting.column_draft import (
    ColumnDraft,
    Line,
    feature_line,
    follow_up_line,
    identifier_line,
    noted_draft,
    noted_line,
    scalar,
    target_line,
)
from site_agent.desk.drafting.format_guess import guess_format, has_header, may_be_patient
from site_agent.desk.drafting.redcap_dictionary import dictionary_notes, export_note
from site_agent.desk.examination.examined_outcome import FOLLOW_UP
from site_agent.desk.examination.examined_rows import SUMMARY
from site_agent.trainer.data.cell_rules import UNPROVED
from site_agent.trainer.data.cells import decimal_marks, thousands
from site_agent.trainer.data.columns import written_name
from site_agent.trainer.data.contract import ExcelFormat, Format, LabelledFormat, SqlFormat, TableFormat
from site_agent.trainer.data.labelled_files import FileNote, labelled_notes
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.table_sources import Doubt, Wanted, blocks_of, first_row, first_rows, open_rows, texts_of

MOST_ROWS: Final = 20_000
_TO_EXPORT: Final = {
    "excel": "name another sheet with --sheet NAME",
    "sql": "look at the query; a CSV file beside it needs commas or semicolons, and its names in the first line",
}
_NUMBER: Final = re.compile(r"[-+<>]?\d[\d.,:/ -]*([eE][-+]?\d+)?")  # or a date
_MOST_REMARKED: Final = 5000  # columns: all remarks of more would not fit into a contract
_YEARS: Final = 1900  # numbers from here on are years of the calendar, and no time of follow-up
_MISSING: Final = frozenset(("NA", "NaN", "NULL", "?", "."))
_LONG_VALUES: Final = re.compile(r"value(_as_number|num)?|result|wert|ergebnis", re.I)
_LONG_KINDS: Final = re.compile(r"(measurement|observation)_c.*|test|analyte?|variable|parameter|item(id)?|loinc", re.I)
_LETTERS: Final = {"windows-1252": "  # of Western Europe: are the letters right? Else export as UTF-8"}
_LONG: Final = "each row seems to be one measurement: make one row for each patient, as contract-omop.yaml does"
_OUTCOME: Final = re.compile(
    r"target|outcome|label|class|y|event|.*death.*|.*died.*|.*status|dead|cnsr|cens(or(ed|ing)?)?|relapse|chd|num|diagnosis"
    r"|.*(mortality|readmi|expire|deceased|verst[oe]rben|sterb|décès|décédé).*|.*_event",
    re.I,
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A drafted contract as YAML, the number of rows that were read, and whether the table has more rows."""

    text: str
    rows: int
    has_more: bool


def describe(
    path: Path,
    *,
    sheet: str | None = None,
    query: str | None = None,
    dictionary: Path | None = None,
    concepts: Sequence[Concept] = (),
) -> Draft:
    """Draft a contract from a hospital's table, as YAML with comments for the person who corrects it.

    The first 20,000 rows of a long table are read, and fewer of a wide one. `dictionary` is REDCap's data dictionary.
    Columns with the names of `concepts` are mapped to them.

    Raises:
        OperatorError: the table or the dictionary cannot be read, or the table has no rows or no usable names.
    """
    doubts = list[Doubt]()
    form, start = _with_header(path, guess_format(path, sheet=sheet, query=query), doubts)
    notes = labelled_notes(path, form) if isinstance(form, LabelledFormat) else {}
    notes = notes if dictionary is None else dictionary_notes(dictionary, form.decimal)
    before = tuple(doubts)
    columns, nameless, rows, has_more = _columns(path, form, notes, doubts, start)
    if isinstance(form, ExcelFormat) and (typed := [one.name for one in columns if one.has_typed_commas]):
        told = f"column {', '.join(typed)}: numbers are typed as text with a comma, so decimal: ',' is declared"
        form, doubts = form.model_copy(update={"decimal": ","}), [*before, Doubt(told)]
        columns, nameless, rows, has_more = _columns(path, form, notes, doubts, start)
    names = [column.name for column in columns]
    _check_size(form, rows, names)
    if dictionary is not None and not any(name in notes for name in names):
        refuse(["no column has a name of the dictionary; export raw data and not labels"])
    is_long = any(map(_LONG_VALUES.fullmatch, names)) and any(map(_LONG_KINDS.fullmatch, names))
    both = zip(columns, _lines(columns), strict=True)
    lines = [_mapped(noted_line(one, line, notes.get(one.name) or export_note(one)), concepts) for one, line in both]
    codes = {code for column in columns if column.is_coded for code in column.codes}
    markers = sorted({marker for column in columns for marker in column.markers} - codes)
    head = [
        f"# Drafted by `site-agent data describe` from {'the first ' if has_more else ''}{rows} rows.",
        "# Every line is a guess. Correct it, add units and the meaning of codes, then run `site-agent data check`.",
        "# All keys are explained in deploy/examples/contract.yaml.",
        *_format_lines(form),
        *(f"# Column number {place} has no name in the header, so it is never read." for place in nameless),
        *(f"# suspicious: {one.words}" for one in (*doubts, *[Doubt(_LONG)] * is_long)),
        f"missing_markers: {json.dumps(markers, ensure_ascii=False)}",
        "columns:",
    ]
    body = [text for line in lines for text in (*(f"  # {word}" for word in line.words), f"  - {line.text}")]
    body = [one for one in body if len(lines) <= _MOST_REMARKED or one[:4] != "  # " or "suspicious" in one]
    return Draft(text="\n".join([*head, *body]) + "\n", rows=rows, has_more=has_more)


def _check_size(form: Format, rows: int, names: list[str]) -> None:
    if not rows or len(names) < 2:
        what = "one column" if rows else "names of columns, but no rows"
        refuse([f"the table has {what}; {_TO_EXPORT.get(form.kind, 'export it with its rows and columns')}"])


def _mapped(line: Line, concepts: Sequence[Concept]) -> Line:
    """Return a line with the concept that has the name of its column, if it is of the same kind."""
    keys = dict(line.keys)
    own = re.sub(r"[^a-z0-9]+", "-", json.loads(keys["name"]).lower() if '"' in keys["name"] else keys["name"].lower())
    concept = next((one for one in concepts if one.name == own), None)
    is_number = keys.get("type") == "numeric" or keys["role"] == "follow-up" or keys.get("task") == "regression"
    if concept is None or isinstance(concept, NumberConcept) != is_number or keys["role"] in ("ignore", "patient"):
        return line
    told = f"the concept {concept.name}: {concept.definition}"
    if isinstance(concept, NumberConcept):
        told += f", in {concept.unit}" if concept.unit else ""
    else:
        told += f", with the codes {', '.join(concept.codes)}; add concept_codes, in the order of your codes"
    return Line(keys=(*line.keys, ("concept", concept.name)), words=(*line.words, told))


def _may_be_header(rows: list[list[str]], widest: int) -> bool:
    """Return whether the first row has the columns' names: texts in over half of the cells, or more than a title has.

    A row with a number can be a patient's, and is taken only if `has_header`. Else the first row is the header.
    """
    filled = sum(map(bool, map(str.strip, rows[0])))
    is_long = filled > 2 or 2 * filled > widest
    return is_long and (not any(_NUMBER.fullmatch(cell.strip()) for cell in rows[0]) or has_header(rows))


def _is_second(cells: list[str], below: list[list[str]]) -> bool:
    """Return whether the row below the header has more names, or units: texts above numbers, and no number."""
    columns = [[row[place].strip() for row in below if place < len(row)] for place in range(len(cells))]
    numbers = [sum(map(bool, map(_NUMBER.fullmatch, column))) > len(column) / 2 for column in columns]
    above = [cell.strip() for cell, is_number in zip(cells, numbers, strict=True) if is_number]
    return len(below) > 1 and any(above) and not any(_NUMBER.fullmatch(one) or one in _MISSING for one in above)


def _with_header(path: Path, form: Format, doubts: list[Doubt]) -> tuple[Format, int]:
    """Return a table's format, also with whether a sheet has names of columns, and the number of the row with them."""
    if not (isinstance(form, TableFormat | ExcelFormat) and form.header):
        return form, 1
    top = first_rows(path, form)
    lines = [cells for _, cells in top]
    widest = max((sum(map(bool, map(str.strip, cells))) for cells in lines), default=0)
    place = next((place for place in range(len(lines)) if _may_be_header(lines[place:], widest)), 0)
    if not place and isinstance(form, ExcelFormat) and lines and not _is_named(lines):
        return form.model_copy(update={"header": False}), 1
    if len(lines) > place + 1 and _is_second(lines[place + 1], lines[place + 2 :]):
        told = "has texts above numbers; if they are names or units, leave one row of names in the table"
        doubts.append(Doubt(f"row {top[place + 1][0]} {told}"))
    if place:
        doubts.append(Doubt(f"the names of the columns are in row {top[place][0]}, and what is above it is not read"))
    return form, top[place][0] if place else 1


def _is_named(rows: list[list[str]]) -> bool:
    """Return whether the first row has names, of which some can be absent."""
    return has_header([[cell.strip() or "\1" for cell in rows[0]], *rows[1:]])


def _columns(
    path: Path, form: Format, notes: Mapping[str, FileNote], doubts: list[Doubt], start: int
) -> tuple[list[ColumnDraft], list[int], int, bool]:
    """Return the named columns, the numbers of those without a name, the rows read, and whether there are more."""
    with open_rows(path, form, doubts, Wanted(start)) as rest:
        width = len((first := first_row(rest))[1])
        names = [written_name(one) if form.header else f"column_{at}" for at, one in enumerate(first[1], start=1)]
        cells: dict[int, list[str]] = {place: [] for place, name in enumerate(names) if name}
        flaws: dict[int, Counter[str]] = defaultdict(Counter)
        nameless = [place for place, name in enumerate(names, start=1) if not name]
        _check_names(names)
        rest = rest if form.header else itertools.chain([first], rest)
        most, rows, last, has_more = min(MOST_ROWS, max(100, 2_000_000 // width)), 0, 0, False
        for block in blocks_of(rest, width, list(cells)):
            numbers = sorted([*block.rows.tolist(), *block.ragged])
            taken = numbers[: most - rows]
            rows += len(taken)
            last = taken[-1] if taken else 0
            for place, column in cells.items():
                column += texts_of(block.columns[place].slice(0, int(np.count_nonzero(block.rows <= last))))
            for _, place, flaw in (one for one in block.unreadable if one[0] <= last):
                flaws[place][flaw.words] += 1
            if has_more := len(numbers) > len(taken):
                break
    cells_of = {names[place]: column for place, column in cells.items()}
    if isinstance(form, SqlFormat) and path.suffix.lower() == ".csv":
        _check_result(form.query, {name: column[:200] for name, column in cells_of.items()}, doubts)
    drafts = _drafts(cells_of, form.decimal, notes)
    for draft, place in zip(drafts, cells, strict=True):
        draft.unread = flaws[place]
    doubts[:] = [
        replace(one, words=f"column {names[one.place]}: {one.words}") if one.place in cells else one for one in doubts
    ]
    marks = {one.name: decimal_marks(arrow.array(one.texts.elements(), arrow.string())) for one in drafts}
    doubts += [] if has_more else _summaries(list(cells.values()), last)
    for name in thousands(marks) if isinstance(form, TableFormat) else ():
        doubts.append(Doubt(UNPROVED if name is None else f"column {name}: {UNPROVED}"))
    return drafts, nameless, rows, has_more


def _summaries(columns: list[list[str]], last: int) -> list[Doubt]:
    ends = [column for column in columns if column and column[-1].strip()]
    begin, *others = [column[-1].strip() for column in ends] or [""]
    is_once = bool(SUMMARY.fullmatch(begin)) and ends[0].count(ends[0][-1]) == 1
    told = Doubt(f"row {last} begins with a word for a summary; is it a patient?")
    return [told] if is_once and all(map(_NUMBER.fullmatch, others)) else []


def _drafts(cells: Mapping[str, list[str]], decimal: str, notes: Mapping[str, FileNote]) -> list[ColumnDraft]:
    drafts = [noted_draft(name, decimal, column, notes) for name, column in cells.items()]
    if any("NA" in draft.markers for draft in drafts):  # then it is no code of another column
        for place, draft in enumerate(drafts):
            if "NA" in draft.texts:
                column = ["" if cell.strip() == "NA" else cell for cell in cells[draft.name]]
                drafts[place] = noted_draft(draft.name, decimal, column, notes)
    return drafts


def _check_result(query: str, cells: Mapping[str, list[str]], doubts: list[Doubt]) -> None:
    """Ask about names that are like values below them. Refuse those that can be a patient: the query's own cannot."""
    if _is_named([[*cells], *map(list, zip(*cells.values(), strict=True))]):
        return
    own, word = query.casefold(), r"(?<!\w)%s(?!\w)"
    found = {one for one in cells if one.casefold() not in own or not re.search(word % re.escape(one), query, re.I)}
    if found and may_be_patient([(name, list(map(str.strip, cells[name]))) for name in found]):
        refuse(["the query's names are like its values; write names above a CSV file's rows, or AS and another name"])
    doubts.append(Doubt("some names of the query's result are like values: are they names, and no patient's?"))


def _check_names(names: list[str]) -> None:
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names, start=1):
        places[name.lower()].append(place)
    if not places.keys() - {""}:
        refuse(["the first row has no names of columns"])
    twice = [" and ".join(map(str, some)) for name, some in places.items() if name and len(some) > 1]
    if twice:
        told = "have one name, capitals not distinguished; rename one, or export raw data if these are labels of REDCap"
        refuse([f"the header's columns number {some} {told}" for some in twice])


def _lines(columns: list[ColumnDraft]) -> list[Line]:
    outcome = _outcome(columns)
    identifier = next((column for column in columns if column.is_named_as_identifier and column is not outcome), None)
    follow_up, asked = _follow_up(columns, outcome)
    lines = []
    for column in columns:
        if column is outcome:
            line = target_line(column, is_timed=follow_up is not None)
            lines.append(replace(line, words=(*line.words, *asked)))
        elif column is follow_up:
            lines.append(follow_up_line(column, outcome))
        elif column is identifier:
            lines.append(identifier_line(column))
        else:
            lines.append(feature_line(column))
    return lines


def _follow_up(columns: list[ColumnDraft], outcome: ColumnDraft) -> tuple[ColumnDraft | None, list[str]]:
    """Return the time of an outcome, by the names' common part, and a question if there are several such pairs."""
    named = (one for one in columns if FOLLOW_UP.fullmatch(one.name) and one.is_numeric and not one.is_coded)
    times = [one for one in named if one.numbers.min() < _YEARS and (abs(one.numbers - 2000) > 100).mean() > 0.5]
    if not outcome.is_coded or not times:
        return None, []
    ends = [one for one in columns if one is outcome or (one.is_coded and _OUTCOME.fullmatch(one.name))]
    pairs = {end.name: max(times, key=partial(_in_common, end)) for end in ends}
    told = " or ".join(f"{name} with {time.name}" for name, time in pairs.items())
    asked = [f"suspicious: which outcome is it: {told}? Set `role: ignore` for the columns of the others"]
    return pairs[outcome.name], asked * (len({time.name for time in pairs.values()}) > 1)


def _in_common(one: ColumnDraft, other: ColumnDraft) -> int:
    a, b = one.name.lower(), other.name.lower()
    return max(n for n in range(len(b) + 1) if n != 1 and (a.startswith(b[:n]) or a.endswith(b[len(b) - n :])))


def _outcome(columns: list[ColumnDraft]) -> ColumnDraft:
    """Return the column that is probably the outcome: by its name, else the last column with codes, else the last."""
    coded = [column for column in columns if column.is_coded]
    if named := [column for column in coded if _OUTCOME.fullmatch(column.name)]:
        return named[-1]
    last = next((one for one in reversed(columns) if len(one.codes) != 1), columns[-1])
    return last if last.is_coded or last.is_numeric or not coded else coded[-1]


def _format_lines(form: Format) -> list[str]:
    if isinstance(form, SqlFormat):
        return ["format:", "  kind: sql", "  query: |", *(f"    {line}" for line in form.query.splitlines())]
    keys = form.model_dump(
        exclude_none=True, exclude={"kind"} if form.kind == "text" else None, exclude_defaults=form.kind != "text"
    )
    lines = [
        f"  {key}: {json.dumps(value) if isinstance(value, bool) else scalar(value)}{_LETTERS.get(value, '')}"
        for key, value in keys.items()
    ]
    told = "  # no first row of names was found: name the columns below. If it has some, as years, write header: true"
    return ["format:", *([] if form.header else [told]), *lines]
