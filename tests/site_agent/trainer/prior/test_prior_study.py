"""The rounds of federated-prior: its regression is the pooled one, and sums that would reveal too much are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coordinator.rounds.course import Course, fitted
from protos.errors import ConfigurationError
from protos.numbers.newton_sums import announced
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import AnnouncedSums
from protos.wire.messages import MalformedMessage, Stage
from site_agent.desk.applied import AppliedModel
from site_agent.desk.comparison.evaluation import held_out_rows
from site_agent.desk.results.prior_report import make_prior_report
from site_agent.desk.results.saved_model import load_model
from site_agent.hospital import read_hospital
from site_agent.trainer.before_rounds import begin_prior
from site_agent.trainer.failures import MayNotSend
from site_agent.trainer.fitted_models import probabilities
from site_agent.trainer.requests import Asked
from tests.site_agent.trainer.prior.prior_federation import (
    SITES,
    Member,
    concepts_of,
    federate,
    make_hospital,
    members_of,
    prior_plan,
)

RIDGE = 10.0


def _pooled(members: Mapping[str, Member], standard: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Coefficients and standard errors with all training rows in one place and an intercept for each site."""
    designs = [standard.applied(member.study._values) for member in members.values()]
    targets = np.concatenate([member.study.outcomes[:, 0] for member in members.values()])
    owner = np.repeat(np.arange(len(designs)), [len(design) for design in designs])
    design = np.hstack([np.concatenate(designs), np.eye(len(designs))[owner]])
    columns = designs[0].shape[1]
    penalty = np.diag([RIDGE] * columns + [0.0] * len(designs))
    values = np.zeros(design.shape[1])
    for _ in range(60):
        fitted = probabilities("binary", design @ values)
        hessian = design.T @ (design * (fitted * (1 - fitted))[:, None]) + penalty
        values = values - np.linalg.solve(hessian, design.T @ (fitted - targets) + penalty @ values)
    return values[:columns], np.sqrt(np.diag(np.linalg.inv(hessian)))[:columns]


def test_the_regression_is_that_of_all_rows_in_one_place(tmp_path: Path) -> None:
    """Through gate, coordinator and announced sums, coefficients and standard errors are the pooled ones to 1e-8."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")

    collection = federate(plan, members)

    known = members["ahus"].study.known_by_others()
    wanted, errors = _pooled(members, known.standard)
    np.testing.assert_allclose(known.joint[0], wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(known.errors[0], errors, rtol=0, atol=1e-8)
    assert collection.run.course.training_rounds == known.rounds < plan.training_rounds
    np.testing.assert_allclose(collection.run.views()["coefficients"][0], wanted, rtol=1e-6)


def test_a_run_that_ends_early_has_the_coefficients_of_its_rounds(tmp_path: Path) -> None:
    """Without its last Newton round a run is within 1e-3 of the pooled fit, and without any it has no coefficients."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")
    rounds = federate(plan, members).run.course.training_rounds
    assert rounds is not None
    assert isinstance(plan, PriorPlan)
    course, wanted = Course(), members["ahus"].study.known_by_others()

    made = fitted(plan, course, _before_round(plan, members, rounds), rounds)

    np.testing.assert_allclose(made["coefficients"], wanted.joint, atol=1e-3)
    np.testing.assert_allclose(made["standard_errors"], wanted.errors, atol=1e-3)
    for count in (0, 1):
        assert fitted(plan, course, _before_round(plan, members, 1), count) == {}


@pytest.mark.parametrize("table", ["breast-cancer", "wine", "diabetes"])
def test_every_task_ends_with_a_model_that_comes_back_from_disk(tmp_path: Path, table: Any) -> None:
    """Two classes, several classes and numbers: three weights in the report, and a saved model that says the same."""
    plan = prior_plan(table)
    members = members_of(tmp_path, plan, table)
    federate(plan, members)
    member = members["berlin"]

    report = make_prior_report(member.hospital, member.study, member.preprocessing, plan.run_name)

    prior: Any = report["prior"]
    assert sum(prior["weights"].values()) == pytest.approx(1.0)
    assert prior["guard"] > 0
    assert "the other hospitals' score" in prior["sentence"]
    model = load_model(member.hospital.state_path, plan.run_name)
    features = model.encode(member.study._table, member.study._rows_of["test"])
    said = AppliedModel(model, plan.run_name, member.hospital.training).scores(features)
    tested: Any = report["federated"]
    wanted = held_out_rows(member.study.own, member.preprocessing).evaluate(said)
    assert tested["metrics"] == pytest.approx(wanted, rel=1e-5)
    again = make_prior_report(member.hospital, member.study, member.preprocessing, plan.run_name)
    assert again == report


