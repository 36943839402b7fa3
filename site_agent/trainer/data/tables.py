"""Reads a hospital's table and checks every cell against the contract.

All cells are read as text and parsed as the contract declares, so one site's `63.0` and another site's `63` are the
same. The rules:

* all mistakes are reported at once, each with its column and at most five rows;
* no error quotes a cell. A header that the contract does not declare is not quoted either, because a file without a
  header would show its first patient there;
* rows have the numbers that a spreadsheet shows: counted from 1, the header included;
* rows are read in blocks, and only parsed numbers stay in memory: eight bytes for each cell that is read.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.cell_rules import ERROR_CODES, MISSING, UNKNOWN_POSITION, UNPROVED, canonical_code
from site_agent.trainer.data.cells import (
    NO_MARKS,
    BlockParser,
    Numbers,
    Parsed,
    date_parser,
    decimal_marks,
    emptied,
    feature_parser,
    follow_up_parser,
    group_parser,
    interval_of,
    latest_day,
    target_parser,
    thousands,
    times_of,
)
from site_agent.trainer.data.columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    FollowUpColumn,
    GroupColumn,
    IgnoredColumn,
    NumericFeature,
    patterns_of,
    written_name,
)
from site_agent.trainer.data.contract import Column, Contract, ExcelFormat, RegressionTarget, SqlFormat, TableFormat
from site_agent.trainer.data.image_folder import ImageFolder, Pixels, chosen_images, temporary_folder
from site_agent.trainer.data.image_formats import difference
from site_agent.trainer.data.mistakes import KEPT_ROWS, Mistake, Mistakes, like_column, refuse
from site_agent.trainer.data.table_sources import (
    Block,
    Doubt,
    Wanted,
    blocks_of,
    first_row,
    first_rows,
    open_rows,
    texts_of,
)

# Days that programs write for "not known". An ordinary patient can have one of them, several hardly.
_MARKER_DAYS: Final = (
    *(date(year, 1, 1) for year in (1753, 1800, 1900, 1970, 3000, 9999)),
    *(date(year, 12, 31) for year in (1899, 2099, 2199, 2999, 9999)),
    date(1899, 12, 30),
)
FEWEST_ROWS: Final = 10
_DELIMITER: Final = "is the delimiter the declared one?"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table:
    """A checked table, its rows in the order of the file, or of a query by their values. Every array is read-only.

    Attributes:
        features: for each declared name one float64 array of shape (rows,). Numeric: the value, NaN if missing. Date:
            the interval in its unit, NaN if missing. Categorical: the position among the declared codes, -1 if unknown.
        target: float64 of shape (rows,): 0 and 1, the index of the class, or the number; None in a table for
            prediction.
        images: float32 of shape (rows, numbers of an image), each in [0, 1]; None if the contract has no images.
        patients: one identifier per row, None if the table has no such column.
        follow_up: float64 of shape (rows,), the time to the event or to the end of follow-up, NaN if missing; None if
            the contract has no such column, and in a table for prediction.
        group_positions: for each column of role group, positions as for categorical features.
        row_numbers: int64 of shape (rows,), as a spreadsheet counts; None for a table that was made up.
        dropped: the numbers of the rows that were left out, because they have no outcome and the contract drops those.
        put_aside: the numbers of the rows that were left out, because they cannot be read and the contract allows this.
        scratch: the folder of the files with images and their encoded values.
    """

    contract: Contract
    rows: int
    features: Mapping[str, Numbers]
    target: Numbers | None
    patients: tuple[str, ...] | None
    follow_up: Numbers | None = None
    group_positions: Mapping[str, Numbers] = field(default_factory=lambda: MappingProxyType({}))
    row_numbers: npt.NDArray[np.int64] | None = None
    dropped: tuple[int, ...] = ()
    put_aside: tuple[int, ...] = ()
    images: Pixels | None = None
    scratch: Path | None = None

    def __repr__(self) -> str:
        """Return a text without a value of any patient, because a traceback can show it."""
        return f"Table(rows={self.rows}, features={len(self.features)})"

    @cached_property
    def marks(self) -> tuple[Numbers, ...]:
        """A number for the image of each row, float64; empty without images. Equal images have equal numbers."""
        return () if self.images is None else (_marks(self.images),)


def _marks(rows: npt.NDArray[np.generic]) -> Numbers:
    marks = (hashlib.blake2b(row.tobytes(), digest_size=6).digest() for row in rows)
    return np.array([int.from_bytes(mark, "little") for mark in marks], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """A table with all its mistakes. A cell that cannot be read is a missing value in the table.

    Attributes:
        mistakes: the cells, columns and rows that could not be read.
        put_aside: the mistakes of the rows that were left out for them.
        cells: of new rows, by column and row number, the text of each cell that could not be read.
        doubts: what a person must look at although it was read, in words, with the name of its column.
        nameless: the numbers of the columns without a name in the header, from 1. They are not read.
        emptied: by numeric feature, its numbers that are missing only because the whole contract calls them so.
    """

    table: Table
    mistakes: tuple[Mistake, ...]
    put_aside: tuple[Mistake, ...] = ()
    cells: Mapping[tuple[str, int], str] = field(default_factory=lambda: MappingProxyType({}))
    doubts: tuple[tuple[str, str | None], ...] = ()
    nameless: tuple[int, ...] = ()
    emptied: Mapping[str, Collection[float]] = field(default_factory=dict)


def _is_value(parse: BlockParser, name: str) -> bool:
    found = parse(arrow.array([name, "\1"]))  # an outcome can read every text as negative
    return list(found.flaws.values()) == [[1]] and bool(found.values[0] >= 0)


def read_table(path: Path, contract: Contract, *, today: date | None = None, scratch: Path | None = None) -> Table:
    """Read the hospital's table at `path`, and check every cell against its contract.

    Dates after `today`, by default the clock's, are in the future. `scratch` is a folder for the pixels of images, by
    default the one for temporary files.

    Raises:
        DataError: the file cannot be read, or does not fit; all mistakes are reported.
    """
    reading = _Reading(contract, today=today, scratch=scratch)
    table = reading.run(path)
    reading.mistakes.stop_if_any()
    return table


def survey_table(path: Path, contract: Contract, *, today: date | None = None) -> Survey:
    """Read a table, and return its mistakes. Raise DataError if it cannot be read at all, or has other columns."""
    reading = _Reading(contract, today=today)
    table = reading.run(path)
    return Survey(
        table=table,
        mistakes=reading.mistakes.found,
        put_aside=reading.put_aside,
        doubts=tuple(reading.doubts),
        nameless=reading.nameless,
        emptied=reading.emptied,
    )


def survey_new_rows(path: Path, contract: Contract, *, today: date | None = None) -> Survey:
    """Read a table of new patients. A cell with a mistake becomes NaN, and the rows of each mistake are listed.

    With a header the columns of target, patient, group and ignored can be absent, without a header only the target. A
    single row is enough. Neither an outcome nor a column that the contract does not name is read.

    Raises:
        DataError: the source cannot be read at all, or lacks a feature.
    """
    reading = _Reading(contract, for_prediction=True, today=today, kept_rows=sys.maxsize)
    table = reading.run(path)
    return Survey(table=table, mistakes=reading.mistakes.found, cells=reading.cells)


class _Reading:
    def __init__(
        self,
        contract: Contract,
        *,
        for_prediction: bool = False,
        today: date | None,
        kept_rows: int = KEPT_ROWS,
        scratch: Path | None = None,
    ) -> None:
        self.contract, self.for_prediction = contract, for_prediction
        self.scratch = scratch or temporary_folder()
        self.dates, self.follow_up = contract.dates, contract.follow_up
        self.nameless, self.put_aside = tuple[int, ...](), tuple[Mistake, ...]()
        self.doubts, self.dropped = list[tuple[str, str | None]](), list[int]()
        self.marker_days: Counter[tuple[str, date]] = Counter()
        dated = {name: "".join(patterns_of(one.pattern)) for name, one in contract.dates.items()}
        self.latest = {name: 0 for name, pattern in dated.items() if re.search("%[dm][-./]%[dm][-./]%Y", pattern)}
        self.today = today or date.today()
        self.may_put_aside = contract.put_aside > 0 and not for_prediction
        self.mistakes = Mistakes(kept_rows, collects_rows=self.may_put_aside)
        self.parsed: dict[str, array[float]] = {}
        self.no_identifiers = {"", "NULL", "\\N", *contract.missing_markers, *ERROR_CODES}
        self.cells, self.patients = dict[tuple[str, int], str](), list[str]()
        self.rows: list[npt.NDArray[np.int64]] = []
        numbers = NumericFeature | RegressionTarget | FollowUpColumn
        self.marks = {one.name: NO_MARKS for one in contract.columns if isinstance(one, numbers)}
        self.emptied: dict[str, set[float]] = {}
        self.wanted = Wanted(keeps_blank=for_prediction, words=contract.missing_markers)
        self.drops = not for_prediction and contract.target.missing == "drop"
        self.folder: ImageFolder | None = None

    def run(self, path: Path) -> Table:
        form, doubts = self.contract.format, list[Doubt]()
        self.wanted.start = self._start(path, doubts)
        with open_rows(path, form, doubts, self.wanted) as rows:
            first = first_row(rows)
            if self.contract.format.header:
                width, positions = len(first[1]), self._positions_by_name(first[1])
            else:
                positions = self._positions_by_order(first[1])
                width = len(positions)
            self.mistakes.stop_if_any()
            parsers = self._parsers(positions)
            doubts += self._values_for_names(parsers)
            image = self.contract.image
            if image is not None and image.name in positions:
                self.folder = ImageFolder(image, path, self.contract.missing_markers, self.scratch)
            others = (self.contract.patient, image)
            read = {*parsers, *(column.name for column in others if column and column.name in positions)}
            places = sorted(positions[name] for name in read)
            self.parsed = {name: array("d") for name in parsers if not isinstance(self.dates.get(name), DayColumn)}
            rows = rows if form.header else itertools.chain([first], rows)
            for block in blocks_of(rows, width, places):
                self._take(block, width, positions, parsers)
        self._tell(doubts, {None: None} | {positions[name]: name for name in read})
        return self._finish(positions)

    def _tell(self, doubts: Sequence[Doubt], columns: Mapping[int | None, str | None]) -> None:
        image = self.contract.image
        self.doubts = [
            (one.words, columns[one.place])
            for one in doubts
            if one.place in columns and not self._answers(one, columns[one.place])
        ]
        self.doubts += [
            (f"{count} dates are {day}; does this day mean 'not known'?", name)
            for (name, day), count in self.marker_days.items()
            if count >= max(3, sum(map(len, self.rows)) / 2000)
        ]
        self.doubts += [(UNPROVED, name) for name in thousands(self.marks)]
        told = "no day is above 12, so day and month could also be the other way round; which one comes first?"
        rows = sum(map(len, self.rows))
        self.doubts += [(told, name) for name, day in self.latest.items() if 0 < day <= 12 and rows > 30]
        if self.folder is not None and image is not None and (words := difference(self.folder.scales)):
            self.doubts.append((words, image.name))

    def _start(self, path: Path, doubts: list[Doubt]) -> int:
        """Return the number of the row with the names of columns, which can have titles above it."""
        form, names = self.contract.format, {column.name for column in self.contract.columns}
        if not (isinstance(form, TableFormat | ExcelFormat) and form.header):
            return 1
        # A row with the names of groups, or a title, can have one of the names too.
        rows = [(len(names.intersection(map(written_name, cells))), -row) for row, cells in first_rows(path, form)]
        most, first = max(rows, default=(0, -1))
        start = -first if most else 1
        if start > 1:
            doubts.append(Doubt(f"the names of the columns are in row {start}, and what is above it is not read"))
        return start

    def _values_for_names(self, parsers: Mapping[str, BlockParser]) -> list[Doubt]:
        form = self.contract.format
        may_lack_names = form.header and isinstance(form, TableFormat | ExcelFormat | SqlFormat)
        names = [name for name, parse in parsers.items() if may_lack_names and _is_value(parse, name)]
        told = f"the names of {len(names)} columns are like values of these columns; is the first row a patient?"
        return [Doubt(f"{told} Then declare header: false, or write names above it")] if names else []

    def _answers(self, doubt: Doubt, name: str | None) -> bool:
        column = next((one for one in self.contract.columns if one.name == name), None)
        if doubt.largest is not None:
            return (getattr(column, "range", None) or (0, math.inf))[1] <= doubt.largest
        own = {*getattr(column, "missing_markers", ()), *getattr(column, "codes", ()), *self.contract.missing_markers}
        return bool(doubt.markers) and {canonical_code(one) for one in doubt.markers} <= own

    def _positions_by_name(self, header: Sequence[str]) -> dict[str, int]:
        found = list(map(written_name, header))
        counts = Counter(found)
        declared = {column.name: column for column in self.contract.columns}
        if not counts.keys() & declared.keys():
            told = "are capitals, the delimiter and `header` as declared? Is the table on another sheet?"
            marks = [f", but a {mark!r} in it" for mark in ";\t|," if len(found) == 1 and mark in header[0]]
            refuse([f"The first row has no declared name{''.join(marks)}: {told}"])
        needed = {feature.other for feature in self.contract.features if isinstance(feature, DateFeature)}
        for name, column in declared.items():
            if counts[name] > 1:
                self.mistakes.add(f"it is there {counts[name]} times", column=name)
            is_read = not self.for_prediction or name in needed or column.role in ("feature", "image")
            if is_read and not counts[name] and not isinstance(column, IgnoredColumn):
                self.mistakes.add(f"it is missing{like_column(name, found, declared)}", column=name)
        if not self.for_prediction:
            self._find_undeclared(found, declared)
        return {name: place for place, name in enumerate(found) if name in declared}

    def _find_undeclared(self, header: Sequence[str], declared: Mapping[str, Column]) -> None:
        """Add a mistake for the columns that the contract lacks. A column without a name is never read."""
        self.nameless = tuple(place for place, name in enumerate(header, start=1) if not name)
        places = [place for place, name in enumerate(header, start=1) if name and name not in declared]
        if places:
            shown = ", ".join(map(str, places[:5])) + f" and {len(places) - 5} more" * (len(places) > 5)
            what = f"column number {shown} is" if len(places) == 1 else f"columns number {shown} are"
            self.mistakes.add(
                f"the header's {what} not declared; add a line for each such column to the contract, such as "
                "`- {name: NAME, role: ignore}` with its name from the header"
            )

    def _positions_by_order(self, first: Sequence[str]) -> dict[str, int]:
        names = [column.name for column in self.contract.columns]
        if 2 * len(set(map(written_name, first)).intersection(names)) > len(first):
            refuse(["the first row has the contract's names: remove this row, and bring the columns in their order"])
        if marks := [mark for mark in ";\t|" if 2 * sum(mark in cell for cell in first) > len(first)]:
            refuse([f"most cells of the first row have a {marks[0]!r} in them; {_DELIMITER}"])
        if self.for_prediction and len(first) == len(names) - 1:
            names.remove(self.contract.target.name)
        return {name: place for place, name in enumerate(names)}

    def _parsers(self, positions: Mapping[str, int]) -> dict[str, BlockParser]:
        parsers: dict[str, BlockParser] = {}
        for column in self.contract.columns:
            if column.name not in positions:
                continue
            if isinstance(column, DateFeature | DayColumn):
                parsers[column.name] = date_parser(column, self.contract, self.today)
            elif isinstance(column, GroupColumn):
                parsers[column.name] = group_parser(column, self.contract, for_prediction=self.for_prediction)
            elif isinstance(column, NumericFeature | CategoricalFeature):
                parsers[column.name] = feature_parser(column, self.contract)
            elif isinstance(column, FollowUpColumn):
                if not self.for_prediction:
                    parsers[column.name] = follow_up_parser(column, self.contract, self.today)
            elif column.role == "target" and not self.for_prediction:
                parsers[column.name] = target_parser(column, self.contract)
        return parsers

    def _take(self, block: Block, width: int, positions: Mapping[str, int], parsers: Mapping[str, BlockParser]) -> None:
        self._take_damage(block, width, positions)
        rows, dates, is_unproved = block.rows, self.dates, self._is_unproved
        is_used = self._used_rows(block, positions, parsers)
        used = slice(None) if is_used.all() else is_used  # a slice copies nothing
        self.rows.append(rows[used])
        self.dropped += rows[~is_used].tolist()
        days = {name: parsers[name](block.columns[positions[name]]) for name in parsers if name in dates}
        for name, parsed in days.items():
            for day in _MARKER_DAYS:
                self.marker_days[name, day] += int((parsed.values == day.toordinal()).sum())
            if name in self.latest:
                self.latest[name] = max(self.latest[name], latest_day(parsed.values))
        for name, parse in parsers.items():
            if is_unproved and name in self.marks:
                self.marks[name] = self.marks[name] + decimal_marks(block.columns[positions[name]])
            own = days[name] if name in days else parse(block.columns[positions[name]])
            parsed = self._interval(name, own, days)
            for words, places in parsed.flaws.items():
                found = np.asarray(places, dtype=np.int64)
                found = found[is_used[found]]
                if not len(found):
                    continue
                self.mistakes.add(words, rows[found].tolist(), column=name)
                if self.for_prediction:
                    cells = texts_of(block.columns[positions[name]])
                    self.cells |= {(name, int(rows[place])): cells[place] for place in places}
            if name in self.parsed:
                self.parsed[name].frombytes(parsed.values[used].data.cast("B"))
        if is_unproved and not self._is_unproved and not self.for_prediction:
            features = (one for one in self.contract.features if isinstance(one, NumericFeature))
            self.wanted.numbers.update(positions[one.name] for one in features)
        patient = self.contract.patient
        if patient and patient.name in positions:
            cells = block.columns[positions[patient.name]]
            if not arrow.types.is_string(cells.type):
                cells = arrow.array(texts_of(cells), arrow.string())
            self.patients += compute.utf8_trim_whitespace(cells.filter(arrow.array(is_used))).to_pylist()
        self._take_images(block, positions, is_used)

    @property
    def _is_unproved(self) -> bool:
        """Whether each number with a mark could be thousands."""
        return all(one[0, 0] == one[1, 0] for one in self.marks.values())

    def _interval(self, name: str, own: Parsed, days: Mapping[str, Parsed]) -> Parsed:
        """Return a block of a column, with the time between two days in place of the date in a column of such times."""
        column, follow_up = self.dates.get(name), self.follow_up
        if isinstance(column, DateFeature):
            return interval_of(column, own, days)
        if follow_up is not None and name == follow_up.name:
            return times_of(follow_up, own, None if follow_up.since is None else days[follow_up.since])
        return own

    def _take_damage(self, block: Block, width: int, positions: Mapping[str, int]) -> None:
        for feature in self.contract.features if not self.for_prediction else ():
            if isinstance(feature, NumericFeature):
                some = emptied(block.columns[positions[feature.name]], feature, self.contract)
                self.emptied.setdefault(feature.name, set()).update(some)
        if block.ragged:
            words = f"not the expected {width} columns; {_DELIMITER}"
            self.mistakes.add(words, block.ragged)
        columns = {place: name for name, place in positions.items()}
        for row, place, cell in block.unreadable:
            if place in columns:
                self.mistakes.add(cell.words, [row], column=columns[place])

    def _take_images(self, block: Block, positions: Mapping[str, int], is_used: npt.NDArray[np.bool_]) -> None:
        if self.folder is None or self.contract.image is None:
            return
        used, name = np.flatnonzero(is_used), self.contract.image.name
        cells = texts_of(block.columns[positions[name]])
        for words, places in self.folder.read([cells[place] for place in used]).items():
            self.mistakes.add(words, block.rows[used[list(places)]].tolist(), column=name)

    def _used_rows(
        self, block: Block, positions: Mapping[str, int], parsers: Mapping[str, BlockParser]
    ) -> npt.NDArray[np.bool_]:
        """Return which rows of a block are used. The contract can require that rows without an outcome are skipped."""
        is_used = np.ones(len(block.rows), dtype=bool)
        if self.drops:
            name = self.contract.target.name
            is_used[list(parsers[name](block.columns[positions[name]]).flaws.get(MISSING.words, ()))] = False
        return is_used

    def _finish(self, positions: Mapping[str, int]) -> Table:
        columns = {name: np.asarray(values) for name, values in self.parsed.items()}
        rows = np.concatenate([np.empty(0, np.int64), *self.rows])
        for column in self.contract.columns:
            if isinstance(column, CategoricalFeature | GroupColumn) and column.name in columns:  # a flawed cell
                columns[column.name][np.isnan(columns[column.name])] = UNKNOWN_POSITION
        is_identified = self.contract.patient is not None and self.contract.patient.name in positions
        if not self.for_prediction and is_identified and self.contract.patient is not None:
            self._find_anonymous(rows, self.contract.patient.name)
        images = None if self.folder is None else self.folder.images()
        left_out = self._left_out(len(rows))
        is_query = isinstance(self.contract.format, SqlFormat) and not self.for_prediction
        keep = self._by_content(columns.values(), images) if is_query else np.arange(len(rows))
        keep = keep[~np.isin(rows[keep], left_out)]
        if not np.array_equal(keep, np.arange(len(rows))):
            columns = {name: values[keep] for name, values in columns.items()}
            self.patients = [self.patients[place] for place in keep] if is_identified else []
            rows, images = rows[keep], None if images is None else chosen_images(images, keep, self.scratch)
        for values in (*columns.values(), rows):
            values.flags.writeable = False
        target = columns.pop(self.contract.target.name, None)
        follow_up = columns.pop(self.contract.follow_up.name, None) if self.contract.follow_up else None
        self._check(rows)
        features = {feature.name: columns.pop(feature.name) for feature in self.contract.features}
        return Table(
            contract=self.contract,
            rows=len(rows),
            features=MappingProxyType(features),
            target=target,
            follow_up=follow_up,
            patients=tuple(self.patients) if is_identified else None,
            group_positions=MappingProxyType(columns),
            row_numbers=rows,
            dropped=tuple(self.dropped),
            put_aside=tuple(left_out.tolist()),
            images=images,
            scratch=self.scratch,
        )

    def _by_content(self, values: Iterable[Numbers], images: Pixels | None) -> npt.NDArray[np.int64]:
        """Return the places of the rows in the order of their values, because a database promises no order."""
        order = np.unique(np.array(self.patients), return_index=True)[1]
        if len(order) == len(self.patients) > 0:
            return order.astype(np.int64)
        others = [*([] if images is None else [_marks(images)]), *([np.array(self.patients)] if self.patients else [])]
        return np.lexsort([*values, *others]).astype(np.int64)

    def _check(self, rows: npt.NDArray[np.int64]) -> None:
        if not self.for_prediction:
            self._check_patients(rows)
            # Rows are counted only if all cells are correct. Otherwise the count would mislead.
            if not self.mistakes.found and len(rows) < FEWEST_ROWS:
                self.mistakes.add(f"too few rows: at least {FEWEST_ROWS} are needed, {len(rows)} are there")
        elif not len(rows):
            self.mistakes.add("the file has no rows of patients")

    def _left_out(self, rows: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows to put aside, and forget their mistakes. Return none if there are too many."""
        flawed = np.array(sorted(self.mistakes.flawed or ()), dtype=np.int64)
        found = self.mistakes.found
        most = self.contract.put_aside * (rows + sum(one.count for one in found if one.column is None))
        if len(flawed) > most and self.may_put_aside:
            told = f"{len(flawed)} rows have mistakes, and put_aside allows {int(most)}, so none is put aside"
            self.doubts.append((told, None))
        if not len(flawed) or len(flawed) > most or not all(one.rows for one in found):
            return flawed[:0]
        self.put_aside, self.mistakes = found, Mistakes()
        return flawed

    def _find_anonymous(self, rows: npt.NDArray[np.int64], column: str) -> None:
        nobody = self.no_identifiers.intersection(self.patients)
        if anonymous := [int(rows[at]) for at, who in enumerate(self.patients if nobody else ()) if who in nobody]:
            self.mistakes.add("no patient identifier", anonymous, column=column)

    def _check_patients(self, rows: npt.NDArray[np.int64]) -> None:
        patient = self.contract.patient
        if patient is None or not patient.one_row_per_patient or len(set(self.patients)) == len(self.patients):
            return
        twice = {who for who, count in Counter(self.patients).items() if count > 1} - self.no_identifiers
        if again := [int(rows[place]) for place, who in enumerate(self.patients) if who in twice]:
            self.mistakes.add("a patient identifier that occurs more than once", again, column=patient.name)
