"""Values that good tables lose in other programs: each is read right here, or asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest

from protos.errors import DataError
from site_agent.desk.drafting.column_draft import ColumnDraft, feature_line, target_line
from site_agent.desk.drafting.describe import describe
from site_agent.desk.examination.examine import examine
from site_agent.desk.examination.examined_columns import far_values, unlikely_markers
from site_agent.desk.new_rows import read_new_rows
from site_agent.hospital import Split
from site_agent.trainer.data.cells import decimal_marks, thousands
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.tables import survey_table
from tests.site_agent.trainer.data.conftest import contract_from

CONTRACT = """
format: FORMAT
columns:
  - {name: patient, role: patient}
  - {name: born, role: feature, type: date, since: "1850-01-01", unit: days, missing: median, future: allow}
  - {name: code, role: feature, type: categorical, codes: ["1E50", "1E51", "01", "1"]}
  - {name: sick, role: target, task: binary, positive: [1], negative: [0]}
"""
ROWS = 20


def _lines(rows: int = ROWS) -> list[list[str]]:
    codes = ("1E50", "1E51", "01", "1")
    return [[f"A-{row}", f"1960-03-{row % 28 + 1:02d}", codes[row % 4], str(row % 2)] for row in range(rows)]


def _file(path: Path, rows: list[list[str]], *, header: bool = True, end: str = "") -> Path:
    names = [["patient", "born", "code", "sick"]] if header else []
    path.write_text("".join(",".join(row) + (end if row not in names else "") + "\n" for row in (*names, *rows)))
    return path


def _contract(form: str = "{header: true}") -> str:
    return CONTRACT.replace("FORMAT", form)


@pytest.mark.parametrize("other", ["A-1 ", "A\u20111", "a-1", "A-1\u200b", "A 1", "A1", "1E999"])
def test_one_patient_under_two_spellings_is_asked_about(tmp_path: Path, other: str) -> None:
    """Otherwise a patient's rows are in the training part and in the test part."""
    rows = _lines()
    rows[0][0] = other
    found = survey_table(_file(tmp_path / "table.csv", rows), contract_from(_contract()))
    keys = {finding.key for finding in examine(found, Split(seed=0)).findings}
    assert ("identifiers-alike" in keys) == (other.strip() not in ("A-1", "1E999"))


@pytest.mark.parametrize(("word", "is_asked"), [("Mean", 1), ("N = 20", 1), ("Gesamt:", 1), ("N-20", 0), ("Summer", 0)])
def test_a_summary_below_the_table_is_asked_about(tmp_path: Path, word: str, is_asked: bool) -> None:
    """Its row would be a patient, and its mean of the outcome would make a number of the codes 0 and 1."""
    path = _file(tmp_path / "table.csv", [*_lines(), [word, "", "", "0"]])
    keys = {one.key for one in examine(survey_table(path, contract_from(_contract())), Split(seed=0)).findings}
    assert ("identifiers-summary" in keys) == (f"row {ROWS + 2} begins" in describe(path).text) == is_asked


def test_no_patient_becomes_the_names_of_a_draft(tmp_path: Path) -> None:
    """Without a header the first row has values like those below it: numbers, dates, numbered texts, words."""
    rows = _lines()
    draft = describe(_file(tmp_path / "table.csv", rows, header=False)).text
    named = describe(_file(tmp_path / "named.csv", rows)).text
    assert "A-0" not in draft
    assert "header: false" in draft
    assert "header: true" in named


def test_a_word_that_can_be_an_answer_is_a_marker_only_among_numbers(tmp_path: Path) -> None:
    """No complication is an answer, and no value is none."""
    path = tmp_path / "table.csv"
    severity = ("none", "mild", "severe")
    arm = ("x", "y", "<NA>", "NaT")  # as pandas writes missing values in columns of other kinds
    tested = [f"p{row},{'-+'[row % 2]},{('-', '1+', 'pos')[row % 3]},{severity[row % 3]}" for row in range(60)]
    lines = [f"{one},{row if row % 5 else 'none'},{arm[row % 4]},{row % 2}" for row, one in enumerate(tested)]
    path.write_text("\n".join(["patient,er,protein,severity,crp,arm,sick", *lines]))
    draft = describe(path).text
    (line,) = (one for one in draft.splitlines() if "name: severity" in one)
    assert "none" in line
    assert '{name: arm, role: feature, type: binary, codes: ["x", "y"]}' in draft
    assert all(f"codes: [{codes}], " in draft for codes in ('"-", "+"', '"-", "1+", "pos"'))
    assert "none" not in next(one for one in draft.splitlines() if one.startswith("missing_markers"))


def test_negative_numbers_switch_no_check_off() -> None:
    """A base excess is around 0, and 500 is none; one negative amount hides no marker."""
    excess = np.random.default_rng(7).normal(0, 3, 400)
    assert not far_values(excess).any()
    excess[::100] = 500
    assert np.flatnonzero(far_values(excess)).tolist() == [0, 100, 200, 300]
    assert unlikely_markers(np.append(excess[1:100], -999.0)) == (-999.0,)
    assert not any("once" in one for one in feature_line(ColumnDraft("sex", ".", ["1", "2"] * 30 + ["-9"])).words)