def test_a_unit_is_converted_by_the_plan(tmp_path: Path) -> None:
    """A site that records in another unit sends sums of rounded values once the plan declares the factor, else none."""
    concepts = concepts_of("breast-cancer")
    concepts[0]["unit"] = "mm"
    converted = [{**concepts[0], "conversions": [{"unit": "cm", "factor": 10.0}]}, *concepts[1:]]

    def in_millimetres(contract: dict[str, Any]) -> None:
        contract["columns"][0]["unit"] = "mm"

    def in_centimetres(contract: dict[str, Any]) -> None:
        contract["columns"][0]["unit"] = "cm"

    plain = read_hospital(make_hospital(tmp_path / "mm", "ahus", "breast-cancer", change=in_millimetres))
    other = make_hospital(tmp_path / "cm", "ahus", "breast-cancer", change=in_centimetres)
    text = (other.parent / "table.csv").read_text().splitlines()
    cells = [line.split(",") for line in text]
    for row in cells[1:]:
        row[0] = repr(float(row[0]) / 10.0)
    (other.parent / "table.csv").write_text("\n".join(",".join(row) for row in cells) + "\n")
    vector = np.zeros(prior_plan("breast-cancer").tensor.number_count, np.float32)
    asked = Asked(round=0, stage=Stage.STATISTICS)

    with pytest.raises(ConfigurationError, match="is in cm"):
        begin_prior(read_hospital(other), prior_plan("breast-cancer", concepts=concepts))
    plan = prior_plan("breast-cancer", concepts=converted)
    first, second = (begin_prior(each, plan)[0].train(asked, vector).scalars for each in (plain, read_hospital(other)))

    largest = 85 * 2 * 0.005 / (concepts[0]["high"] - concepts[0]["low"]) * 2**30  # hundredths, in 85 rows, squared
    assert 200 < np.abs(np.array(first) - np.array(second)).max() <= largest


@pytest.mark.parametrize(("rare", "visits"), [(0, 1), (1, 1), (9, 1), (10, 1), (10, 2), (20, 2)])
def test_a_flag_of_few_patients_does_not_travel(tmp_path: Path, rare: int, visits: int) -> None:
    """A column in which fewer than ten patients differ from its commonest value is void."""
    path = make_hospital(tmp_path / "ahus", "ahus", "breast-cancer")
    lines = [line.split(",") for line in (path.parent / "table.csv").read_text().splitlines()]
    if visits > 1:
        lines = [[*row, "who" if number < 0 else f"P{number // visits}"] for number, row in enumerate(lines, start=-1)]
        contract = yaml.safe_load((path.parent / "contract.yaml").read_text())
        contract["columns"].append({"name": "who", "role": "patient"})
        (path.parent / "contract.yaml").write_text(yaml.safe_dump(contract))
        (path.parent / "table.csv").write_text("\n".join(",".join(row) for row in lines) + "\n")
    plan = prior_plan("breast-cancer")
    training = begin_prior(read_hospital(path), plan)[0]._rows_of["training"]
    for number, row in enumerate(lines[1:]):
        row[0] = "20.0" if number in training[:rare] else "10.0"
    (path.parent / "table.csv").write_text("\n".join(",".join(row) for row in lines) + "\n")
    study, _ = begin_prior(read_hospital(path), plan)

    scalars = study.train(Asked(round=0, stage=Stage.STATISTICS), _nothing(plan)).scalars

    assert scalars[0] == (rare < 10 * visits)
    assert scalars[4] == 0


def _nothing(plan: Plan) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert isinstance(plan, PriorPlan)
    return np.zeros(plan.tensor.number_count, np.float32)


