"""The time of follow-up: what is read, what is a mistake, what a draft asks, and what a person must accept."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError, DataError
from protos.plan.concepts import CodedConcept, Conversion, NumberConcept
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.desk.drafting.describe import describe
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data.cells import AFTER_END, NEGATIVE, REVERSED, ZERO
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.run_table import table_digest
from site_agent.trainer.data.tables import Survey, survey_new_rows, survey_table
from site_agent.trainer.statistics.concept_frame import concept_frame, used_values
from tests.site_agent.trainer.data.conftest import contract_from
from tests.statistics.federations import statistics_plan

NUMBER = "{name: days, role: follow-up, unit: days%s}"
FEATURE = "{name: days, role: feature, type: numeric, concept: time%s}"
DATES = "{name: last, role: follow-up, unit: days, pattern: '%%d.%%m.%%Y', since: start%s}"
TARGET = "{name: died, role: target, task: binary, positive: [2], negative: [1%s]}"


def _contract(follow_up: str, more: str = "", codes: str = "") -> Contract:
    start = "  - {name: start, role: date}\n" if "since" in follow_up else ""
    columns = f"  - {{name: age, role: feature, type: numeric}}\n{start}  - {follow_up % more}\n  - {TARGET % codes}\n"
    return contract_from(f"format: {{header: true}}\ncolumns:\n{columns}")


def _plan(concepts: tuple[NumberConcept | CodedConcept, ...]) -> StatisticsPlan:
    curve = {"name": "survival", "curve": {"time": "time", "event": "event", "grid": 5.0, "to": 15.0}}
    return statistics_plan(curve, concepts=[one.model_dump(mode="json") for one in concepts])


def _read(tmp_path: Path, contract: Contract, cells: list[str], codes: tuple[str, ...] = ("1", "2")) -> Survey:
    table, names = tmp_path / "table.csv", [column.name for column in contract.columns]
    rows = [f"{40 + row},{cell},{codes[row % len(codes)]}" for row, cell in enumerate(cells)]
    table.write_text("\n".join([",".join(names), *rows]))
    return survey_table(table, contract, today=date(2026, 1, 1))


def _ordinary(*cells: str) -> list[str]:
    return [*cells, *(str(30 + row) for row in range(12))]


def _ordinary_dates(*cells: str) -> list[str]:
    return [*cells, *(f"2020-01-{row:02},{row:02}.03.2020" for row in range(1, 13))]


def test_a_number_is_the_time(tmp_path: Path) -> None:
    """The time is read beside the outcome, and is no feature."""
    survey = _read(tmp_path, _contract(NUMBER, ", zero: keep, missing: allow"), _ordinary("0", "7.5", ""))
    table = survey.table
    assert survey.mistakes == ()
    assert table.follow_up is not None
    np.testing.assert_array_equal(table.follow_up[:4], [0.0, 7.5, np.nan, 30.0])
    assert list(table.features) == ["age"]
    assert not table.group_positions


def test_two_dates_are_a_time(tmp_path: Path) -> None:
    """The time is from one date to another, in days or in years."""
    days = _read(tmp_path, _contract(DATES), _ordinary_dates("2020-01-01,31.12.2020")).table
    years = _read(tmp_path, _contract(DATES.replace("days", "years")), _ordinary_dates("2020-01-01,31.12.2020")).table
    assert days.follow_up is not None
    assert years.follow_up is not None
    assert days.follow_up[0] == 365.0
    np.testing.assert_allclose(years.follow_up * 365.25, days.follow_up)


@pytest.mark.parametrize(
    ("follow_up", "more", "cell", "words"),
    [
        (NUMBER, "", "-1", NEGATIVE.words), (NUMBER, "", "0", ZERO.words),
        (NUMBER, ", longest: 100", "101", "a time longer than 100 days"), (NUMBER, "", "", "missing"),
        (NUMBER, "", "soon", "text"), (DATES, "", "2020-05-02,01.05.2020", REVERSED.words),
        (DATES, "", "2020-05-01,01.05.2020", ZERO.words),
        (DATES, ", end: 2020-12-31", "2020-05-01,01.01.2021", AFTER_END.words),
        (DATES, "", "2020-05-01,31.02.2020", "pattern"), (DATES, "", "2020-05-01,", "missing"),
    ],
)  # fmt: skip
def test_a_wrong_time_is_a_mistake_with_its_row(
    tmp_path: Path, follow_up: str, more: str, cell: str, words: str
) -> None:
    """Negative and zero times, dates in the wrong order and days after the end are found, each once."""
    cells = (_ordinary_dates if follow_up is DATES else _ordinary)(cell)
    (mistake,) = _read(tmp_path, _contract(follow_up, more), cells).mistakes
    assert words in mistake.words
    assert mistake.rows == (2,)


@pytest.mark.parametrize(
    ("follow_up", "more", "codes"),
    [
        (NUMBER, ", pattern: '%Y-%m-%d'", ""), (NUMBER, ", end: 2020-12-31", ""), (NUMBER, ", competing: [3]", ""),
        (NUMBER, ", competing: [1]", ""), (NUMBER, "}\n  - {name: weeks, role: follow-up, unit: weeks", ""),
        (DATES.replace("since: start", "since: birth"), "", ""), (DATES.replace("unit: days", "unit: weeks"), "", ""),
    ],
)  # fmt: skip
def test_a_contract_that_leaves_the_event_open_is_refused(follow_up: str, more: str, codes: str) -> None:
    """A follow-up by dates needs both dates, and competing codes are some of those without the event."""
    with pytest.raises(ConfigurationError):
        _contract(follow_up, more, codes)


def test_both_codes_must_be_listed() -> None:
    """Without `negative` every other code would silently be censored."""
    text = f"format: {{header: true}}\ncolumns:\n  - {{name: age, role: feature, type: numeric}}\n  - {NUMBER % ''}\n"
    with pytest.raises(ConfigurationError):
        contract_from(f"{text}  - {{name: died, role: target, task: binary, positive: [2]}}\n")


def test_other_times_are_another_table(tmp_path: Path) -> None:
    """An approval of a table does not cover the table with one other time."""
    one, other = (_read(tmp_path, _contract(NUMBER), _ordinary(cell)).table for cell in ("7", "8"))
    assert table_digest(one) != table_digest(other)


def test_a_statistics_plan_gets_time_and_event(tmp_path: Path) -> None:
    """Both are concepts of the plan: the time in the concept's unit, the event as the position of its code."""
    contract = _contract(NUMBER, ", concept: time", "], concept: event, concept_codes: [alive, dead")
    concepts = (
        NumberConcept(
            kind="number", name="time", definition="Time.", low=0, high=20, unit="weeks",
            conversions=(Conversion(unit="days", factor=1 / 7),),
        ),
        CodedConcept(kind="codes", name="event", definition="Death.", codes=("alive", "dead")),
    )  # fmt: skip
    table = _read(tmp_path, contract, _ordinary("7")).table
    frame = concept_frame(_plan(concepts), table, "site", 5)
    np.testing.assert_array_equal(frame.columns["time"][:2], [1.0, 4.29])  # a hundredth of a week: see converted
    np.testing.assert_array_equal(frame.columns["event"][:2], [0.0, 1.0])
    assert "days" in used_values(_plan(concepts), table, frame)


