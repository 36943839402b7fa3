"""Reads a hospital's table and checks every cell against the contract.

Everything is read as text and parsed as the contract declares, so one site's `63.0` and another
site's `63` are the same. The rules:

* all mistakes are told at once, each with its column and at most five rows;
* no cell reaches an error. Not even a header the contract does not know is repeated, as a file
  without a header would show its first patient there;
* a row's number is the one a spreadsheet shows: counted from 1, the header included.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.errors import DataError
from site_agent.trainer.data.cells import Flaw, Parser, feature_parser, target_parser
from site_agent.trainer.data.contract import Contract, IgnoredColumn, RegressionTarget

FEWEST_ROWS: Final = 10
_BLOCK_CELLS: Final = 1 << 19
_SHOWN_ROWS: Final = 5
_SHOWN_MISTAKES: Final = 20
_UNDECODED: Final = re.compile("[\udc80-\udcff]")

Numbers: TypeAlias = npt.NDArray[np.float64]
_Record: TypeAlias = tuple[int, list[str]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table:
    """A checked table, its rows in the order of the file; every array is read-only.

    Attributes:
        contract: what the table was checked against.
        rows: how many.
        features: by declared name one float64 array of shape (rows,). Numeric: the value, NaN where
            missing. Categorical: the position among the declared codes, -1 where unknown.
        target: float64 of shape (rows,): 0 and 1, the index of the class, or the number; None when
            read for prediction.
        patients: one identifier per row, None if the table has no such column.
    """

    contract: Contract
    rows: int
    features: Mapping[str, Numbers]
    target: Numbers | None
    patients: tuple[str, ...] | None

    def __repr__(self) -> str:
        """Without a value of any patient, so that the record can stand in a traceback."""
        return f"Table(rows={self.rows}, features={len(self.features)})"


def read_table(path: Path, contract: Contract, *, for_prediction: bool = False) -> Table:
    """The table at `path`, checked against `contract`.

    Args:
        path: a delimited text file. It is read in blocks: only parsed numbers stay in memory.
        contract: its declaration.
        for_prediction: new patients, whose target nobody knows yet. With a header the columns of
            target, patient and ignored may be absent, without one the target; an undeclared code
            of a feature becomes unknown; a single row is enough.

    Raises:
        DataError: the file cannot be read, or does not fit; all that was found is told.
    """
    encoding = "utf-8-sig" if contract.format.encoding == "utf-8" else contract.format.encoding
    try:
        # Undecodable bytes come through as marked characters, so that their line can be told and
        # no decoding error, which carries the file's bytes, ever exists.
        with path.open(encoding=encoding, errors="surrogateescape", newline="") as file:
            return _Reading(contract, for_prediction=for_prediction).run(file)
    except OSError as cause:
        raise DataError(
            what=f"The table cannot be read: {cause.strerror}.",
            consequence="The table was not used and nothing left this site.",
            remedy="Give the path of an existing file that the trainer's user may read.",
        ) from cause


class _Mistakes:
    """What was found, in order; of each kind the first rows and how many more."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, words: str, rows: Sequence[int] = ()) -> None:
        shown = self._rows.setdefault(words, [])
        shown.extend(rows[: _SHOWN_ROWS - len(shown)])
        self._counts[words] += len(rows)

    def stop_if_any(self) -> None:
        if self._rows:
            _refuse([self._line(words, rows) for words, rows in self._rows.items()])

    def _line(self, words: str, rows: list[int]) -> str:
        others = self._counts[words] - len(rows)
        where = f" in row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}" if rows else ""
        return f"{words}{where}{f' and {others} more' if others else ''}"


def _refuse(lines: Sequence[str]) -> NoReturn:
    shown = list(lines[:_SHOWN_MISTAKES])
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} mistakes of other columns or kinds")
    raise DataError(
        what="The table does not meet its contract:\n" + "\n".join(f"    {line}" for line in shown),
        consequence="The table was not used and nothing left this site.",
        remedy="Correct the table, or its contract where the table is right, and start again.",
    )


