"""Files of SAS, SPSS and Stata give the rows that another program wrote, or are refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest

from protos.errors import DataError
from site_agent.desk.drafting.describe import describe
from site_agent.trainer.data.columns import CategoricalFeature, NumericFeature
from site_agent.trainer.data.contract import Contract, LabelledFormat, read_contract
from site_agent.trainer.data.table_sources import Doubt, Unreadable, blocks_of, first_row, open_rows, texts_of
from site_agent.trainer.data.tables import read_table, survey_table

from .conftest import REPOSITORY, contract_from

pyreadstat = pytest.importorskip("pyreadstat", reason="pyreadstat is not installed: it is in the extra `formats`")

ROWS: Final = 40
FORM: Final = LabelledFormat(kind="sas-spss-stata")
EXAMPLE: Final = REPOSITORY / "deploy" / "examples" / "contract-spss.yaml"
LABELS: Final = {1.0: "male", 2.0: "female"}


def _frame() -> pd.DataFrame:
    """A patient's number, an age that can be missing, a code, a day and an outcome. Names fit every format."""
    return pd.DataFrame(
        {
            "PATIENT": [f"A-{row}" for row in range(ROWS)],
            "AGE": [None if row % 7 == 3 else 40.5 + row for row in range(ROWS)],
            "SEX": [1.0 + row % 2 for row in range(ROWS)],
            "BORN": [date(1950, 3, 1) + timedelta(days=400 * row) for row in range(ROWS)],
            "OUTCOME": [float(row % 3 == 0) for row in range(ROWS)],
        }
    )


def _pandas_stata(frame: pd.DataFrame, path: Path) -> None:
    """Stata's format as another library writes it, without any code of the one that reads here."""
    frame["BORN"] = pd.to_datetime(frame["BORN"])
    frame.to_stata(path, write_index=False, convert_dates={"BORN": "td"}, value_labels={"SEX": LABELS})


WRITERS: Final[Mapping[str, Callable[[pd.DataFrame, Path], Any]]] = {
    "sav": lambda frame, path: pyreadstat.write_sav(frame, path, variable_value_labels={"SEX": LABELS}),
    "zsav": lambda frame, path: pyreadstat.write_sav(frame, path, compress=True, variable_value_labels={"SEX": LABELS}),
    "por": lambda frame, path: pyreadstat.write_por(frame, path),
    "dta": _pandas_stata,
    "dta12": lambda frame, path: pyreadstat.write_dta(frame, path, version=12, variable_value_labels={"SEX": LABELS}),
    "xpt": lambda frame, path: pyreadstat.write_xport(frame, path, file_format_version=5),
    "xpt8": lambda frame, path: pyreadstat.write_xport(frame, path, file_format_version=8),
}


def _written(kind: str, folder: Path) -> Path:
    path = folder / f"table.{kind}"
    WRITERS[kind](_frame(), path)
    return path


def _rows(path: Path, form: LabelledFormat = FORM) -> tuple[list[list[str | Unreadable]], list[Doubt]]:
    doubts: list[Doubt] = []
    with open_rows(path, form, doubts) as rows:
        found: list[list[str | Unreadable]] = [[*first_row(rows)[1]]]
        width = len(found[0])
        for block in blocks_of(rows, width, range(width)):
            found += map(list, zip(*(texts_of(block.columns[place]) for place in range(width)), strict=True))
            for row, place, flaw in block.unreadable:
                found[row - 1][place] = flaw
    return found, doubts