def test_a_feature_below_0_is_no_time(tmp_path: Path) -> None:
    """A plan can take its time from a feature; below 0 it would have become the lower limit."""
    contract = _contract(FEATURE, codes="], concept: event, concept_codes: [alive, dead")
    time = NumberConcept(kind="number", name="time", definition="Time.", low=0, high=20)
    plan = _plan((time, CodedConcept(kind="codes", name="event", definition="Death.", codes=("alive", "dead"))))
    concept_frame(plan, _read(tmp_path, contract, _ordinary("0")).table, "site", 5)
    with pytest.raises(DataError):
        concept_frame(plan, _read(tmp_path, contract, _ordinary("-1")).table, "site", 5)


def test_new_rows_need_no_time(tmp_path: Path) -> None:
    """A prediction is made before the follow-up, so the column may be absent."""
    (tmp_path / "new.csv").write_text("age\n50\n")
    assert survey_new_rows(tmp_path / "new.csv", _contract(NUMBER)).mistakes == ()


@pytest.mark.parametrize(
    ("more", "level"), [("", "warning"), (", competing: [0]", "note")], ids=["a second code", "declared"]
)
def test_a_second_code_without_the_event_is_asked(tmp_path: Path, more: str, level: str) -> None:
    """Whether a code is a competing event is a warning until the contract says it."""
    cells = [str(10 + row) for row in range(90)]
    survey = _read(tmp_path, _contract(NUMBER, more, ", 0"), cells, codes=("0", "1", "2"))
    found = examine(survey, Split(seed=0)).findings
    assert {one.level for one in found if one.key == "competing:died"} == {level}


