"""federated-prior's model as saved, exported with its loader and as ONNX is one model, for every task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protos.errors import ConfigurationError
from site_agent.desk.applied import AppliedModel
from site_agent.desk.export.export_folder import LARGEST_DIFFERENCE, answers, description_of, export_model, loader_of
from site_agent.desk.export.graph import Graph
from site_agent.desk.export.onnx_inputs import made_up_values
from site_agent.desk.export.onnx_model import onnx_bytes, run_onnx
from site_agent.desk.export.written import written_down
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with, make_prior_report
from site_agent.desk.results.saved_model import SavedModel
from site_agent.hospital import Training
from site_agent.trainer.prior.concept_inputs import ConceptEncoding
from tests.site_agent.trainer.prior.prior_federation import federate, heart_members, members_of, prior_plan


@pytest.mark.parametrize("table", ["breast-cancer", "wine", "diabetes"])
def test_a_run_ends_in_all_that_other_methods_give(tmp_path: Path, table: Any) -> None:
    """Report page, card, loader, ONNX and predictions work on a site's saved model, and agree."""
    pytest.importorskip("onnxruntime")
    plan = prior_plan(table)
    members = members_of(tmp_path, plan, table)
    federate(plan, members)
    member = members["ahus"]
    make_prior_report(member.hospital, member.study, member.preprocessing, plan.run_name)

    exported = export_model(member.hospital, tmp_path / "export", plan.run_name, has_onnx=True)
    predicted = predict_table(
        member.hospital, tmp_path / "ahus" / "table.csv", tmp_path / "predictions.csv", plan.run_name
    )
    facts: Any = site_facts(member.hospital, plan.run_name)

    assert max(exported.loader_difference, exported.onnx_difference or 0.0) <= LARGEST_DIFFERENCE
    assert predicted.rows > 40
    assert {one["feature"] for one in facts["importance"]} >= set(facts["columns"])
    assert "The model is a weighted mean of three models: your regression" in report_page(facts)


@pytest.mark.parametrize("site", ["cleveland", "switzerland"])
def test_codes_and_absent_columns_are_written_down(site: str) -> None:
    """With codes, missing values and a concept that a clinic lacks, loader and ONNX say what the model says."""
    pytest.importorskip("onnxruntime")
    plan, members = heart_members()
    federate(plan, members)
    study, preprocessing = members[site].study, members[site].preprocessing
    known = study.known_by_others()
    names = tuple(column.name for column in study.prior.columns)
    model = SavedModel(
        plan=plan,
        preprocessing=preprocessing,
        values={},
        report=None,
        joined=joined_with(study, known, preprocessing, fit_own_models(study.own, 1)).model,
        concepts=ConceptEncoding.of(names, known.mapped, known.standard),
        profile=study.own.profile,
    )
    applied = AppliedModel(model, "run", Training())
    values = made_up_values(preprocessing.contract, model.profile, 200, 1)
    graph = written_down(model, None)

    said = answers(applied, values, None)
    loaded = loader_of(description_of(model, graph, "run"), graph, None).scores(torch.from_numpy(values)).numpy()
    by_onnx = run_onnx(onnx_bytes(graph, values.shape[1], 1), values)

    assert said.std() > 0.03
    np.testing.assert_allclose(loaded[:, 0], said, rtol=0, atol=LARGEST_DIFFERENCE)
    np.testing.assert_allclose(by_onnx[:, 0], said, rtol=0, atol=LARGEST_DIFFERENCE)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_an_onnx_library_the_error_shows_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project is on no public index, so the command installs from a copy of the repository."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigurationError, match=rf"The package {package} is not installed") as refused:
        run_onnx(onnx_bytes(Graph(), 1, 1), np.zeros((1, 1)))

    command = f"{sys.executable} -m pip install --constraint constraints.txt '.[onnx]'"
    assert refused.value.remedy.startswith("Export without --onnx.")
    assert refused.value.remedy.endswith(f"In a copy of the repository, run: {command}")