def _drafted(path: Path, dictionary: Path | None = None) -> Contract:
    return contract_from(describe(path, dictionary=dictionary).text)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_draft_of_each_kind_reads_what_was_written(tmp_path: Path, kind: str) -> None:
    """The kind is found by the content, and the draft fits the table."""
    path = _written(kind, tmp_path).rename(tmp_path / "table")
    contract = _drafted(path)
    table, frame = read_table(path, contract), _frame()
    assert table.patients == tuple(frame["PATIENT"])
    np.testing.assert_array_equal(table.features["AGE"], frame["AGE"].to_numpy(float))
    days = [(day - date(2000, 1, 1)).days for day in frame["BORN"]]
    np.testing.assert_array_equal(table.features["BORN"], days)
    np.testing.assert_array_equal(table.features["SEX"], frame["SEX"] - 1)
    np.testing.assert_array_equal(table.target, frame["OUTCOME"])
    sex = next(column for column in contract.columns if column.name == "SEX")
    assert isinstance(sex, CategoricalFeature)
    assert sex.labels == (("male", "female") if kind in ("sav", "zsav", "dta", "dta12") else None)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_was_cut_never_has_fewer_rows(tmp_path: Path, kind: str) -> None:
    """Each is refused, or complete in spite of its missing end."""
    path = _written(kind, tmp_path)
    whole, content = _rows(path), path.read_bytes()
    refused = 0
    for cut in [*range(1, 40), *range(40, len(content), len(content) // 40)]:
        path.write_bytes(content[:-cut])
        try:
            rows = _rows(path)
            # Version 5 says nowhere how many rows it has, so a cut between records and rows cannot be seen.
            assert rows == whole or (kind == "xpt" and cut % 80 == 0)
        except DataError:
            refused += 1
    assert refused > 30


def test_numbers_that_spss_calls_missing_are_asked_about(tmp_path: Path) -> None:
    """A draft declares them. A contract that does not is asked, also for a range without an end."""
    frame, path = _frame(), tmp_path / "table.sav"
    frame["AGE"] = [999.0 if row % 9 == 0 else 998.0 if row % 9 == 1 else 40.0 + row for row in range(ROWS)]
    pyreadstat.write_sav(
        frame,
        path,
        column_labels=["", "Age at admission (years)", "", "", ""],
        missing_ranges={"AGE": [{"lo": 900, "hi": float("inf")}]},
    )
    drafted = _drafted(path)
    age = drafted.features[0]
    assert isinstance(age, NumericFeature)
    assert (age.unit, age.missing_markers) == ("years", ("998", "999"))
    assert read_contract(EXAMPLE).format.kind == drafted.format.kind
    assert np.isnan(read_table(path, drafted).features["AGE"]).sum() == 10
    undeclared = contract_from(describe(path).text.replace('missing_markers: ["998", "999"]', "concept: null", 1))
    assert not survey_table(path, drafted).doubts
    assert [name for _, name in survey_table(path, undeclared).doubts] == ["AGE"]
    path.write_bytes(path.read_bytes()[:76] + b"\2\0\0\0" + path.read_bytes()[80:])  # the second column is a weight
    assert len(survey_table(path, drafted).doubts) == 1


def test_labels_at_the_ends_of_a_scale_make_no_codes(tmp_path: Path) -> None:
    """Most values between them have no label; and labels that only format their numbers are none."""
    path, frame = tmp_path / "table.sav", pd.DataFrame({"VAS": np.arange(101.0), "OUTCOME": np.arange(101) % 2})
    frame["SMOKE"], frame["SEX"] = [[codes[row % 4] for row in range(101)] for codes in ((1, 2, 3, 9), (1, 2, 3, 1))]
    labels = {"VAS": {0: "none", 100: "worst"}, "OUTCOME": {0: ".00", 1: "1,00"}}
    labels |= {"SMOKE": {1: "never", 2: "ex", 3: "now", 9: "x"}, "SEX": {1: "m", 2: "f", 3: "Unknown"}}
    pyreadstat.write_sav(frame, path, variable_value_labels=labels)
    assert isinstance(_drafted(path).features[0], NumericFeature)
    assert "0 is none, 100 is worst; a number" in describe(path).text
    assert "positive: [1], negative: [0]}" in describe(path).text
    coded = [one for one in _drafted(path).features if isinstance(one, CategoricalFeature)]  # also one that is unknown
    assert [(one.codes, one.missing_markers) for one in coded] == [(("1", "2", "3"), ("9",)), (("1", "2"), ("3",))]


def test_special_missing_values_are_not_numbers(tmp_path: Path) -> None:
    """`.a` of Stata stays apart from `.`, and a contract that does not declare it has an error."""
    frame, path = _frame(), tmp_path / "table.dta"
    frame["AGE"] = ["a" if row % 4 == 0 else 40.0 + row for row in range(ROWS)]
    pyreadstat.write_dta(frame, path, missing_user_values={"AGE": ["a"]}, variable_value_labels={"AGE": {"a": "lost"}})
    drafted = _drafted(path)
    assert ": .a is lost" in describe(path).text
    assert np.isnan(read_table(path, drafted).features["AGE"]).sum() == 10
    plain = contract_from(describe(path).text.replace('missing_markers: [".a"]', "concept: null"))
    assert [mistake.count for mistake in survey_table(path, plain).mistakes] == [10]


def test_a_number_of_32_bits_is_its_shortest_decimal(tmp_path: Path) -> None:
    """Stata's type float has 99.9000015, and the contract's marker 99.9 means it."""
    path, ages = tmp_path / "table.dta", pd.Series([np.nan, *[99.9] * (ROWS - 1)], dtype="float32")
    _frame().assign(AGE=ages, SEX=np.float32(16777216)).drop(columns="BORN").to_stata(path)
    assert {(row[2], row[3]) for row in _rows(path)[0][1:]} == {("", "16777216"), ("99.9", "16777216")}


def test_a_transport_file_with_two_tables_is_refused(tmp_path: Path) -> None:
    """The library would read the second one's headers as patients of the first."""
    one = _written("xpt", tmp_path)
    content = one.read_bytes()
    one.write_bytes(content + content[240:])
    with pytest.raises(DataError):
        _rows(one)


@pytest.mark.parametrize("kind", ["dta12", "xpt"])
def test_letters_without_a_stated_encoding_are_not_guessed(tmp_path: Path, kind: str) -> None:
    """The same bytes are other letters in another country."""
    path, frame = tmp_path / "table", _frame()
    frame["PATIENT"] = [f"M\u00fcller-{row}" for row in range(ROWS)]
    WRITERS[kind](frame, path)
    path.write_bytes(path.read_bytes().replace("\u00fc".encode(), b"\xfc "))
    try:
        rows, _ = _rows(path)
        assert all(isinstance(row[0], Unreadable) for row in rows[1:])
    except DataError:
        pass
    rows, _ = _rows(path, LabelledFormat(kind="sas-spss-stata", encoding="windows-1252"))
    assert [row[0] for row in rows[1:]] == [f"M\u00fc ller-{row}" for row in range(ROWS)]


HAVEN: Final = """
library(haven)
rows <- 0:39
seen <- as.POSIXct("1950-03-01 10:00:00", tz = "UTC") + rows
table <- data.frame(PATIENT = paste0("A-", rows), CRP = rows + 0.5, SEEN = seen)
table$CRP[3] <- tagged_na("A"); table$CRP[4] <- tagged_na("Z"); table$CRP[5] <- NA
write_xpt(table, "five.xpt", version = 5); write_xpt(table, "eight.xpt", version = 8)
suppressWarnings(write_sas(table, "table.sas7bdat"))
"""


@pytest.fixture(scope="session")
def of_r(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that R wrote."""
    folder = tmp_path_factory.mktemp("of_r")
    if shutil.which("Rscript") is None:
        pytest.skip("no R is installed (Debian: apt install r-cran-haven), so its files are not read")
    if subprocess.run(["Rscript", "-e", HAVEN], cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("R has no package haven (Debian: apt install r-cran-haven), so its files are not read")
    return folder


@pytest.mark.parametrize("name", ["five.xpt", "eight.xpt", "table.sas7bdat"])
def test_special_missing_values_of_sas_keep_their_letter(of_r: Path, name: str) -> None:
    """Also in transport files, where the library itself reads an empty cell."""
    rows, doubts = _rows(of_r / name)
    assert len(rows) == 41
    assert [row[1] for row in rows[1:7]] == ["0.5", "1.5", ".A", ".Z", "", "5.5"]
    assert rows[1][2] == "1950-03-01 10:00:00"
    assert not doubts


PSPP: Final = """
DATA LIST LIST /id (A8) age (F8.2) day (DATE11) stay (DTIME12).
BEGIN DATA
"P1" 40.5 01-MAR-1950 "1 01:00:00"
"P2" 99 15-OCT-1582 "0 00:00:01"
"P3" . . .
END DATA.
MISSING VALUES age (99).
SAVE OUTFILE='table.sav'.
EXPORT OUTFILE='table.por'.
"""


@pytest.mark.skipif(shutil.which("pspp") is None, reason="no PSPP is installed (Debian: apt install pspp)")
@pytest.mark.parametrize(("name", "age"), [("table.sav", "99.0"), ("table.por", "")])
def test_files_of_pspp_keep_days_and_long_durations(tmp_path: Path, name: str, age: str) -> None:
    """A stay of 25 hours has 90,000 seconds. A portable file's missing numbers are empty cells."""
    (tmp_path / "make.sps").write_text(PSPP)
    subprocess.run(["pspp", "make.sps"], cwd=tmp_path, check=True, capture_output=True)
    rows, _ = _rows(tmp_path / name)
    wanted = [["P1", "40.5", "1950-03-01", "90000"], ["P2", age, "1582-10-15", "1"], ["P3", "", "", ""]]
    assert rows[1:] == wanted