def test_several_rows_of_a_patient_are_warned_about(tmp_path: Path) -> None:
    """A time to event needs one row for each patient, or models and curves count an event twice."""
    survey = _read(tmp_path, _contract(NUMBER), [str(10 + row) for row in range(90)])
    for rows, is_warned in ((1, False), (2, True)):
        table = replace(survey.table, patients=tuple(f"P{row // rows}" for row in range(90)))
        found = examine(replace(survey, table=table), Split(seed=0)).findings
        assert ("rows:days" in {one.key for one in found}) is is_warned


def test_a_feature_that_is_a_time_of_follow_up_is_warned_about(tmp_path: Path) -> None:
    """A model would read the future."""
    columns = [f"{{name: {name}, role: feature, type: numeric}}" for name in ("age", "survival_days", "lifetime-dose")]
    lines = "\n".join(f"  - {one}" for one in (*columns, TARGET % ""))
    rows = [f"{row},{row % 7},{row % 5},{1 + row % 2}" for row in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["age,survival_days,lifetime-dose,died", *rows]))
    survey = survey_table(tmp_path / "table.csv", contract_from(f"format: {{header: true}}\ncolumns:\n{lines}\n"))
    found = {one.key for one in examine(survey, Split(seed=0)).findings}
    assert [key for key in found if key.startswith("follow-up:")] == ["follow-up:survival_days"]


@pytest.mark.parametrize(
    ("header", "codes", "is_asked"),
    [
        ("age,time,status", "12", True),
        ("age,futime,death", "01", False),
        ("age,os_months,event", "012", True),
        *((f"age,time,{name}", "01", True) for name in ("CNSR", "censoring")),
        *((f"osmo,{time},dead", "01", False) for time in ("rfstime", "T", "d.time", "days_to_death", "surv_mo")),
    ],
)
def test_a_draft_asks_which_code_is_the_event(tmp_path: Path, header: str, codes: str, is_asked: bool) -> None:
    """A time beside a status is no feature. Codes 1 and 2, or three codes, are asked and not guessed."""
    rows = [f"{40 + row % 37},{5 + 3 * row},{codes[row % len(codes)]}" for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    text = describe(tmp_path / "table.csv").text
    time = header.split(",")[1]
    assert f"{{name: {time}, role: follow-up, unit: {'months' if 'mo' in time else 'days'}}}" in text
    assert text.count("role: follow-up") == 1
    assert ("positive: []" in text) is is_asked
    if is_asked:
        with pytest.raises(ConfigurationError):
            contract_from(text)
    else:
        assert contract_from(text).follow_up is not None


@pytest.mark.parametrize("header", ["OS_STATUS,OS_MONTHS,DFS_STATUS,DFS_MONTHS", "os_time,os_event,pfs_event,pfs_time"])
def test_the_time_of_an_outcome_has_its_name(tmp_path: Path, header: str) -> None:
    """Two outcomes, each with its time, are asked about."""
    rows = [",".join(str(row % (99 if "M" in one.upper() else 2)) for one in header.split(",")) for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    text = describe(tmp_path / "table.csv").text
    assert (f"name: {header.split(',')[3]}, role: follow-up" in text, "which outcome" in text) == (True, True)


def test_years_of_the_calendar_are_no_follow_up(tmp_path: Path) -> None:
    """Also beside a 0, as MySQL writes an unknown year. An outcome has a German name, and one number is no feature."""
    rows = [f"{2001 + row % 20 if row % 9 else 0},{'ja' if row % 3 else 'nein'},{row % 2},7" for row in range(80)]
    (tmp_path / "table.csv").write_text("\n".join(["year,verstorben,sex,site", *rows]))
    text = describe(tmp_path / "table.csv").text
    assert ("role: follow-up" in text, 'positive: ["ja"]' in text, "{name: site, role: ignore}" in text) == (0, 1, 1)
