"""Ordinary and hostile tables: clear errors, bounded memory, and no cell in any message."""

from __future__ import annotations

import csv
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest

from protos.errors import DataError
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data import table_sources
from site_agent.trainer.data.cell_rules import IntervalRule
from site_agent.trainer.data.cells import feature_parser
from site_agent.trainer.data.columns import NumericFeature
from site_agent.trainer.data.contract import BinaryTarget, Contract, TableFormat
from site_agent.trainer.data.tables import read_table, survey_table
from tests.for_each import for_each

from .conftest import SMALL, SMALL_HEADER, SMALL_ROWS, contract_from

Write = Callable[..., Path]
DATES = """
format: {header: true}
columns:
  - {name: born, role: feature, type: date, pattern: "%d.%m.%Y", until: admitted, unit: years, range: [0, 120]}
  - {name: last, role: feature, type: date, since: "2020-01-01", missing: median-and-flag}
  - {name: admitted, role: date}
  - {name: y, role: target, task: binary, positive: [1], negative: [0]}
"""
DATE_HEADER = ["born", "last", "admitted", "y"]
DATE_ROWS = [["01.03.1950", "2020-01-11", "2020-03-01", str(number % 2)] for number in range(12)]
TODAY = date(2024, 6, 1)
WIDE = contract_from(SMALL.replace("{header: true}", "{header: true, encoding: utf-16}"))
NO_NUMBERS = ["nan", "inf", "1_0", "1e400", "2e100", "Zebra", "\u0663", "1,5", "0x1f", "1 2"]


def _refused(path: Path, contract: Contract) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, contract, today=TODAY)
    assert "Zebra" not in "".join(traceback.format_exception(caught.value))
    return caught.value.what


def test_dates_become_ages_and_intervals(write: Write) -> None:
    """Born on 1.3.1950 and admitted on 1.3.2020 is 70 years; 11 January is ten days after the first."""
    table = read_table(write(DATE_ROWS, DATE_HEADER), contract_from(DATES), today=TODAY)

    np.testing.assert_allclose(table.features["born"], 70, atol=0.01)
    assert set(table.features["last"]) == {10.0}
    assert "admitted" not in table.features


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        (1, "2031-01-01", "column last: a date in the future in row 4"),
        (1, "Zebra", "column last: a text that is not a date of the declared pattern in row 4"),
        (1, "2020-02-30", "column last: a text that is not a date of the declared pattern in row 4"),
        (0, "1950-03-01", "column born: a text that is not a date of the declared pattern in row 4"),
        (0, "01.03.1850", "column born: an interval outside the declared range 0 to 120 years in row 4"),
        (0, "", "column born: a missing value (the contract refuses it) in row 4"),
        (2, "", "column born: a missing value (the contract refuses it) in row 4"),
    ],
)
def test_a_date_that_cannot_be_is_told_by_its_row(write: Write, column: int, cell: str, words: str) -> None:
    """In the future, of another pattern, of no calendar, or before anybody lived."""
    rows = [list(row) for row in DATE_ROWS]
    rows[2][column] = cell

    assert words in _refused(write(rows, DATE_HEADER), contract_from(DATES))
    ages = IntervalRule((18, 65), sign=-1, divisor=365.25, unit="years", refuses_missing=True)
    assert not any(ages.is_outside(days / 365.25) for days in (6574, 23742))  # on birthdays


def test_utf_16_is_read_where_it_is_declared_and_told_where_not(tmp_path: Path, small_contract: Contract) -> None:
    """As a spreadsheet saves "Unicode text", or without its mark; undeclared, its NULs are the hint."""
    path = tmp_path / "utf16.csv"
    for encoding in ("utf-16-be", "utf-16-le", "utf-16"):
        path.write_bytes("\n".join(",".join(row) for row in [SMALL_HEADER, *SMALL_ROWS]).encode(encoding))
        assert read_table(path, WIDE).rows == describe(path).rows == len(SMALL_ROWS)
    assert "line 1" in _refused(path, small_contract)


@pytest.mark.parametrize(
    "content", [b"\xff\xfeA", "Zebra".encode("utf-16-le"), b"A\x00g\x00e", b"\xff\xfe" + b"\x00\xd8" * 9]
)
def test_damaged_utf_16_is_refused_without_its_bytes(tmp_path: Path, content: bytes) -> None:
    """Whatever the decoder reports, only a line's number is shown."""
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    assert _refused(path, WIDE)


