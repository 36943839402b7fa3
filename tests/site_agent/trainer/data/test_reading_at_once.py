"""Reading in columns equals reading cell by cell, to the last bit, for hostile and ordinary files."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from protos.errors import DataError
from site_agent.trainer.data.cell_rules import UNKNOWN_POSITION
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.sources import text
from site_agent.trainer.data.tables import survey_table
from tests.for_each import for_each

from . import cell_by_cell
from .conftest import contract_from

TODAY = date(2024, 6, 1)
COLUMNS = """
  - {name: who, role: patient}
  - {name: a, role: feature, type: numeric, range: [-50, 300], missing: median, missing_markers: [0, 999]}
  - {name: b, role: feature, type: numeric, missing_markers: ["not done"]}
  - {name: c, role: feature, type: categorical, codes: [1, 2, "1.5", "é"], missing_markers: [9]}
  - {name: d, role: feature, type: categorical, codes: [x, y], missing: refuse}
  - {name: born, role: feature, type: date, until: seen, unit: years, range: [0, 120], missing: median}
  - {name: seen, role: date, pattern: ["%d.%m.%Y", "%Y-%m-%d", "%Y/%m/%d"], missing_markers: ["01.01.1900"]}
  - {name: last, role: feature, type: date, since: "2020-01-01", pattern: "%Y/%m/%d %H:%M:%S", future: allow}
  - {name: note, role: ignore}
  - {name: y, role: target, task: binary, positive: [1], negative: [0]}
"""
NAMES = ["who", "a", "b", "c", "d", "born", "seen", "last", "note", "y"]
NUMBERS = [
    *("", " ", "?", "0", "0.0", "-0", "999", "+3", "-.5", "1.", ".", "nan", "inf", "-Infinity", "1_0", "1e5", "1E-3"),
    *("1e400", "1e-400", "2e100", "٣", "0x1f", "1,5", "1.5", " 7.25 ", "\t8", "301", "1 2", "not done", "Zebra"),
    *("0" * 401 + "1", "1" * 31, "5e-324", "0.1" + "0" * 300 + "1"),
]
CODES = [
    *("1", "1.0", " 1", "1,0", "2", "1.5", "1,5", "é", "9", "9.0", "", "?", "x", "y", "X", "\u00a0x", "unknown", "z"),
]
DAYS = [
    *("1950-03-01", "1950-03-01 09:05", "1950-03-01T09:05:07.25", "1950-02-30", "19500301", "1950-W09-3", "1950-3-1"),
    *("1850-01-01", "0000-01-01", "9999-12-31", "2031-01-01", "", "?", " 1999-12-31 ", "1950-03-01 99:99", "x"),
]
SEEN = [
    *("01.03.2020", "1.3.2020", "31.12.2023", "30.02.2020", "01.01.1900", "01.01.0000", "01.01.2031", ""),
    *("29.02.2020\n", "2020-03-01", "2020-03-01 09:05", "2020/3/1", "2020/03/01", "2020/03/01 09:05", "2020-3-1"),
]
LAST = ["2020/01/31 10:20:30", "2020/01/31 24:00:00", "2020/01/31 10:20:61", "2020/1/31 1:2:3", "2040/01/01 00:00:00"]
NOTES = ["", "x", "two\nlines", "three\r\nlines", 'a "quoted" word', "a,b;c", "'=1+1", "\u2028", "\x0b\x1c", "\ufeff"]
KINDS = [[" p1", "p1 "], NUMBERS, NUMBERS, CODES, CODES, DAYS, SEEN, LAST, NOTES, ["7"]]
DAMAGE = [b"\0", b"\xff", b'"', b"\x81", b"\xc3", b"\r", b"\xef\xbb\xbf", b"\xed\xa0\x80"]


def _contract(decimal: str, encoding: str, delimiter: str) -> Contract:
    form = f'{{header: true, decimal: "{decimal}", encoding: {encoding}, delimiter: "{delimiter}"}}'
    return contract_from(f'format: {form}\nmissing_markers: ["", "?"]\ncolumns:{COLUMNS}')


def _lines(generator: np.random.Generator, delimiter: str, rows: int, strangeness: float) -> list[str]:
    """A table's lines, most of them as anybody would write them, some as nobody should."""
    lines = []
    for row in range(rows):
        cells = [
            f"p{row // 2}",
            repr(round(generator.normal(60, 20), 3)),
            f"{row}",
            "1",
            "x",
            f"19{row % 90 + 10}-03-01",
        ]
        cells += ["01.03.2020", "2020/01/31 10:20:30", "x", str(row % 2)]
        for place, kinds in enumerate(KINDS):
            if generator.random() < strangeness * (0.1 if place in (0, 9) else 1.0):
                cells[place] = str(generator.choice(np.array(kinds, dtype=object)))
        written = []
        for cell in cells:
            needs = any(character in cell for character in f'\r\n"{delimiter}')
            is_quoted = needs or generator.random() < strangeness / 4
            written.append('"' + cell.replace('"', '""') + '"' if is_quoted else cell)
        lines.append(delimiter.join(written))
        if generator.random() < strangeness / 10:
            lines.append(
                str(generator.choice(["", "a", delimiter, "p1" + delimiter * 9, " ", '"', f'x"y{delimiter}z']))
            )
    return lines