@pytest.mark.parametrize(("cells", "decimal", "is_asked"), [("9.252;11,8", ",", False), ("9,252;7", ".", True)])
def test_thousands_prove_no_decimal_mark(tmp_path: Path, cells: str, decimal: str, is_asked: bool) -> None:
    """Another column proves it, or a person is asked, also by the check."""
    path = tmp_path / "table.csv"
    path.write_text("leuko;hb;sick\n" + "".join(f"{cells}{row % 9};{row % 2}\n" for row in range(60)))
    text = describe(path).text.replace("leuko, role: ignore", "leuko, role: feature, type: numeric")
    assert f'decimal: "{decimal}"' in text
    assert bool(survey_table(path, contract_from(text.replace('"."', '","'))).doubts) == is_asked


@pytest.mark.parametrize(
    ("cells", "is_asked"),
    [("1,276 653 13,062", 1), ("9,254 11,860", 1), ("0,123 11,234", 0), ("1,015 1,030", 0), ("7,325 7 8", 0)],
)
def test_thousands_beside_decimals_are_asked_about(cells: str, is_asked: int) -> None:
    """Whole numbers far above them, or numbers of several lengths: but no density, and no share."""
    marks = {name: decimal_marks(arrow.array(some.split())) for name, some in (("hb", "12,5 9"), ("crp", cells))}
    assert thousands(marks) == ["crp"] * is_asked


@pytest.mark.parametrize(("labels", "event"), [("Yes No", "1"), ("Alive Dead", "2"), ("A B", None), ("", None)])
def test_the_event_is_what_labels_say_or_asked(labels: str, event: str | None) -> None:
    """A code 2 can be the event, or no event."""
    column = ColumnDraft("died", ".", ["1", "2"] * 30)
    column.labels = dict(zip("12", labels.split(), strict=False))
    assert f"positive: [{event or ''}]" in target_line(column, is_timed=False).text
    column.label = "Censor"
    assert column.event == (event if labels else None)
    assert any("does U mean" in one for one in feature_line(ColumnDraft("sex", ".", ["F", "M", "U"] * 30)).words)
    drafts = (ColumnDraft("died", ".", codes.split() * 9) for codes in ("ja nein Nein", "A B C"))
    told = ["; ".join(target_line(draft, is_timed=False).words) for draft in drafts]
    assert (told[0].endswith('["ja"], negative: ["Nein", "nein"]'), "binary" in told[1]) == (True, False)


def _float(number: int) -> str:
    return f"{np.float32(number):.0f}"


def _shortest(number: int) -> str:
    return f"{float(str(np.float32(number))):.0f}"


@pytest.mark.parametrize(
    ("first", "step", "written", "is_told"),
    [
        *((2 * 10**7, 3, _float, True), (18 * 10**7, 10, _float, True), (18 * 10**7, 10, _shortest, True)),
        *((12 * 10**8, 40, _shortest, True), (10**9, 10, str, False), (4 * 10**15, 4, str, False)),
        *((10**17, 40, str, True), (1, 1, '"1,{}E+11"'.format, True)),
        (1, 1, lambda row: str(row) if row % 9 else "2024-03-12", True),
    ],
)
def test_rounded_identifiers_are_told(tmp_path: Path, first: int, step: int, written: Any, is_told: bool) -> None:
    """Stata's type float stores several patients under one number; of whole numbers a tenth or more ends in 0."""
    rows = [[written(first + step * row), *cells] for row, (_, *cells) in enumerate(_lines())]
    rows[1][1] = "1980-01-02"  # over 120 years after the contract's day
    found = survey_table(_file(tmp_path / "table.csv", rows), contract_from(_contract()))
    keys = {one.key for one in examine(found, Split(seed=0)).findings}
    assert bool({"identifiers-rounded", "identifiers-dated"} & keys) == is_told
    assert "apart:born" in keys


def test_a_header_that_lacks_a_name_is_refused(tmp_path: Path) -> None:
    """As R and pandas write the names of rows."""
    with pytest.raises(DataError):
        describe(_file(tmp_path / "table.csv", [[str(number), *row] for number, row in enumerate(_lines())]))


def test_new_rows_in_parquet_can_have_real_dates(tmp_path: Path) -> None:
    """Such a cell has no pattern."""
    pd.DataFrame({"born": np.array(["1960-03-01"], "datetime64[s]"), "code": ["01"]}).to_parquet(tmp_path / "n.pq")
    contract = contract_from(_contract().replace("date, since", 'date, pattern: "%d.%m.%Y", since'))
    assert len(read_new_rows(tmp_path / "n.pq", contract, Profile(columns=())).usable) == 1