def test_a_line_without_an_end_is_refused(
    tmp_path: Path, small_contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is one long line is reported after the longest allowed line, before memory is full."""
    monkeypatch.setattr("site_agent.trainer.data.table_sources.LONGEST_LINE", 1000)
    path = tmp_path / "line.csv"
    path.write_text(",".join(SMALL_HEADER) + "\n" + "Zebra" * 1000)

    assert "line 2: it has more than 1000 characters" in _refused(path, small_contract)


@for_each("seed", range(20))
def test_parts_of_a_text_file_have_its_rows(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line ends and marks in quoted cells are part of them, wherever a part of the file ends."""
    monkeypatch.setattr(table_sources, "_PART", 60)
    generator, path = np.random.default_rng(seed), tmp_path / "t.csv"
    cells = ["a", "1.5", "", "\u00e9", "two\nlines", "two\r\nlines", 'a "word"', "a,b", '"', '\n"a"', "\n\n\n"]
    rows = [["who", "note", "x"], *([f"P{row}", *generator.choice(cells, 2).tolist()] for row in range(30))]
    with path.open("w", newline="") as file:
        ends, quoting = ("\n", "\r\n")[seed % 2], (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)[seed // 2 % 2]
        csv.writer(file, lineterminator=ends, quoting=quoting).writerows(rows)
    with table_sources.open_rows(path, TableFormat(header=True), []) as found:
        blocks = list(table_sources.blocks_of(found, 3, [0, 1, 2]))

    columns = ([cell for one in blocks for cell in table_sources.texts_of(one.columns[place])] for place in range(3))
    assert [list(row) for row in zip(*columns, strict=True)] == rows


@for_each("seed", range(40))
def test_numbers_of_every_part_are_those_of_the_whole_file(
    write: Callable[..., Path], seed: int, small_contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that the library reads as numbers has the values, and the mistakes, of cells that the rules read."""
    generator = np.random.default_rng(seed)
    odd = [*NO_NUMBERS, " 5", "+5", "1e5", "1.50", "?", " ?", "", "<5", "1.234"]
    cells = [*map(str, range(20, 90)), "0", "0.0", "63.0", *generator.choice(odd, 2).tolist()]
    rows = [[*generator.choice(cells, 2).tolist(), "1", "no", "", str(row % 2)] for row in range(40)]
    path = write([["37.5", *SMALL_ROWS[0][1:]], *rows])
    whole = survey_table(path, small_contract)
    monkeypatch.setattr(table_sources, "_PART", 60)
    parts = survey_table(path, small_contract)
    assert set(parts.mistakes) == set(whole.mistakes)  # they are found in another order
    for name, values in whole.table.features.items():
        np.testing.assert_array_equal(parts.table.features[name], values)


def test_ten_thousand_columns_are_read(tmp_path: Path) -> None:
    """A wide table is read in blocks of fewer rows, and one column too many is named by its place."""
    names = [f"c{number}" for number in range(10_000)]
    target = BinaryTarget(name="y", role="target", task="binary", positive=("1",), negative=("0",))
    features = tuple(NumericFeature(name=name, role="feature", type="numeric") for name in names)
    contract = Contract(format=TableFormat(header=True), columns=(*features, target))
    path = tmp_path / "wide.csv"
    rows = [f"{'1.5,' * 10_000}{row % 2}" for row in range(12)]
    path.write_text("\n".join([",".join([*names, "y"]), *rows]))

    table = read_table(path, contract)
    path.write_text("\n".join([",".join([*names, "y", "Zebra"]), *(f"{row},1" for row in rows)]))

    assert len(table.features) == 10_000
    assert "the header's column number 10002 is not declared" in _refused(path, contract)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *((" 7.25 ", 7.25), ("+3", 3.0), ("-1e1", -10.0), (".5", 0.5), ("1.", 1.0), ("5e-324", 5e-324)),
        *((cell, None) for cell in [*NO_NUMBERS, "0" * 401]),
        *((cell, np.nan) for cell in ("?", "", " ", "0", "0.0", "-0")),
    ],
)
def test_a_number_is_read_as_it_is_written_and_nothing_else_is_one(cell: str, number: float | None) -> None:
    """Markers are missing whatever their spelling, and no spelling of Python alone is a number."""
    feature = NumericFeature(
        name="a", role="feature", type="numeric", range=(-50, 60), missing="median", missing_markers=("0",)
    )

    found = feature_parser(feature, contract_from(SMALL))(arrow.array([cell]))

    np.testing.assert_array_equal(found.values, [np.nan if number is None else number])
    assert bool(found.flaws) == (number is None)
