"""Reads the rows of a file of SAS, SPSS or Stata, and what it says about its columns.

The library pyreadstat unpacks the file. Its own conversions are switched off, because some lose values: a duration of
25 hours becomes one hour, and a date after the year 9999 an exception. The rules:

* a number that the file declares as missing stays a number, and a special missing value is written .A to .Z (SAS) or .a
  to .z (Stata): the contract decides, and numbers that it does not declare are asked about;
* dates become dates by the file's own format. Times of day and durations stay numbers of seconds;
* text beyond ASCII is read only where the file or the contract says its encoding;
* a file that ends too early, or that holds several tables, is an error. No word of the library is shown.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.cell_rules import canonical_code
from site_agent.trainer.data.contract import LabelledFormat
from site_agent.trainer.data.mistakes import not_installed, refuse, unusable
from site_agent.trainer.data.table_sources import Block, Cells, Doubt, Row, Unreadable, cell_of, shortest

Kind: TypeAlias = Literal["sas7bdat", "xport", "sav", "por", "dta"]
_Convert: TypeAlias = Callable[[float], object]
_Cells: TypeAlias = tuple[Cells, list[tuple[int, Unreadable]]]

START_BYTES: Final = 600  # by which a kind is known
_STARTS: Final[tuple[tuple[bytes, Kind], ...]] = (
    (b"\0" * 12 + b"\xc2\xea\x81\x60\xb3\x14\x11\xcf\xbd\x92\x08\x00", "sas7bdat"),
    (b"HEADER RECORD*******LIBRARY ", "xport"),
    (b"HEADER RECORD*******LIBV8   ", "xport"),
    (b"$FL2", "sav"),
    (b"$FL3", "sav"),
    (b"<stata_dta>", "dta"),
)
_STATA_END: Final = b"</stata_dta>"
_LARGEST_WHOLE: Final = 1 << 53  # beyond it a float64 does not hold every whole number
_SAS_DAY: Final = datetime(1960, 1, 1)  # also Stata's
_SPSS: Final = ((re.compile(r"[AEJS]?DATE\d|DATETIME|YMDHMS|MOYR|QYR|WKYR"), datetime(1582, 10, 14), "seconds"),)
_SAS: Final = (
    (re.compile(r"DATETIME|DATEAMPM|MDYAMPM|DT[A-Z]|NLDATM|[EB]8601D[TZNX]|IS8601D[TZN]"), _SAS_DAY, "seconds"),
    (
        re.compile(
            r"([EB]|IS)8601DA|DATE|DDMMYY|MMDDYY|YYMMDD|YYMM|MMYY|MONYY|YYMON|YYQ|JULIAN|WORDDAT|WEEKDAT|NLDATE|MONNAME"
        ),
        _SAS_DAY,
        "days",
    ),
)
_STATA: Final = (
    (re.compile(r"%-?t?d"), _SAS_DAY, "days"),
    (re.compile(r"%-?tc"), _SAS_DAY, "milliseconds"),  # %tC counts leap seconds, and is left as a number
)
_DATES: Final = {"sav": _SPSS, "por": _SPSS, "sas7bdat": _SAS, "xport": _SAS, "dta": _STATA}
_MONTHS: Final = re.compile(r"%-?tm")
_DURATIONS: Final = re.compile(r"D?TIME|HHMM|MMSS|HOUR|TOD|[EB]8601TM")
_ORDINARY: Final = re.compile(
    r"(\$\w*|A|BEST|F|N|COMMAX?|DOLLARX?|DOT|EUROX?|PERCENTN?|PCT|NUMX|Z|E|D|%-?\d+.*|MONTH|WKDAY|)[\d.]*"
)
_FAR_DATE: Final = Unreadable("a date before the year 1 or after 9999")
_NO_ENCODING: Final = Unreadable(
    "text beyond ASCII, and the file does not say its encoding; declare `encoding` in the format"
)
_SPECIAL: Final = re.compile(r"\.[A-Z_a-z]")  # the special missing values of SAS and Stata
# Units that are hardly anything else: in brackets at the end of a name or label, or at the end of a name: crea_mg_dl.
_PER: Final = r"(?i:([kmunpµμ]?g|[munpµμ]?mol|meq|m?iu|[kmµμ]?u|(x ?)?10[\^*]?\d+)/([dmuµμ]?l|kg|m[2²]|min|h|d))"
_SINGLE: Final = (
    r"(?i:kg|lbs?|mm ?hg|kpa|bpm|days?|weeks?|months?|years?|hours?|ml/min(/1[.,]73 ?m2)?)|[mµμ]?g|[cm]m|ms|ml|%|°C"
)
_UNIT: Final = re.compile(
    rf".*[(\[] *({_PER}|{_SINGLE}) *[)\]] *|(?i:.*[a-z\d][_.]((([mun]?g|[mu]?mol)_d?l)|[mun]g_ml|kg|cm|mmhg|bpm|kg_m2))"
)
_IN_LABEL: Final = re.compile(r".*[(\[] *(?=[^)\]]*[^\W\d])([^()\[\]=;:]{1,15}?) *[)\]] *")  # and in no name: cmH2O, s
# A transport file has records of 80 bytes. Headers in them name the parts; behind the last one the rows follow each
# other without a mark, and blanks fill the last record (SAS Institute, "The Record Layout of a Data Set in SAS
# Transport Format"). The library loses special missing values, a second table, a missing end.
_RECORD: Final = 80
_TABLE, _COLUMNS, _ROWS = (b"HEADER RECORD*******%b" % name for name in (b"MEMB", b"NAM", b"OBS"))


@dataclass(frozen=True, kw_only=True)
class FileNote:
    """What a file, or the dictionary beside it, says about one column.

    Attributes:
        label: the column's long name.
        labels: the meaning of each code, by the code as it is in the cells.
        missing: cells that mean a missing value, such as 999.
        missing_ranges: the lowest and highest number of each range of missing values.
        unit: the unit of the column's format, where the label does not say it.
        limits: the lowest and the highest value that may be entered.
        told: remarks for the person who corrects the draft.
        ignored: why the column cannot be a feature; empty if it can.
    """

    label: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    missing: frozenset[str] = frozenset()
    missing_ranges: tuple[tuple[float, float], ...] = ()
    unit: str = ""
    limits: tuple[float, float] | None = None
    told: tuple[str, ...] = ()
    ignored: str = ""

    def means_missing(self, cell: str) -> bool:
        """Return whether the file says that this cell is a missing value."""
        if cell in self.missing or _SPECIAL.fullmatch(cell):
            return True
        try:
            return any(low <= float(cell) <= high for low, high in self.missing_ranges)
        except ValueError:
            return False

    @property
    def written_unit(self) -> str:
        """The unit of the format, or in brackets at the end of the label."""
        found = _IN_LABEL.fullmatch(self.label)
        return self.unit or unit_in(self.label) or (found[1] if found else "")


def unit_in(name: str) -> str:
    """Return the unit in the name or label of a column, or an empty text."""
    found = _UNIT.fullmatch(name)
    last = found[found.lastindex or 1].lower() if found else ""
    return (found[1] if found else "") or last.replace("_", "/").replace("hg", "Hg")


def labelled_kind(start: bytes) -> Kind | None:
    """Return the kind of a file of SAS, SPSS or Stata by its first `START_BYTES`, or None."""
    for mark, kind in _STARTS:
        if start.startswith(mark):
            return kind
    if b"SPSSPORT" in start[:START_BYTES]:
        return "por"
    is_old = len(start) > 3 and 104 <= start[0] < 116 and start[1] in (1, 2) and start[2:4] == b"\1\0"
    return "dta" if is_old else None


def labelled_rows(path: Path, form: LabelledFormat, doubts: list[Doubt]) -> Generator[Row | Block, None, None]:
    """Yield names as row 1, and rows from 2. Raise DataError if the file is damaged or has several tables."""
    kind, states_encoding = _examined(path)
    _, facts = _read(path, form, kind, metadataonly=True)
    names = list(facts.column_names)
    yield 1, names
    notes = [_note(name, kind, facts, {}) for name in names]
    cells_of = [_reader(name, kind, facts, is_ascii=not states_encoding and form.encoding is None) for name in names]
    missing: list[Counter[str]] = [Counter() for _ in names]
    rows, step = 0, max(1, (1 << 21) // max(1, len(names)))
    now = step
    specials = _special_cells(path) if kind == "xport" else iter(())
    marked = next(specials, None)
    while now == step:
        found, _ = _read(path, form, kind, row_offset=rows, row_limit=step)
        now = len(found[names[0]]) if names else 0
        while marked is not None and marked[0] < rows + now:
            found[names[marked[1]]][marked[0] - rows] = marked[2]
            marked = next(specials, None)
        for place, note in enumerate(notes):
            if note.missing_ranges:
                told = (str(_spelt(value)) for value in found[names[place]] if value is not None)
                missing[place].update(cell for cell in told if note.means_missing(cell))
        read = [cells(found[name]) for name, cells in zip(names, cells_of, strict=True)]
        flaws = [(rows + 2 + row, place, flaw) for place, (_, some) in enumerate(read) for row, flaw in some]
        numbers = np.arange(rows + 2, rows + 2 + now, dtype=np.int64)
        yield Block(rows=numbers, columns=dict(enumerate(cells for cells, _ in read)), unreadable=flaws)
        rows += now
    if marked is not None or (kind in ("sas7bdat", "sav", "dta") and facts.number_rows not in (rows, None)):
        refuse([f"only {rows} of the file's rows can be read; copy or export it again"])
    with path.open("rb") as file:
        if kind == "sav" and any(file.read(80)[76:]):  # the place of the weight among the columns, from 1
            doubts.append(Doubt("the file weights its rows (WEIGHT BY), and each is read as one: repeat the rows"))
    for place, count in enumerate(missing):
        if count:
            words = f"the file declares {count.total()} of its numbers as missing"
            doubts.append(Doubt(f"{words}; list them under missing_markers of the column", place, frozenset(count)))


def labelled_notes(path: Path, form: LabelledFormat) -> dict[str, FileNote]:
    """Return what a file says about its columns, by name. Labels in a SAS catalogue beside the file count too."""
    kind, _ = _examined(path)
    _, facts = _read(path, form, kind, metadataonly=True)
    catalogue = _catalogue(path) if kind in ("sas7bdat", "xport") else {}
    return {name: _note(name, kind, facts, catalogue) for name in facts.column_names}


def _examined(path: Path) -> tuple[Kind, bool]:
    """Return the kind of a file, and whether it says its encoding. Raise DataError if it cannot be read right."""
    with path.open("rb") as file:
        start = file.read(START_BYTES)
        if (kind := labelled_kind(start)) is None:
            refuse(["the file is not of SAS, SPSS or Stata (sas7bdat, xpt, sav, zsav, por, dta)"])
        if is_new_stata := kind == "dta" and start.startswith(b"<"):
            file.seek(0, 2)
            file.seek(-min(file.tell(), len(_STATA_END)), 2)
            if file.read() != _STATA_END:
                refuse(["the file ends too early; copy or export it again"])
    return kind, kind in ("sas7bdat", "sav") or (is_new_stata and start[28:31] >= b"118")


def _read(path: Path, form: LabelledFormat, kind: Kind, **options: Any) -> tuple[Mapping[str, list[Any]], Any]:
    try:
        import pyreadstat
    except ImportError as cause:
        raise not_installed("pyreadstat", "site,formats") from cause
    if kind not in ("por", "xport"):
        options["user_missing"] = True
    if kind != "por" and form.encoding is not None:
        options["encoding"] = form.encoding
    read = getattr(pyreadstat, f"read_{kind}")
    try:
        found, facts = read(path, output_format="dict", disable_datetime_conversion=True, **options)
    except UnicodeError:
        is_encoded = False
    except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, ValueError, OverflowError, KeyError):
        is_encoded = True
    else:
        return found, facts
    if is_encoded:
        refuse(["the file is damaged, incomplete or encrypted; copy or export it again"])
    raise unusable(
        what="The file has text that is not in UTF-8, and it does not say its encoding.",
        remedy="Declare the encoding in the contract, such as `encoding: windows-1252` under format.",
    )


def _reader(name: str, kind: Kind, facts: Any, *, is_ascii: bool) -> Callable[[Sequence[Any]], _Cells]:
    """Return the function that reads the cells of a column, and the places of those that cannot be read."""
    if facts.readstat_variable_types[name] == "string":

        def texts(values: Sequence[Any]) -> _Cells:
            flaws = [(row, _NO_ENCODING) for row, one in enumerate(values) if is_ascii and one and not one.isascii()]
            hidden = {row for row, _ in flaws}
            shown = ["" if row in hidden else one for row, one in enumerate(values)] if hidden else values
            return arrow.array(shown, arrow.string()), flaws

        return texts
    convert = _conversion(kind, str(facts.original_variable_types[name] or ""))

    def numbers(values: Sequence[Any]) -> _Cells:
        if facts.readstat_variable_types[name] == "float":
            known = [value for value in {*values} if isinstance(value, float)]
            short = dict(zip(known, shortest(np.array(known, np.float32)).tolist(), strict=True))
            values = [short.get(value, value) for value in values]
        if convert is None:
            try:
                found = arrow.array(values, arrow.float64(), from_pandas=True)
                is_whole = compute.all(compute.equal(compute.round(found), found)).as_py()
                return found.cast(arrow.int64()) if is_whole else found, []
            except arrow.ArrowException:  # special missing values, or numbers beyond 64 bits
                pass
        read = {value: _spelt(value, convert) for value in set(values)}
        flaws = [(row, flaw) for row, value in enumerate(values) if isinstance(flaw := read[value], Unreadable)]
        shown = {value: "" if isinstance(one, Unreadable) else one for value, one in read.items()}
        return arrow.array([shown[value] for value in values], arrow.string()), flaws

    return numbers


def _spelt(value: Any, convert: _Convert | None = None) -> str | Unreadable:
    if isinstance(value, str):  # a special missing value
        return f".{value}"
    if value is None or math.isnan(value):
        return ""
    if convert is not None:
        return cell_of(convert(value))
    return cell_of(int(value) if float(value).is_integer() and abs(value) < _LARGEST_WHOLE else value)


def _conversion(kind: Kind, form: str) -> _Convert | None:
    if kind == "dta" and _MONTHS.match(form):
        return _month
    for pattern, start, unit in _DATES[kind]:
        if pattern.match(form if kind == "dta" else form.upper()):
            return _counted(start, unit)
    return None


def _counted(start: datetime, unit: str) -> _Convert:
    def convert(value: float) -> object:
        try:
            return start + timedelta(**{unit: value})
        except (OverflowError, ValueError):
            return _FAR_DATE

    return convert


def _month(value: float) -> object:
    year, month = divmod(int(value), 12)
    return datetime(1960 + year, month + 1, 1) if value.is_integer() and 0 < 1960 + year < 10_000 else _FAR_DATE


def _note(name: str, kind: Kind, facts: Any, catalogue: Mapping[str, Mapping[Any, str]]) -> FileNote:
    form = str(facts.original_variable_types.get(name) or "")
    is_text = facts.readstat_variable_types[name] == "string"
    labels = facts.variable_value_labels.get(name) or catalogue.get(form.upper().rstrip("0123456789.")) or {}
    ranges = facts.missing_ranges.get(name) or ()
    told = []
    if not is_text and kind == "dta" and _MONTHS.match(form):
        told.append("the file has months here: each is read as its first day")
    elif not is_text and kind != "dta" and _DURATIONS.match(form.upper()):
        told.append("a time of day or a duration, in seconds")
    elif not is_text and _conversion(kind, form) is None and not (labels or _ORDINARY.fullmatch(form.upper())):
        told.append(f"its format in the file is {form}, which is not used: what does the number mean?")
    found = {code if is_text else str(_spelt(code)): str(label) for code, label in labels.items()}
    if all(canonical_code(label.replace(",", ".")) == canonical_code(code) for code, label in found.items()):
        found = {}  # only a format of the numbers
    return FileNote(
        label=str(facts.column_names_to_labels.get(name) or "").strip(),
        labels=found if len(found) <= 50 else {},
        missing=frozenset(one["lo"] for one in ranges if isinstance(one["lo"], str)),
        missing_ranges=tuple((float(one["lo"]), float(one["hi"])) for one in ranges if not isinstance(one["lo"], str)),
        unit="seconds" if told and "in seconds" in told[0] else "",
        told=tuple(told),
    )


def _catalogue(path: Path) -> Mapping[str, Mapping[Any, str]]:
    """Return the labels of formats in a SAS catalogue beside the table: its own, or the one named formats."""
    import pyreadstat

    for place in (path.with_suffix(".sas7bcat"), path.with_name("formats.sas7bcat")):
        if place.is_file():
            try:
                _, facts = pyreadstat.read_sas7bcat(place)
            except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, ValueError):
                return {}
            return {str(name).upper(): labels for name, labels in facts.value_labels.items()}
    return {}


def _special_cells(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield row (from 0), place and letter of each special missing value, by rows.

    A number has up to eight bytes; of a special missing value the first is a letter and the others are zero.

    Raises:
        DataError: the file has several tables, or ends too early.
    """
    (start, width, stated_rows, numbers), first, rest = _layout(path), 0, b""
    with path.open("rb") as file:
        file.seek(start)
        while width and (block := file.read(width << 14)):
            whole = len(block) // width * width
            rest = block[whole:]
            rows = np.frombuffer(block[:whole], np.uint8).reshape(-1, width)
            found = []
            for place, part in numbers:
                cells = rows[:, part]
                is_letter = ((cells[:, 0] >= ord("A")) & (cells[:, 0] <= ord("Z"))) | (cells[:, 0] == ord("_"))
                marked = np.flatnonzero(is_letter & ~cells[:, 1:].any(axis=1))
                found += [(first + int(row), place, chr(cells[row, 0])) for row in marked]
            yield from sorted(found)
            first += len(rows)
    if rest.strip(b" ") or first < stated_rows:
        refuse(["the file ends too early; copy or export it again"])


