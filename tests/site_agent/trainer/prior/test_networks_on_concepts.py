"""Networks whose shared columns are the concepts of the plan: inputs, training, saved models and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.prior.prior_gain import CONCEPTS, plan_of_tables, split_of, uci_tables
from global_layers.one_process import run_rounds
from protos.plan.contributors import kinds_of
from protos.plan.plan import Plan, plan_from_json
from site_agent.desk.comparison.evaluation import scores_of
from site_agent.desk.export.export_folder import export_model
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.run_report import make_report
from site_agent.desk.results.saved_model import load_model
from site_agent.hospital import read_hospital
from site_agent.trainer.before_rounds import begin_study
from site_agent.trainer.data.columns import NumericFeature
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.prior.concept_columns import concept_inputs, read_columns, read_places
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.for_each import for_each, some
from tests.plan_changes import changed
from tests.site_agent.trainer.prior.prior_federation import SITES, concepts_of, make_hospital, prior_plan

LOGISTIC: dict[str, Any] = {"name": "dense", "hidden": []}
MLP: dict[str, Any] = {"name": "dense", "hidden": [8]}
NETWORKS: dict[str, dict[str, Any]] = {
    "fedavg": MLP,
    "fenda-fl": {"name": "parallel", "common": [4], "unique": [4]},
    "chfl": {"name": "columns", "hidden": [8, 4], "lateral": 0.5},
}


def network_plan(like: Plan, method: str, architecture: dict[str, Any], **changes: Any) -> Plan:
    """A plan of a network on the concepts of a plan with federated-prior, for its sites."""
    own = json.loads(like.canonical)
    content: dict[str, Any] = {key: own[key] for key in ("study", "version", "concepts", "sites")} | {
        "kind": "network", "method": {"name": method}, "architecture": architecture, "outputs": 1,
        "schedule": {"aggregate": "every-epoch", "epochs": 15, "batches_per_epoch": 4},
        "optimiser": {"name": "adamw", "learning_rate": 0.02}, "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 4}, "masking": {"required": False}, "checkpoint": "latest",
    }  # fmt: skip
    content = changed(content, changes)
    return plan_from_json(json.dumps({key: value for key, value in content.items() if value is not None}))


def heart_studies(method: str, architecture: dict[str, Any], *, split: int = 1, **changes: Any) -> dict[str, Study]:
    """The four UCI heart clinics, each with its study."""
    tables = uci_tables(CONCEPTS.parent)
    plan, studies = network_plan(plan_of_tables(tables, 3), method, architecture, **changes), {}
    for name, table in tables.items():
        rows = split_of(table, 0, split)
        own, _ = prepare_rows(table, rows)
        inputs = concept_inputs(plan, name, table, rows, own)
        studies[name] = Study(plan, own, seeds=Seeds.published(plan.seed, name), inputs=inputs)
    return studies


def _aurocs(studies: dict[str, Study]) -> dict[str, float]:
    return {
        name: float(roc_auc_score(study.own.test.targets, study.conclude().test_outputs[:, 0]))
        for name, study in studies.items()
    }


def _own_regression(own: Dataset) -> float:
    fitted = LogisticRegression(C=0.1, max_iter=500).fit(own.training.features, own.training.targets)
    return float(roc_auc_score(own.test.targets, fitted.decision_function(own.test.features)))


@for_each("split", range(3))
def test_fedavg_on_concepts_is_above_each_clinic_s_own_regression(split: int) -> None:
    """Without a typed list of columns four clinics rank heart patients better than each does alone, in the mean."""
    studies = heart_studies("fedavg", LOGISTIC, split=split)

    run_rounds(next(iter(studies.values())).plan, studies)

    found = _aurocs(studies)
    assert np.mean(list(found.values())) > np.mean([_own_regression(study.own) for study in studies.values()])
    assert min(found["cleveland"], found["hungarian"]) > 0.8


@for_each("seed", range(5))
def test_a_concept_that_a_clinic_lacks_has_no_change_there(seed: int) -> None:
    """Switzerland records no cholesterol, so the weights of this column do not move there in a step."""
    schedule = {"aggregate": "every-round", "epochs": 1, "batches_per_epoch": 1}
    descent = {"name": "sgd", "learning_rate": 0.1}
    studies = heart_studies("fedavg", MLP, start={"seed": seed}, schedule=schedule, optimiser=descent)
    plan = studies["va"].plan
    column = plan.shared_columns.index("total-cholesterol")

    moved = {}
    for name, study in studies.items():
        changes = study.train(Asked(round=0), study.manifest.initial_parameters(seed)).updates
        moved[name] = np.abs(study.manifest.views(changes)["input.layer1.weight"][:, column]).max()

    assert moved["switzerland"] == 0.0
    assert min(moved["cleveland"], moved["hungarian"], moved["va"]) > 0.0
    assert kinds_of(plan)["column total-cholesterol"] == {"cleveland", "hungarian", "va"}


def test_units_are_converted_before_the_network_reads_them(tmp_path: Path) -> None:
    """A column in another unit, with the conversion that the plan declares, gives the network the same inputs."""

    def in_other_unit(contract: dict[str, Any]) -> None:
        contract["columns"][0]["unit"] = "m"

    def in_own_unit(contract: dict[str, Any]) -> None:
        contract["columns"][0]["unit"] = "cm"

    concepts = concepts_of("breast-cancer")
    concepts[0] |= {"unit": "cm", "conversions": [{"unit": "m", "factor": 100.0}]}
    plan = network_plan(prior_plan("breast-cancer", concepts=concepts), "fedavg", MLP)
    in_cm, in_m = (
        read_hospital(make_hospital(tmp_path / unit, "ahus", "breast-cancer", change=change))
        for unit, change in (("cm", in_own_unit), ("m", in_other_unit))
    )
    table = tmp_path / "m" / "table.csv"
    head, *lines = table.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    table.write_text("\n".join([head, *(",".join([repr(float(one) / 100), *more]) for one, *more in cells)]) + "\n")

    wanted, found = (begin_study(hospital, plan, hospital.state_path)[0].dataset for hospital in (in_cm, in_m))

    np.testing.assert_allclose(found.training.features, wanted.training.features, rtol=1e-5, atol=1e-6)
    assert np.abs(wanted.training.features[:, 0]).max() > 0.5


@pytest.mark.parametrize("method", some(NETWORKS, 3))
def test_a_run_ends_in_models_that_predict_and_are_exported(tmp_path: Path, method: str) -> None:
    """The saved models give the same predictions of the test rows as training; ONNX agrees with the model."""
    pytest.importorskip("onnxruntime")
    outputs = None if method == "fenda-fl" else 1
    plan = network_plan(prior_plan("breast-cancer"), method, NETWORKS[method], outputs=outputs)
    hospitals = {site: read_hospital(make_hospital(tmp_path / site, site, "breast-cancer")) for site in SITES}
    studies = {site: begin_study(hospital, plan, hospital.state_path) for site, hospital in hospitals.items()}
    run_rounds(plan, {site: study for site, (study, _) in studies.items()})
    hospital, (study, preprocessing) = hospitals["ahus"], studies["ahus"]
    report: Any = make_report(hospital, study, preprocessing, plan.run_name)

    exported = export_model(hospital, tmp_path / "export", plan.run_name)
    predicted = predict_table(hospital, tmp_path / "ahus" / "table.csv", tmp_path / "said.csv", plan.run_name)
    facts: Any = site_facts(hospital.state_path, plan.run_name)

    saved = load_model(hospital.state_path, plan.run_name)
    assert saved.columns[: len(plan.concepts)] == plan.shared_columns
    assert saved.columns == study.dataset.columns
    assert exported.difference <= exported.tolerance
    cells = [line.split(",")[1] for line in (tmp_path / "said.csv").read_text().splitlines()[1:]]
    said = np.array([float(cell) for cell in cells if cell])
    wanted = scores_of(preprocessing, study.conclude().test_outputs)
    assert predicted.rows - predicted.abstained == len(said) > len(wanted)
    assert np.mean([np.abs(said - one).min() < 1e-6 for one in wanted]) > 0.9  # a few rows are left out
    assert report["siloed"]["metrics"]["auroc"] > 0.8
    assert "AUROC" in report_page(facts)


def test_only_a_network_with_columns_of_a_site_s_own_reads_columns_beside_concepts() -> None:
    """A parallel network reads a column without a concept behind the concepts; a dense network does not."""
    tables = uci_tables(CONCEPTS.parent)
    contract = tables["va"].contract
    weight = NumericFeature(name="weight", role="feature", type="numeric", missing="median-and-flag")
    contract = contract.model_copy(update={"columns": (weight, *contract.columns)})
    like = plan_of_tables(tables, 3)
    plans = {
        "fedavg": network_plan(like, "fedavg", MLP),
        "fenda-fl": network_plan(like, "fenda-fl", NETWORKS["fenda-fl"], outputs=None),
    }

    dense, parallel = (read_columns(plan, contract) for plan in plans.values())

    shared = len(dense)
    assert parallel[shared : shared + 2] == ("weight", "weight is missing")
    places = read_places(plans["fenda-fl"], contract)
    assert tuple(contract.encoded_columns[place] for place in places[shared:]) == parallel[shared:]
    assert not any("weight" in name for name in dense)
