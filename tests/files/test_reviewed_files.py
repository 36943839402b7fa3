"""Files that a reviewer made: nothing of them is lost or becomes a name in silence."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from protos.errors import DataError
from protos.plan.documents import parse_document
from site_agent.desk.drafting.column_draft import ColumnDraft
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.cell_rules import written_day
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import read_table


def test_a_quotation_mark_that_hides_line_ends_is_no_row(tmp_path: Path) -> None:
    """Two marks in one line look balanced, but the second is never closed."""
    lines = ["id,age,outcome,height,note", *(f"A{row},40,alive,170cm,x" for row in range(60))]
    lines[20] = 'A20,40,alive,5\'10","tall'
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError):
        describe(tmp_path / "m.csv")
    lines = [f'B{row};"was well,\nis well, left";{row % 2}' for row in range(60)]
    assert describe(_written(tmp_path, "id;note;sick\n" + "\n".join(lines))).rows == 60


@pytest.mark.parametrize("beside", [[], ["", "ask Dr X"]])
def test_no_patient_is_the_header(tmp_path: Path, beside: list[str]) -> None:
    """Comments beside the table, or the index of a frame, make rows wider than their header."""
    rows = [["id", "age", "sex", "crp", "died"], *([f"Smith{row}", row + 30, "m", 1.5, row % 2] for row in range(20))]
    if beside:
        rows[4] += beside
    pd.DataFrame(rows).to_excel(tmp_path / "z.xlsx", header=False, index=False)
    drafted = describe(tmp_path / "z.xlsx").text
    assert "name: id" in drafted
    assert "Smith" not in drafted


def test_times_beyond_the_calendar_are_no_defect(tmp_path: Path) -> None:
    """An open end is often the last second of the year 9999, which a zone moves beyond it."""
    ends = arrow.array([0] * 39 + [253402300799], arrow.timestamp("s", "Europe/Berlin"))
    numbers = arrow.array([*range(40)], arrow.int64())
    outcome = arrow.array(["yes", "no"] * 20)
    parquet.write_table(arrow.table({"crp": numbers, "end": ends, "outcome": outcome}), tmp_path / "t.parquet")
    assert "name: crp" in describe(tmp_path / "t.parquet").text


def test_a_date_without_separators_has_all_digits() -> None:
    """A month would be read as a day."""
    assert [written_day(text, "%Y%m%d") is None for text in ("20200115", "202011", "2020115")] == [False, True, True]
    assert written_day("31/03/2020 8:30 PM", "%d/%m/%Y") == written_day("2020-03-31 20:30", "%Y-%m-%d") is not None
    assert ColumnDraft("at", ".", [f"202401{day}15{day}" for day in range(10, 32)]).patterns == ("%Y%m%d%H%M",)


def _written(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text, "utf-8", newline="")
    return folder / "t.csv"


def _drafted(folder: Path, text: str) -> str:
    return describe(_written(folder, text)).text


def _rows(*cells: str) -> str:
    return "".join(",".join([f"P{row}", f"{row}.5", *cells, "yn"[row % 2]]) + "\n" for row in range(40))


def test_a_name_has_one_blank_for_each_line_break_and_no_hidden_sign(tmp_path: Path) -> None:
    """The contract is written, and read, with the same name."""
    header = 'patient,"Hb\r\n\u00a0(g/l)",m\u200ba\u0308x,outcome\n'
    assert all(f'name: "{name}"' in _drafted(tmp_path, header + _rows("x")) for name in ("Hb (g/l)", "m\u00e4x"))
    text = 'format: {header: true}\ncolumns:\n  - {name: patient, role: patient}\n  - {name: "Hb (g/l)", role: feature, type: numeric}\n  - {name: mäx, role: ignore}\n  - {name: outcome, role: target, task: binary, positive: [y]}\n'  # noqa: E501
    contract = parse_document(text.encode(), Contract, source="contract.yaml", consequence="Nothing was sent.")
    assert read_table(tmp_path / "t.csv", contract).features["Hb (g/l)"][3] == 3.5


@pytest.mark.parametrize("kind", ["list", "struct", "binary", "duration"])
def test_columns_of_parquet_that_no_contract_reads_are_not_called_empty(tmp_path: Path, kind: str) -> None:
    """The draft says why their cells are not read."""
    cells = {"list": [1], "struct": {"a": 1}, "binary": b"\xff", "duration": timedelta(hours=3)}[kind]
    table = arrow.table({"crp": [*range(40)], "x": [cells] * 40, "outcome": ["yes", "no"] * 20})
    parquet.write_table(table, tmp_path / "t.parquet")
    text = describe(tmp_path / "t.parquet").text
    assert "no row has a value" not in text
    assert "40 cells" in text


@pytest.mark.parametrize("below", [",mg/l,years,", ",high,low,"])
def test_a_second_row_of_names_is_told(tmp_path: Path, below: str) -> None:
    """Such as units, or the names below the name of a group."""
    assert "row 2" in _drafted(tmp_path, f"patient,crp,age,outcome\n{below}\n" + _rows("2.5"))


@pytest.mark.parametrize("end", ["   \n", "\x1a", ",,,\n", "\t\n\x1a"])
def test_a_last_line_without_a_value_is_no_patient(tmp_path: Path, end: str) -> None:
    """Blanks, delimiters, or the mark by which DOS ended a text."""
    assert "from 40 rows" in _drafted(tmp_path, "patient,crp,age,outcome\n" + _rows("2") + end)


@pytest.mark.parametrize("days", [9, 40])
def test_years_of_two_digits_are_asked_about(tmp_path: Path, days: int) -> None:
    """Few days look like codes."""
    rows = "".join(f"P{row},{row % days % 28 + 1:02d}.03.4{row % 9},{'yn'[row % 2]}\n" for row in range(80))
    assert "two digits" in _drafted(tmp_path, "patient,born,outcome\n" + rows)


def test_a_draft_asks_about_codes_days_and_long_tables(tmp_path: Path) -> None:
    """The country NA, postcodes, codes 9 and none, days as numbers, a row for each measurement."""
    days, kinds = ("1900-01-01", "2024-02-05"), ("a", "none")
    rows = (
        f"{kinds[i % 2]},{('none', 1.5, 2.5)[i % 3]},{('DE', 'NA')[i % 2]},0106{i % 2},{(1, 2, 2, 9)[i % 4]},"
        f"{44000 + i},{days[i % 2]}"
        for i in range(80)
    )
    (tmp_path / "t.csv").write_text("\n".join(["Variable,value,land,code,sex,came,left", *rows]))
    text = describe(tmp_path / "t.csv").text
    asked = ("Namibia", '["none"]', '["01060", "01061"]', "9 is like a marker", "SAS counts", "omop")
    assert [words for words in asked if words not in text] == []


def test_numbers_typed_with_a_comma_are_read_beside_others(tmp_path: Path) -> None:
    """A workbook can have both, and a draft says so."""
    book = pd.DataFrame({"crp": [1.5, "2,5", 3.25] * 20, "age": range(60), "sick": ["n", "y"] * 30})
    book.to_excel(tmp_path / "t.xlsx", index=False)
    text = describe(tmp_path / "t.xlsx").text
    assert "column crp: numbers are typed as text with a comma" in text
    contract = parse_document(text.encode(), Contract, source="draft", consequence="Nothing was sent.")
    assert read_table(tmp_path / "t.xlsx", contract).features["crp"][:3].tolist() == [1.5, 2.5, 3.25]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("labor.2.csv", "id,name\n1,M\xfcller\n", "in line 2 no text in UTF-8"),
        ("labor.2.csv", "", "is empty"),
        ("labor.2.csv", "id,nom\n1,a\n", "lacks names"),
        ("labor.2.csv", "id,name\n1,a\n2\n", "in line 3 another number"),
        ("labor.2.csv", 'id,name\n1,"a\n2,b\n', "not closed"),
        ("other.parquet", "id,name", "is not Parquet"),
    ],
)
def test_the_file_of_a_folder_that_is_at_fault_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    """The error has what is wrong with it, and no cell."""
    (tmp_path / "labor.1.csv").write_text("id,name\n" + "1,a\n2,b\n" * 9)
    (tmp_path / name).write_bytes(content.encode("windows-1252"))
    with pytest.raises(DataError, match=re.escape(name) + f".*{words}"):
        describe(tmp_path / "labor.1.csv", query="SELECT name, CAST(id AS INT) AS id FROM labor")