def _layout(path: Path) -> tuple[int, int, int, list[tuple[int, slice]]]:
    """Return where rows begin, their bytes, how many there are (0: not stated), and each number's place and bytes."""
    tables, size, start, stated = 0, 0, 0, b""
    parts = np.empty((0, 140), np.uint8)
    with path.open("rb") as file:
        while len(record := file.read(_RECORD)) == _RECORD:
            if record.startswith(_TABLE):
                tables += 1
                size = int(record[74:78])  # of the description of a column
            elif record.startswith(_COLUMNS) and not start:
                count = int(record[52:58])
                described = file.read(-(-size * count // _RECORD) * _RECORD)
                parts = np.frombuffer(described[: size * count], np.uint8).reshape(count, size)
            elif record.startswith(_ROWS) and not start:
                start, stated = file.tell(), record[48:63].strip()
    if tables > 1:
        refuse(["the transport file holds several tables; write one table into each file"])
    if record or not start:
        refuse(["the file ends too early; copy or export it again"])
    lengths = [int.from_bytes(part[4:6].tobytes(), "big") for part in parts]
    begins = [int.from_bytes(part[84:88].tobytes(), "big") for part in parts]
    numbers = [
        (place, slice(begins[place], begins[place] + lengths[place]))
        for place in range(len(parts))
        if parts[place, 1] == 1 and lengths[place] > 1
    ]
    return start, sum(lengths), int(stated) if stated.isdigit() else 0, numbers
