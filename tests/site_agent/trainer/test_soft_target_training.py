"""The baseline in a study: the network's input from it, its effect, and no sent byte of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protos.errors import ConfigurationError
from protos.plan.methods import NETWORK_METHODS
from site_agent.desk.comparison.evaluation import scores_of
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.network_baselines import train_alone, train_placebo
from site_agent.desk.results.run_report import make_report
from site_agent.trainer import baselines
from site_agent.trainer.checkpoints import load, save
from site_agent.trainer.data.splits import split_rows
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.probabilities import probabilities
from site_agent.trainer.site_training import rows_of
from site_agent.trainer.soft_target_training import joined
from site_agent.trainer.study import Asked
from tests.for_each import in_turns, some
from tests.protos.examples import COMPANIONS, plan_of_method
from tests.site_agent.trainer.sites import (
    SMALL,
    Table,
    conclude,
    fingerprint,
    first_values,
    make_plan,
    make_site,
    make_study,
    prepare,
    run_rounds,
)

WITH_PATH = SMALL | {"linear_path": True}
TABLES: tuple[Table, ...] = ("breast-cancer", "wine", "diabetes")


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws do not depend on how many trees there are."""
    monkeypatch.setattr(baselines, "TREES", 20)
    monkeypatch.setattr(baselines, "_TREES_IN_A_FOLD", 10)


def plan_with_baseline(**use: float) -> Any:
    """A small plan whose network has a linear path."""
    return make_plan(architecture=WITH_PATH, expert=use)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_targets_are_label_and_opinion_at_their_shares(tmp_path: Path, table: Table, share: float) -> None:
    """Probabilities of the class that happened and of what the baseline says out of fold; a number likewise."""
    study = make_study(make_site(tmp_path, table=table), plan_with_baseline(target_share=share))
    assert study.soft_targets is not None
    said = study.soft_targets.fitted.out_of_fold

    heard = rows_of(study.dataset, study.soft_targets)

    labels, task = study.dataset.training.targets, study.dataset.task
    truth = np.eye(3)[labels] if task == "multi-class" else labels
    expected = (1 - share) * truth + share * probabilities(task, said)
    if share == 0.0 and task == "multi-class":
        np.testing.assert_array_equal(heard.training.targets.numpy(), labels)
    else:
        np.testing.assert_allclose(heard.training.targets.numpy(), expected, rtol=1e-5, atol=1e-6)
    for plain, part in ((study.dataset.validation, heard.validation), (study.dataset.test, heard.test)):
        np.testing.assert_array_equal(part.targets.numpy(), plain.targets.astype(part.targets.numpy().dtype))


@pytest.mark.parametrize("table", TABLES)
def test_the_network_reads_opinions_out_of_fold_in_training_and_others_elsewhere(tmp_path: Path, table: Table) -> None:
    """As its last columns, one for each output; the site's own columns stay as they are."""
    study = make_study(make_site(tmp_path, table=table), plan_with_baseline())
    assert study.soft_targets is not None
    fitted, outputs = study.soft_targets.fitted, study.dataset.outputs

    heard = rows_of(study.dataset, study.soft_targets)

    own = (study.dataset.training, study.dataset.validation, study.dataset.test)
    said = (fitted.out_of_fold, *(fitted.baseline.predictions(part.features) for part in own[1:]))
    for part, plain, predictions in zip((heard.training, heard.validation, heard.test), own, said, strict=True):
        np.testing.assert_array_equal(part.features[:, :-outputs].numpy(), plain.features)
        np.testing.assert_array_equal(part.features[:, -outputs:].numpy(), predictions.astype(np.float32))


@pytest.mark.parametrize(("table", "start"), in_turns(TABLES, [0.5, 1.5]))
def test_the_path_begins_with_the_baselines_weight_alone(tmp_path: Path, table: Table, start: float) -> None:
    """Every other weight of it begins at 0, so the first network is the plain one plus a share of the baseline."""
    study = make_study(make_site(tmp_path, table=table), plan_with_baseline(path_start=start))

    weight = study._training.flat.network.get_parameter("unique.path.weight").detach()

    outputs = study.dataset.outputs
    assert weight.shape == (outputs, len(study.dataset.columns) + outputs)
    torch.testing.assert_close(weight[:, -outputs:], start * torch.eye(outputs))
    assert not weight[:, :-outputs].any()