def _before_round(plan: Plan, members: Mapping[str, Member], number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What is sent down for a round of an honest run."""
    final = federate(plan, members).run.values.copy()
    assert isinstance(plan, PriorPlan)
    final[4 * plan.place(number - 1, plan.training_rounds).stop :] = 0.0
    return final


def _with_sum(plan: Plan, vector: Any, name: str, change: int) -> Any:
    """The vector with another sum of the statistics or of the first Newton round."""
    assert isinstance(plan, PriorPlan)
    names = (*plan.statistics_names, *plan.newton_names)
    place = names.index(name)
    changed = vector.copy()
    integers = AnnouncedSums(plan, vector)._words
    changed[4 * place : 4 * place + 4] = announced([integers[place] + change])
    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("outcomes", -200),  # the others would have fewer rows than were added
        ("hessian outcome: mean-radius x mean-radius", 1 << 43),  # beyond N / 4
        ("hessian outcome: mean-radius x mean-radius", -(1 << 42)),  # no longer positive semidefinite
        ("gradient outcome: mean-radius", 1 << 46),  # beyond N
        ("squares mean-radius", 1 << 50),  # more than the sum of values in 0..1
    ],
)
def test_sums_of_no_honest_sites_are_refused(tmp_path: Path, name: str, change: int) -> None:
    """A coordinator cannot choose coefficients by announcing sums that are impossible for the sites' rows."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")
    honest = _before_round(plan, members, 2)
    study, _ = begin_prior(members["ahus"].hospital, plan)
    asked = Asked(round=2, stage=Stage.NEWTON)
    study.train(asked, honest)
    study, _ = begin_prior(members["ahus"].hospital, plan)

    with pytest.raises(MalformedMessage):
        study.train(asked, _with_sum(plan, honest, name, change))


def test_what_was_announced_stays_announced(tmp_path: Path) -> None:
    """Other statistics in a later round are refused, also after a restart from what was saved."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")
    second = _before_round(plan, members, 2)
    other = _with_sum(plan, second, "sum mean-radius", 1 << 20)
    study, _ = begin_prior(members["ahus"].hospital, plan)
    study.train(Asked(round=2, stage=Stage.NEWTON), second)
    restarted, _ = begin_prior(members["ahus"].hospital, plan)
    restarted.restore(study.saved())

    for one in (study, restarted):
        one.train(Asked(round=2, stage=Stage.NEWTON), second)
        with pytest.raises(MalformedMessage, match="announced before"):
            one.train(Asked(round=3, stage=Stage.NEWTON), other)


def test_few_rows_of_others_answer_few_rounds(tmp_path: Path) -> None:
    """With too few rows of other sites for the numbers that were announced, a site answers no further round."""
    plan = prior_plan("breast-cancer", rows_per_unknown=30.0)
    members = members_of(tmp_path, plan, "breast-cancer")

    with pytest.raises(MayNotSend):
        federate(plan, members)


def test_a_restarted_site_sends_the_same_numbers(tmp_path: Path) -> None:
    """The numbers sent in a round follow only from the announced sums and the rows, to the bit."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")
    third = _before_round(plan, members, 3)
    asked = Asked(round=3, stage=Stage.NEWTON)
    fresh, _ = begin_prior(members["cluj"].hospital, plan)
    older, _ = begin_prior(members["cluj"].hospital, plan)
    older.train(Asked(round=2, stage=Stage.NEWTON), _before_round(plan, members, 2))

    assert fresh.train(asked, third).scalars == older.train(asked, third).scalars


def test_a_column_that_is_void_at_one_site_is_left_out_by_all(tmp_path: Path) -> None:
    """A column that is rare at one site gets no coefficient, and its sums in the first round are random."""
    plan = prior_plan("breast-cancer")
    members = members_of(tmp_path, plan, "breast-cancer")
    members["ahus"].study._rare = {0}

    federate(plan, members)

    known = members["cluj"].study.known_by_others()
    assert list(np.flatnonzero(~known.standard.is_used)) == [0]
    assert known.joint[0, 0] == 0.0
    assert (known.joint[0, 1:] != 0.0).all()


def test_shuffled_outcomes_fail_the_guard(tmp_path: Path) -> None:
    """If outcomes are assigned at random at every site, the guard is about 0. It is at most two hundredths of the
    honest 149."""
    guards = []
    for seed in range(3):
        plan = prior_plan("breast-cancer")
        members = members_of(tmp_path / str(seed), plan, "breast-cancer")
        for number, site in enumerate(SITES):
            outcomes = members[site].study.outcomes
            np.random.default_rng([seed, number]).shuffle(outcomes)
        federate(plan, members)
        guards.append(members["ahus"].study.known_by_others().guard)

    assert np.mean(guards) < 0
    assert max(guards) < 3
