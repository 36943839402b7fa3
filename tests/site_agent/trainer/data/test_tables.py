"""A table is read as declared, or every mistake is reported without a value of any patient."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protos.errors import DataError
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.tables import read_table, survey_new_rows

from .conftest import HEART, REPOSITORY, SMALL, SMALL_HEADER, SMALL_ROWS, contract_from

Write = Callable[..., Path]


def _changed(row: int, column: int, cell: str) -> list[list[str]]:
    rows = [list(cells) for cells in SMALL_ROWS]
    rows[row][column] = cell
    return rows


def _refused(path: Path, contract: Contract) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, contract)
    assert "nothing was sent" in caught.value.consequence
    assert caught.value.exit_status == 78
    # Also what a log with tracebacks would show, causes and all.
    shown = "".join(traceback.format_exception(caught.value))
    assert "Zebra" not in shown
    return caught.value.what


def test_cells_are_read_as_declared(write: Write, small_contract: Contract) -> None:
    """63.0, a leading blank, a code written 3.0, markers in words and in numbers: all as declared."""
    table = read_table(write(SMALL_ROWS), small_contract)
    assert table.rows == 12
    assert table.features["Age"][:2].tolist() == [63.0, 67.0]
    np.testing.assert_array_equal(table.features["chol"][:5], [233, 286, np.nan, np.nan, 236])
    assert table.features["cp"][:6].tolist() == [0, 2, 1, 2, 1, -1]
    assert table.features["smoker"][[0, 1, 10]].tolist() == [0, 1, -1]
    assert table.target is not None
    assert table.target.tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 1]
    assert table.patients is None
    assert "63" not in repr(table)


def test_a_german_export_is_read(tmp_path: Path) -> None:
    """Semicolons, decimal commas and windows-1252 are declared, not guessed."""
    contract = contract_from(
        'format: {header: true, delimiter: ";", decimal: ",", encoding: windows-1252}\n'
        "columns:\n  - {name: Größe, role: feature, type: numeric}\n"
        "  - {name: y, role: target, task: regression}\n"
    )
    path = tmp_path / "export.csv"
    path.write_bytes("\r\n".join(["Größe;y", *(f"1,{i};{i}" for i in range(10))]).encode("windows-1252"))
    assert read_table(path, contract).features["Größe"].tolist() == [float(f"1.{i}") for i in range(10)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (_changed(4, 0, "Zebra"), "column Age: text where a number is declared in row 6"),
        (_changed(4, 0, "nan"), "column Age: text where a number is declared in row 6"),
        (_changed(4, 0, "-Infinity"), "column Age: an infinite number in row 6"),
        (_changed(4, 0, "1_0"), "column Age: text where a number is declared in row 6"),
        (_changed(4, 1, "1e300"), "column chol: a number too large"),
        (_changed(4, 0, "130"), "column Age: a number outside the declared range 0 to 120 in row 6"),
        (_changed(4, 0, "?"), "column Age: a missing value (the contract refuses it) in row 6"),
        (_changed(4, 2, "Zebra"), "column cp: a code that is not declared in row 6"),
        (_changed(4, 5, "Zebra"), "column sick: a code that is not declared in row 6"),
        (_changed(4, 5, ""), "column sick: a missing value (the contract refuses it) in row 6"),
        (
            [*SMALL_ROWS[:4], SMALL_ROWS[4][:3], *SMALL_ROWS[5:]],
            "not the expected 6 columns in row 6. Is the delimiter",
        ),
        (SMALL_ROWS[:9], "too few rows: at least 10 are needed, 9 are there"),
        ([], "too few rows"),
        (_changed(0, 4, "Zebra\0"), "line 2: it has a NUL byte"),
        (_changed(0, 4, "Zebra\n" * 40_000), "far too long"),
    ],
)
def test_a_cell_that_does_not_fit_is_told_by_column_and_row(
    write: Write, small_contract: Contract, rows: list[list[str]], words: str
) -> None:
    """The row is the one a spreadsheet shows, the header counted."""
    assert words in _refused(write(rows), small_contract)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (
            ["Age", "chol", "cp", "smoker", "note", "Zebra"],
            ["column sick: it is missing", "number 6 is not declared", "role: ignore"],
        ),
        (
            ["Age", "Age", "cp", "smoker", "note", "sick"],
            ["column Age: it is there 2 times", "column chol: it is miss"],
        ),
        (["a", "b", "c", "d", "Zebra", "f"], ["no declared name"]),
        (None, ["no declared name"]),
    ],
)
def test_a_wrong_header_is_told_without_repeating_it(
    write: Write, small_contract: Contract, header: list[str] | None, words: list[str]
) -> None:
    """Text in the place of a header may be a patient's, so it is reported by place."""
    what = _refused(write(SMALL_ROWS, header), small_contract)
    assert all(part in what for part in words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no rows"),
        (b"Age,chol,cp,smoker,note,sick\n1,2,1,no,Z\xfcbra,0\n", "line 2: it is not text in the declared encoding"),
        (b'Age,chol,cp,smoker,note,sick\n1,2,1,no,"Zebra,0\n', "a quotation mark is not closed"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, small_contract: Contract, content: bytes, words: str) -> None:
    """Empty, in another encoding, or cut within quotes."""
    path = tmp_path / "damaged.csv"
    path.write_bytes(content)
    assert words in _refused(path, small_contract)


def test_the_size_of_a_block_changes_nothing(
    write: Write, small_contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows read one by one are the same table, and mistakes in several blocks are one line."""
    whole = read_table(write(SMALL_ROWS), small_contract)
    monkeypatch.setattr("site_agent.trainer.data.table_sources._BLOCK_CELLS", 1)
    rows = read_table(write(SMALL_ROWS), small_contract)
    what = _refused(write([["Zebra", *cells[1:]] for cells in SMALL_ROWS]), small_contract)
    for name, values in whole.features.items():
        np.testing.assert_array_equal(values, rows.features[name])
    assert "column Age: text where a number is declared in rows 2, 3, 4, 5, 6 and 7 more" in what


def test_prediction_needs_features_only(write: Write, small_contract: Contract) -> None:
    """New patients come without target, maybe one alone; an undeclared code is named, and so is an absent column."""
    found = survey_new_rows(write([["50", "200", "Zebra", "yes"]], SMALL_HEADER[:4]), small_contract)
    assert found.table.rows == 1
    assert found.table.target is None
    assert [one.line for one in found.mistakes] == ["column cp: a code that is not declared in row 2."]
    assert found.cells == {("cp", 2): "Zebra"}
    with pytest.raises(DataError, match="column cp: it is missing"):
        survey_new_rows(write([["50"]], ["Age"]), small_contract)


def test_prediction_without_a_header_may_leave_out_the_target(write: Write) -> None:
    """Columns are then those declared, without the target. A first row of names is no patient."""
    contract = contract_from(SMALL.replace("header: true", "header: false"))
    table = survey_new_rows(write([row[:5] for row in SMALL_ROWS], None), contract).table
    assert table.features["Age"][1] == 67
    with pytest.raises(DataError, match="names"):
        survey_new_rows(write(SMALL_ROWS, SMALL_HEADER[::-1]), contract)
    with pytest.raises(DataError, match="delimiter"):
        survey_new_rows(write([["63", *["0;1"] * 5]] * 12, None), contract)


def _with_patients(*, one_row: bool) -> Contract:
    column = f"{{name: note, role: patient, one_row_per_patient: {str(one_row).lower()}}}"
    return contract_from(SMALL.replace("{name: note, role: ignore}", column))


def test_several_rows_of_a_patient_are_an_error_only_where_declared(write: Write) -> None:
    """A table of visits is correct, but a table of patients is not if one patient occurs twice."""
    assert read_table(write(SMALL_ROWS), _with_patients(one_row=False)).patients == ("Zebra",) * 12
    assert "column note: a patient identifier that occurs more than once in rows 2, 3, 4, 5, 6 and 7 more" in _refused(
        write(SMALL_ROWS), _with_patients(one_row=True)
    )


@pytest.mark.skipif(not HEART.is_dir(), reason="the shared public tables are not here")
@pytest.mark.parametrize(
    ("name", "file", "rows", "positive"),
    [
        ("cleveland", "cleveland.data", 303, 139),
        ("south-africa", "sa.data", 462, 160),
        ("faisalabad", "faisalabad.csv", 299, 96),
    ],
)
def test_the_example_contracts_read_the_public_tables(name: str, file: str, rows: int, positive: int) -> None:
    """Every row, and as many positives as the tables' description says."""
    table = read_table(HEART / file, read_contract(REPOSITORY / "deploy" / "data" / f"{name}.yaml"))
    assert table.rows == rows
    assert table.target is not None
    assert table.target.sum() == positive
