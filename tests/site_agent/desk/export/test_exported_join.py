"""federated-prior's model as saved, exported with its loader and as ONNX is one model, for every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from site_agent.desk.export.export_folder import export_model
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with, make_prior_report
from site_agent.desk.results.saved_model import SavedModel
from site_agent.trainer.prior.concept_columns import ConceptEncoding
from tests.site_agent.desk.export.test_parity import check
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

    exported = export_model(member.hospital, tmp_path / "export", plan.run_name)
    predicted = predict_table(
        member.hospital, tmp_path / "ahus" / "table.csv", tmp_path / "predictions.csv", plan.run_name
    )
    facts: Any = site_facts(member.hospital, plan.run_name)

    assert exported.difference <= exported.tolerance
    assert predicted.rows > 40
    assert "The model is a weighted mean of three models: your regression" in report_page(facts)


@pytest.mark.parametrize("site", ["cleveland", "switzerland"])
def test_codes_and_absent_columns_are_written_down(site: str) -> None:
    """With codes, missing values and a concept that a clinic lacks, the module says what the model says."""
    plan, members = heart_members()
    federate(plan, members)
    study, preprocessing = members[site].study, members[site].preprocessing
    known = study.known_by_others()
    names = tuple(column.name for column in study.prior.columns)
    saved = SavedModel(
        plan=plan,
        preprocessing=preprocessing,
        values={},
        report=None,
        joined=joined_with(study, known, preprocessing, fit_own_models(study.own, 1)).model,
        concepts=ConceptEncoding.of(names, known.mapped, known.standard),
        profile=study.own.profile,
    )
    check(saved)
