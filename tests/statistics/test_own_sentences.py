"""What only a hospital's own people read of a statistics plan: why it did not answer, and questions about units."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from global_layers import simulate
from global_layers.one_process import run_rounds
from protos.statistics.printed_results import RESULTS_HTML
from site_agent.commands.model_commands import results
from site_agent.desk.analyses_in_words import void_analyses
from site_agent.desk.results.statistics_results import OWN_JSON, STATISTICS, write_results
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.protos.examples import listed
from tests.site_agent.trainer.test_statistics import site
from tests.statistics.federations import CONCEPTS, frames_of, patients, statistics_plan, studies_of
from tests.statistics.test_regression import regression

COX = {"name": "hazards", "cox": {"time": "days", "event": "died", "terms": ["age"]}}
CURVE = {"name": "survival", "curve": {"time": "days", "event": "died", "grid": 50.0, "to": 900.0}}


def told(folder: Path, study: StatisticsStudy) -> list[str]:
    """The sentences for a hospital's own people, which its page and `site-agent results` show."""
    hospital = site(folder / study.site)
    write_results(hospital, study, "run")
    written = hospital.state_path / STATISTICS / "run"
    found: list[str] = json.loads((written / OWN_JSON).read_text())["told"]
    page, config = (written / RESULTS_HTML).read_text(), folder / study.site / "hospital.yaml"
    shown = CliRunner().invoke(results, ["--config", str(config)]).output
    assert all(escape(one) in page and one in shown for one in found)
    return found


@pytest.mark.parametrize(
    ("analysis", "column", "code", "rows", "named"),
    [
        (regression(terms=["stage"]), "stage", "III", 1, "stage=III (3)"),
        (regression(terms=["age"]), "died", "yes", 1, "died"), (COX, "died", "yes", 1, "died"),
        (COX, None, None, 2, ""), (CURVE, None, None, 2, ""),
    ],
)  # fmt: skip
def test_a_refusal_says_at_each_hospital_whether_its_own_rows_are_the_reason(
    tmp_path: Path, analysis: dict[str, Any], column: str | None, code: str | None, rows: int, named: str
) -> None:
    """The second hospital has three rows of a code, or two of each patient. Only it reads so, with code and count."""
    table = patients(0).assign(patient=lambda rows: np.arange(len(rows)))
    own = table.site == 1
    table.loc[own, "patient"] //= rows
    if column is not None:
        few = table.index[own & (table[column] == code)]
        table.loc[few[3:], column] = "no" if column == "died" else "I"
    plan = statistics_plan(analysis)
    frames = frames_of(plan, table, patients="patient")
    studies = studies_of(plan, frames)
    run_rounds(plan, studies)

    sentences = {name: told(tmp_path, study) for name, study in studies.items()}

    first, second, *others = plan.site_names
    (reason,) = studies[second].reasons.values()
    assert [reason in words for (words,) in sentences.values()] == [False, True, False, False]
    assert named in reason
    assert [len([*void_analyses(plan, frame, name)]) for name, frame in frames.items()] == [0, 1, 0, 0]  # the review
    assert all(sentences[name] == sentences[first] for name in others)
    (refused,) = simulate(plan, {name: table[table.site == k] for k, name in enumerate(studies)}, patient="patient")
    assert refused["refused"] == f"{second}: {reason}"


def test_the_review_calls_no_healthy_group_small() -> None:
    """All 14 rows of a group are men. It becomes void with another one, because their difference would show few men."""
    table = patients(0)
    table.loc[(table.site == 0) & (table.stage == "III"), "sex"] = "male"
    plan = statistics_plan({"name": "patients", "table_one": {"columns": ["sex"], "by": "stage"}})
    (words,) = void_analyses(plan, frames_of(plan, table)[plan.site_names[0]], plan.site_names[0])
    assert "stage=II" in words
    assert "stage=III" in words
    assert "small" not in words


@pytest.mark.parametrize(("fewest", "refusals"), [(3, 0), (4, 1)])
def test_a_question_about_a_unit_is_asked_on_the_own_page_alone(tmp_path: Path, fewest: int, refusals: int) -> None:
    """The others read nothing. Ages in the wrong unit have no weight, so hospitals can be too few for a model."""
    table, plan = patients(0), statistics_plan(regression(terms=["age"]), fewest_sites=fewest)
    table["age"] = table.age.where(table.site != 1, table.age / 12)
    studies = studies_of(plan, frames_of(plan, table))
    run_rounds(plan, studies)

    found = [told(tmp_path, study) for study in studies.values()]

    assert [len(one) for one in found] == [refusals, refusals + 1, refusals, refusals]
    assert [one for one in found[1] if one not in found[0]] == [*studies[plan.site_names[1]].other_units()]


@pytest.mark.parametrize("lacking", ["concept", "rows"])
def test_no_page_fails_where_a_hospital_lacks_a_concept_or_complete_rows(lacking: str, tmp_path: Path) -> None:
    """Its people are asked nothing."""
    rates = regression("rates", family="poisson", outcome="admissions", exposure="days", terms=["sex"])
    recorders = {"recorded_by": [one["name"] for one in listed(4)]} if lacking == "concept" else {}
    line = regression(family="gaussian", outcome="lactate", terms=["age"])
    table, plan = (
        patients(0, (90, 140, 60, 200, 80)),
        statistics_plan(rates, line, CURVE, sites=5, concepts=[one | recorders for one in CONCEPTS]),
    )
    table.loc[table.site == 4, ["age", "days"]] = np.nan
    studies = studies_of(plan, frames_of(plan, table))
    run_rounds(plan, studies)

    assert [told(tmp_path, study) for study in studies.values()][4] == []