@pytest.mark.parametrize("table", TABLES)
def test_the_result_is_network_and_baseline_at_their_shares(tmp_path: Path, table: Table) -> None:
    """On the scale of logits; with a share of 0 the same network decides alone."""
    config = make_site(tmp_path, table=table)
    outcomes = []
    for share in (0.0, 0.25):
        plan = plan_with_baseline(result_share=share)
        study = make_study(config, plan)
        outcomes.append(conclude(study, run_rounds(plan, [study])))
        assert study.soft_targets is not None

    alone, both = outcomes

    assert {name: value.tobytes() for name, value in alone.values.items()} == {
        name: value.tobytes() for name, value in both.values.items()
    }
    np.testing.assert_allclose(both.test_outputs, 0.75 * alone.test_outputs + 0.25 * study.soft_targets.test, rtol=1e-5)
    assert both.choice == alone.choice


@pytest.mark.parametrize(("table", "path_start"), in_turns(TABLES, [0.0, 0.5]))
def test_a_saved_model_asks_its_baseline(tmp_path: Path, table: Table, path_start: float) -> None:
    """The site's own test rows, predicted from a table, get the scores that its report rests on, or abstain."""
    # Rows that abstain are left out before the network, and float32 products depend on their number in the last bits.
    plan = plan_with_baseline(path_start=path_start)
    hospital, study, preprocessing = prepare(make_site(tmp_path, table=table), plan)
    outcome = conclude(study, run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, "law-1")
    header, *rows = (tmp_path / "table.csv").read_text().splitlines()
    table_read = read_table(tmp_path / "table.csv", preprocessing.contract)
    tested = split_rows(table_read, hospital.data.split).test
    new = tmp_path / "new.csv"
    new.write_text("\n".join([header, *(rows[row] for row in tested)]))

    predict_table(hospital, new, tmp_path / "out.csv", "law-1")

    scores = scores_of(preprocessing, outcome.test_outputs).reshape(len(tested), -1)
    with (tmp_path / "out.csv").open(newline="") as file:
        predicted = [row[1 : 1 + scores.shape[1]] for row in list(csv.reader(file))[1:]]
    told = [number for number, row in enumerate(predicted) if all(row)]
    assert len(told) > len(predicted) / 2
    said = np.array([predicted[number] for number in told], dtype=np.float64)
    np.testing.assert_allclose(said, scores[told], rtol=1e-5, atol=1e-6)


def test_the_report_shows_the_baseline(tmp_path: Path) -> None:
    """Its figures are beside the simple models', with the shares of its two models."""
    plan = plan_with_baseline()
    hospital, study, preprocessing = prepare(make_site(tmp_path), plan)
    conclude(study, run_rounds(plan, [study]))

    make_report(hospital, study, preprocessing, "law-1")

    written = json.loads((hospital.state_path / "reports" / "law-1.json").read_text())
    assert 0.0 <= written["expert"]["forest_share"] <= 1.0
    assert written["expert"]["out_of_fold_loss"].keys() == {"linear", "forest"}
    assert written["simple_models"]["expert"]["metrics"]["auroc"] is not None


def test_without_a_plan_for_it_nothing_is_said_of_a_baseline(tmp_path: Path) -> None:
    """Neither in the report nor in the saved model."""
    plan = make_plan()
    hospital, study, preprocessing = prepare(make_site(tmp_path), plan)
    conclude(study, run_rounds(plan, [study]))

    make_report(hospital, study, preprocessing, "law-1")

    assert study.soft_targets is None
    assert "expert" not in (hospital.state_path / "reports" / "law-1.json").read_text()
    assert not [name for name in load(hospital.state_path / "models" / "law-1", "model").tensors if "expert" in name]