def _file(seed: int, folder: Path) -> tuple[Path, Contract]:
    generator = np.random.default_rng(seed)
    delimiter = str(generator.choice([",", ";", "\t", "|"]))
    decimal = "," if delimiter != "," and generator.random() < 0.4 else "."
    encoding = str(generator.choice(["utf-8", "utf-8", "utf-8", "iso-8859-1", "windows-1252", "utf-16"]))
    strangeness = float(generator.choice([0.0, 0.02, 0.2]))
    lines = [delimiter.join(NAMES), *_lines(generator, delimiter, int(generator.integers(1, 60)), strangeness)]
    if decimal == ",":
        lines = [line.replace(".", ",", 1) if generator.random() < 0.5 else line for line in lines]
    ends = [["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\r"]][generator.integers(4) if generator.random() < 0.5 else 0]
    raw = "".join(line + str(generator.choice(ends)) for line in lines).encode(encoding, "replace")
    if generator.random() < 0.3:
        raw = raw.rstrip(b"\r\n")
    if generator.random() < 0.3:
        raw = b"\xef\xbb\xbf" + raw if encoding == "utf-8" else raw
    if generator.random() < 0.15:
        place = int(generator.integers(len(raw)))
        raw = raw[:place] + DAMAGE[generator.integers(len(DAMAGE))] + raw[place:]
    path = folder / f"{seed}.csv"
    path.write_bytes(raw)
    return path, _contract(decimal, encoding, "\\t" if delimiter == "\t" else delimiter)


def _assert_same(path: Path, contract: Contract) -> None:
    wanted = cell_by_cell.read(path, contract, TODAY)
    if wanted.refused:
        with pytest.raises(DataError) as error:
            survey_table(path, contract, today=TODAY)
        # A damaged header is reported before what is behind it.
        assert error.value.what == wanted.refused or "declared" in error.value.what or "missing" in error.value.what
        return
    found = survey_table(path, contract, today=TODAY)
    table, mistakes = found.table, {one.words: one for one in found.mistakes}
    assert table.row_numbers is not None
    assert table.row_numbers.tolist() == wanted.rows
    assert list(table.patients or ()) == wanted.patients
    for column in contract.features:
        values = np.array(wanted.values.get(column.name, []))
        if isinstance(column, CategoricalFeature):
            values[np.isnan(values)] = UNKNOWN_POSITION
        assert table.features[column.name].tobytes() == values.tobytes() or np.array_equal(
            table.features[column.name].view(np.int64)[~np.isnan(values)], values.view(np.int64)[~np.isnan(values)]
        )
        np.testing.assert_array_equal(np.isnan(table.features[column.name]), np.isnan(values))
    assert table.target is not None
    np.testing.assert_array_equal(table.target, np.array(wanted.values.get("y", [])))
    told = {words: (list(one.rows), one.count) for words, one in mistakes.items() if one.rows}
    told.pop("column who: no patient identifier", None)
    assert told == {words: (rows[:20], len(rows)) for words, rows in wanted.mistakes.items()}


@for_each("seed", range(28))
def test_hostile_tables_are_read_as_cell_by_cell(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values to the bit, kinds of mistakes, their rows, and the words of a refusal, in pieces of any size."""
    monkeypatch.setattr(text, "_PIECE_BYTES", [1 << 21, 700, 64, 1][seed % 4])

    _assert_same(*_file(seed, tmp_path))


def test_a_table_is_read_without_pandas(tmp_path: Path) -> None:
    """Numbers, codes, dates, missing and wrong cells are read in a process that has not loaded pandas."""
    rows = _lines(np.random.default_rng(0), ",", 50, 0.0)
    strange = 'p1,?,not done,"1.5",X,1950-02-30,2020/03/01,2020/01/31 10:20:30,x,0'
    (tmp_path / "a.csv").write_text("\n".join([",".join(NAMES), *rows, strange]) + "\n")
    (tmp_path / "contract.yaml").write_text(f'format: {{header: true}}\nmissing_markers: ["", "?"]\ncolumns:{COLUMNS}')
    script = """
import sys
from pathlib import Path
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.tables import survey_table
found = survey_table(Path("a.csv"), read_contract(Path("contract.yaml")))
assert len(found.table.row_numbers) == 51 and len(found.mistakes) > 1, found.mistakes
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""

    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=60)
