"""The rounds of a statistics plan at a site: announced sums are final, and own rows decide nothing in the open."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from global_layers.one_process import run_rounds
from protos.plan.prior_sums import place_sums
from protos.plan.statistics_plan import StatisticsPlan
from protos.wire.messages import MalformedMessage, Stage
from site_agent.desk.analyses_in_words import analysis_section
from site_agent.trainer.requests import Asked
from site_agent.trainer.statistics.statistics_study import StatisticsStudy
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan, studies_of
from tests.statistics.test_regression import regression

FIRST, NEWTON = Asked(round=0, stage=Stage.STATISTICS), Asked(round=1, stage=Stage.NEWTON)


def _after_first(plan: StatisticsPlan, studies: dict[str, StatisticsStudy]) -> npt.NDArray[np.float32]:
    vector = np.zeros(plan.tensor.number_count, np.float32)
    each = [study.train(FIRST, vector).scalars for study in studies.values()]
    place_sums(vector, plan.place(0, 1), [sum(numbers) for numbers in zip(*each, strict=True)])
    return vector


def test_announced_sums_are_final_also_after_a_restart() -> None:
    """Whoever could change an earlier sum would choose the coefficients at which a site answers."""
    plan = statistics_plan(regression())
    frames = frames_of(plan, patients(0))
    studies = studies_of(plan, frames)
    vector, study = _after_first(plan, studies), next(iter(studies.values()))
    first, changed = study.train(NEWTON, vector), vector.copy()
    changed[4] += 1

    size = 4 * plan.place(0, 1).stop
    assert study.train(NEWTON, vector[:size]).scalars == first.scalars  # zeros follow
    for other in (changed, vector[: size - 4], vector[: size + 4], np.append(vector, vector[:4])):
        with pytest.raises(MalformedMessage):
            study.train(NEWTON, other)
    later = StatisticsStudy(plan, frames[study.site], site=study.site, secret=study.site.encode())
    later.restore(study.saved())
    with pytest.raises(MalformedMessage):
        later.train(NEWTON, changed)
    assert later.train(NEWTON, vector).scalars == first.scalars


def test_a_site_whose_rows_may_not_answer_is_a_masked_count() -> None:
    """It sends as many numbers as always: 1 for itself, and secret random ones. Everybody reads a sentence."""
    plan, table = statistics_plan(regression(), rows_per_unknown=20.0), patients(1, rows=(60, 70, 80, 900))
    studies = studies_of(plan, frames_of(plan, table))
    vector = _after_first(plan, studies)

    sent = [study.train(NEWTON, vector).scalars for study in studies.values()]

    assert [numbers[0] for numbers in sent] == [0, 0, 0, 1]  # the others of the largest site have too few rows
    bounds = plan.numbers_by_round[1][1:]
    assert all(one.lowest <= sent_one <= one.bound for one, sent_one in zip(bounds, sent[-1][1:], strict=True))
    assert sum(abs(one) > 1 << 40 for one in sent[-1][1:]) == len(bounds)  # an honest sum is far smaller
    assert studies[plan.site_names[3]].train(NEWTON, vector).scalars == sent[-1]
    last = plan.site_names[3]
    another = StatisticsStudy(plan, frames_of(plan, table)[last], site=last, secret=b"other")
    assert another.train(NEWTON, vector).scalars != sent[-1]
    assert {len(numbers) for numbers in sent} == {plan.sizes[1]}
    assert set(studies[plan.site_names[3]].reasons) == {"model"}
    another.restore(studies[plan.site_names[3]].saved())  # its people read why also after a restart
    assert another.reasons == studies[plan.site_names[3]].reasons
    (found,) = results_of(plan, frames_of(plan, table))
    assert set(found) == {"name", "refused"}


def test_another_unit_is_asked_about_at_its_own_hospital_alone() -> None:
    """In a term, an exposure, times and a Table 1, from announced sums. Without a mistake nobody is asked."""
    rates = regression("rates", family="poisson", outcome="admissions", exposure="days", terms=["sex"])
    means = {"name": "means", "table_one": {"columns": ["lactate"], "by": "sex"}}
    curve = {"name": "curve", "curve": {"time": "days", "event": "died", "by": "sex", "grid": 50.0, "to": 900.0}}
    cases = ("age", regression(terms=["age"])), ("days", rates), ("days", curve), ("lactate", means)
    for column, analysis in cases:
        for factor in (1.0, 12.0):
            table, plan = patients(0), statistics_plan(analysis, fewest_sites=3)  # a curve goes on without one
            table[column] = table[column].where(table.site != 1, table[column] / factor)
            studies = studies_of(plan, frames_of(plan, table))
            run_rounds(plan, studies)
            assert [len([*one.other_units()]) for one in studies.values()] == [0, factor > 1.0, 0, 0]


def test_a_review_names_every_choice_of_an_analysis() -> None:
    """A person approves bins, grid, references, knots, the code of an event, penalties and errors, not only columns."""
    table = {"name": "t", "table_one": {"columns": ["lactate"], "by": "sex", "bins": 37}}
    knots = {"terms": ["age", "stage"], "references": {"stage": "II"}, "splines": {"age": [41.0, 52.0, 63.0]}}
    plan = statistics_plan(
        table,
        regression(**knots, robust=True, intercept="common"),
        regression("other", terms=["age"], firth=True),
        {"name": "c", "cox": {"time": "days", "event": "died", "terms": ["age"], "ridge": 2.5}},
        {"name": "k", "curve": {"time": "days", "event": "died", "grid": 50.0, "to": 900.0}},
    )

    words = " ".join(cell for row in analysis_section(plan).table.rows for cell in row)  # type: ignore[union-attr]

    choices = "37 parts/stage compared with II/41, 52, 63/robust/common/Firth/died=yes/ridge 2.5/of 50/to 900"
    assert [one for one in choices.split("/") if one not in words] == []