class _Reading:
    """The reading of one file: what was parsed and what was wrong so far."""

    def __init__(self, contract: Contract, *, for_prediction: bool) -> None:
        self.contract, self.for_prediction = contract, for_prediction
        self.mistakes = _Mistakes()
        self.parsed: dict[str, list[Numbers]] = {}
        self.patients: list[str] = []
        self.rows: list[int] = []

    def run(self, file: Iterable[str]) -> Table:
        records = _records(file, self.contract.format.delimiter)
        first = next(records, None)
        if first is None:
            _refuse(["the file has no rows"])
        if self.contract.format.header:
            width, positions = len(first[1]), self._positions_by_name(first[1])
        else:
            positions = self._positions_by_order(len(first[1]))
            width, records = len(positions), itertools.chain([first], records)
        self.mistakes.stop_if_any()
        parsers = self._parsers(positions)
        self.parsed = {name: [np.empty(0)] for name in parsers}
        block_rows = max(1, _BLOCK_CELLS // max(1, width))
        while block := list(itertools.islice(records, block_rows)):
            self._take(block, width, positions, parsers)
        return self._finish(positions)

    def _positions_by_name(self, header: Sequence[str]) -> dict[str, int]:
        found = [cell.strip() for cell in header]
        counts = Counter(found)
        declared = {column.name: column for column in self.contract.columns}
        if not counts.keys() & declared.keys():
            words = "the first row holds none of the declared names; if the file has no header, declare header: false"
            _refuse([words])
        for name, column in declared.items():
            if counts[name] > 1:
                self.mistakes.add(f"column {name}: it is there {counts[name]} times")
            may_be_absent = self.for_prediction and column.role != "feature"
            if not counts[name] and not may_be_absent and not isinstance(column, IgnoredColumn):
                self.mistakes.add(f"column {name}: it is missing")
        for place, name in enumerate(found, start=1):
            if name not in declared:
                self.mistakes.add(f"the header's column number {place} is not declared")
        return {name: found.index(name) for name in declared if name in counts}

    def _positions_by_order(self, width: int) -> dict[str, int]:
        names = [column.name for column in self.contract.columns]
        if self.for_prediction and width == len(names) - 1:
            names.remove(self.contract.target.name)
        return {name: place for place, name in enumerate(names)}

    def _parsers(self, positions: Mapping[str, int]) -> dict[str, Parser]:
        form, markers = self.contract.format, self.contract.missing_markers
        parsers = {
            feature.name: feature_parser(feature, form, markers, for_prediction=self.for_prediction)
            for feature in self.contract.features
        }
        target = self.contract.target
        if not self.for_prediction and target.name in positions:
            parsers[target.name] = target_parser(target, form, markers)
        return parsers

    def _take(
        self, block: list[_Record], width: int, positions: Mapping[str, int], parsers: Mapping[str, Parser]
    ) -> None:
        """Parse a block of rows, column by column."""
        ragged = [row for row, cells in block if len(cells) != width]
        if ragged:
            self.mistakes.add(f"not the expected {width} columns; is the delimiter the declared one?", ragged)
            block = [record for record in block if len(record[1]) == width]
        rows = [row for row, _ in block]
        self.rows += rows
        for name, parse in parsers.items():
            place = positions[name]
            values = [parse(cells[place]) for _, cells in block]
            flawed: dict[str, list[int]] = {}
            for row, value in zip(rows, values, strict=True):
                if isinstance(value, Flaw):
                    flawed.setdefault(value.words, []).append(row)
            for words, where in flawed.items():
                self.mistakes.add(f"column {name}: {words}", where)
            numbers = [math.nan if isinstance(value, Flaw) else value for value in values]
            self.parsed[name].append(np.array(numbers, dtype=np.float64))
        patient = self.contract.patient
        if patient and patient.name in positions:
            self.patients += [cells[positions[patient.name]].strip() for _, cells in block]

    def _finish(self, positions: Mapping[str, int]) -> Table:
        columns = {name: np.concatenate(blocks) for name, blocks in self.parsed.items()}
        for values in columns.values():
            values.flags.writeable = False
        target = columns.pop(self.contract.target.name, None)
        patient = self.contract.patient
        identified = patient is not None and patient.name in positions
        if not self.for_prediction:
            self._check_patients()
            # Classes and rows are counted once the cells are right: before, the counts would mislead.
            self.mistakes.stop_if_any()
            self._check_counts(target)
        elif not self.rows:
            self.mistakes.add("the file has no rows of patients")
        self.mistakes.stop_if_any()
        return Table(
            contract=self.contract,
            rows=len(self.rows),
            features=MappingProxyType(columns),
            target=target,
            patients=tuple(self.patients) if identified else None,
        )

    def _check_patients(self) -> None:
        patient = self.contract.patient
        if patient is None:
            return
        markers = {"", *self.contract.missing_markers}
        anonymous = [row for row, who in zip(self.rows, self.patients, strict=True) if who in markers]
        if anonymous:
            self.mistakes.add(f"column {patient.name}: no patient identifier", anonymous)
        if patient.one_row_per_patient:
            counts = Counter(self.patients)
            again = [row for row, who in zip(self.rows, self.patients, strict=True) if counts[who] > 1]
            again = [row for row in again if row not in set(anonymous)]
            if again:
                self.mistakes.add(f"column {patient.name}: a patient identifier that occurs more than once", again)

    def _check_counts(self, values: Numbers | None) -> None:
        target = self.contract.target
        if len(self.rows) < FEWEST_ROWS:
            self.mistakes.add(f"too few rows: at least {FEWEST_ROWS} are needed, {len(self.rows)} are there")
        if values is None or isinstance(target, RegressionTarget):
            return
        counts = np.bincount(values.astype(np.int64), minlength=len(target.classes))
        for name, count in zip(target.classes, counts, strict=True):
            if not count:
                self.mistakes.add(f"column {target.name}: no row is of the class {name}")
        if np.count_nonzero(counts) == 1:
            self.mistakes.add(f"column {target.name}: all rows are of one class, so there is nothing to learn")


def _records(lines: Iterable[str], delimiter: str) -> Iterator[_Record]:
    """The rows that are not blank, each with its number."""
    reader = csv.reader(_checked(lines), delimiter=delimiter, strict=True)
    row = 0
    try:
        for row, cells in enumerate(reader, start=1):
            if cells:
                yield row, cells
    except csv.Error:
        _refuse([f"row {row + 1}: a quotation mark is not closed, or a cell is far too long"])


def _checked(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            _refuse([f"line {number}: it holds a NUL byte, as a damaged or binary file does"])
        if not line.isascii() and _UNDECODED.search(line):
            _refuse([f"line {number}: it is not text in the declared encoding"])
        yield line
