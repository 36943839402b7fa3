"""Files that a reviewer made: nothing of them is lost or becomes a name in silence."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from protos.errors import DataError
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.cell_rules import written_day


def test_a_quotation_mark_that_hides_line_ends_is_no_row(tmp_path: Path) -> None:
    """Two marks in one line look balanced, but the second is never closed."""
    lines = ["id,age,outcome,height,note", *(f"A{row},40,alive,170cm,x" for row in range(60))]
    lines[20] = 'A20,40,alive,5\'10","tall'
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError):
        describe(tmp_path / "m.csv")


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


def test_a_title_padded_with_delimiters_is_above_the_header(tmp_path: Path) -> None:
    """As spreadsheets save it."""
    rows = "\n".join(f"P{row},{row + 30},{'yes' if row % 2 else 'no'}" for row in range(40))
    (tmp_path / "t.csv").write_text(f"Cohort export,,\npatient,age,outcome\n{rows}\n")
    assert "name: patient" in describe(tmp_path / "t.csv").text


def test_times_beyond_the_calendar_are_no_defect(tmp_path: Path) -> None:
    """An open end is often the last second of the year 9999, which a zone moves beyond it."""
    ends = arrow.array([0] * 39 + [253402300799], arrow.timestamp("s", "Europe/Berlin"))
    numbers = arrow.array([*range(40)], arrow.int64())
    outcome = arrow.array(["yes", "no"] * 20)
    parquet.write_table(arrow.table({"crp": numbers, "end": ends, "outcome": outcome}), tmp_path / "t.parquet")
    assert "name: crp" in describe(tmp_path / "t.parquet").text


@pytest.mark.parametrize(("text", "is_day"), [("20200115", True), ("202011", False), ("2020115", False)])
def test_a_date_without_separators_has_all_digits(text: str, is_day: bool) -> None:
    """A month would be read as a day."""
    assert (written_day(text, "%Y%m%d") is not None) == is_day