def test_a_saved_model_without_its_baseline_predicts_nothing(tmp_path: Path) -> None:
    """An incomplete model is no model: without one of its parts, or with a baseline that its plan does not have."""
    plan = plan_with_baseline()
    hospital, study, preprocessing = prepare(make_site(tmp_path), plan)
    conclude(study, run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, "law-1")
    models = hospital.state_path / "models"
    whole = load(models / "law-1", "model")
    lost = {name: array for name, array in whole.tensors.items() if name != "expert roots"}
    save(models / "law-2", "model", lost, whole.facts)
    facts = dict(whole.facts) | {"plan": make_plan().canonical.decode()}
    save(models / "law-3", "model", whole.tensors, facts)

    for run in ("law-2", "law-3"):
        with pytest.raises(ConfigurationError, match="another version"):
            predict_table(hospital, _copy(tmp_path), tmp_path / "out.csv", run)


@pytest.mark.parametrize("table", TABLES)
def test_the_baselines_hear_the_same_baseline(tmp_path: Path, table: Table) -> None:
    """Method local is the network trained alone to the bit, and the placebo fits no baseline of its own."""
    plan = make_plan(method={"name": "local"}, architecture=WITH_PATH, expert={})
    study = make_study(make_site(tmp_path, table=table), plan)
    federated = make_study(tmp_path / "hospital.yaml", plan_with_baseline())

    outcome, alone = conclude(study, run_rounds(plan, [study])), train_alone(study)

    assert alone is not None
    assert fingerprint(outcome) == fingerprint(alone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("site_agent.trainer.baselines.fit_baseline", lambda *_: pytest.fail("fitted again"))
        assert train_placebo(federated) is not None


@pytest.mark.parametrize("name", some(NETWORK_METHODS, 4))
def test_a_baseline_without_a_column_goes_with_every_method(tmp_path: Path, name: str) -> None:
    """The sent update has the same names, shapes and sizes as without a baseline.

    Its values differ, because it was taught.
    """
    keys = COMPANIONS.get(name, {}) | {"secure_aggregation": "off"}
    plans = [
        plan_of_method({"name": name}, **keys | {"columns": ["mean_radius"]} | more)
        if plan_of_method({"name": name}, **keys).columns
        else plan_of_method({"name": name}, **keys | more)
        for more in ({}, {"expert": {"path_start": 0.0}})
    ]
    config = make_site(tmp_path, columns=slice(0, 1) if plans[0].columns and name not in _SEE_MORE else slice(0, 4))

    studies = [make_study(config, plan) for plan in plans]

    assert studies[0].manifest == studies[1].manifest
    assert studies[0].networks.tensors == studies[1].networks.tensors


_SEE_MORE = ("chfl", "fenda-fl", "perfcl")


def test_changes_have_no_place_for_a_baseline(tmp_path: Path) -> None:
    """A round's update has exactly the shared layers' numbers, with a baseline as without."""
    config = make_site(tmp_path)
    updates = []
    for baseline in ({}, None):
        plan = make_plan(architecture=WITH_PATH, expert=baseline)
        study = make_study(config, plan)
        updates.append(study.train(Asked(round=0), first_values(plan, study)))

    taught, untaught = updates

    assert taught.updates.shape == untaught.updates.shape
    assert taught.scalars == untaught.scalars == ()
    assert (taught.updates != untaught.updates).any()


def test_a_study_with_its_soft_targets_does_not_fit_again(tmp_path: Path) -> None:
    """The same soft targets, the same bits, without the time."""
    plan = plan_with_baseline()
    _, study, _ = prepare(make_site(tmp_path), plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("site_agent.trainer.baselines.fit_baseline", lambda *_: pytest.fail("fitted again"))
        again = type(study)(plan, study.own, seeds=study.seeds, soft_targets=study.soft_targets)

    outcomes = [conclude(each, run_rounds(plan, [each])) for each in (study, again)]

    assert fingerprint(outcomes[0]) == fingerprint(outcomes[1])


def test_shares_join_in_single_precision() -> None:
    """A quarter of one and three quarters of the other, and the type that networks have."""
    network, said = np.array([[1.0], [2.0]], np.float32), np.array([[3.0], [-2.0]], np.float32)

    both = joined(network, said, 0.25)

    assert both.dtype == np.float32
    np.testing.assert_array_equal(both, np.array([[1.5], [1.0]], np.float32))


def _copy(folder: Path) -> Path:
    new = folder / "new.csv"
    new.write_bytes((folder / "table.csv").read_bytes())
    return new
