"""An export for a hospital: a folder whose loader predicts as `predict` does."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ConfigurationError, UsageError
from site_agent.desk.export.export_folder import export_model
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with, make_prior_report
from site_agent.desk.results.saved_model import SavedModel
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.prior.concept_columns import ConceptEncoding
from tests.site_agent.desk.export.test_parity import check
from tests.site_agent.trainer.after_a_run import site_after_run
from tests.site_agent.trainer.prior.prior_federation import federate, heart_members, members_of, prior_plan
from tests.site_agent.trainer.sites import SMALL, make_plan, make_site


def test_the_folder_answers_as_predictions_do(tmp_path: Path) -> None:
    """For rows as text, abstentions included; ONNX agrees, and nothing is written over."""
    pytest.importorskip("onnxruntime")
    plan = make_plan(architecture=SMALL)
    hospital = site_after_run(tmp_path / "site", table="wine", plan=plan, siloed_baseline=False)
    own = Path(hospital.data.table)

    made = export_model(hospital, tmp_path / "exported", None)
    predict_table(hospital, own, tmp_path / "out.csv", None)

    loaded = runpy.run_path(str(tmp_path / "exported" / "loader.py"))["load"](tmp_path / "exported")
    answers = loaded.predict(list(csv.DictReader(own.read_text().splitlines())))
    lines = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))[1:]
    assert made.difference <= made.tolerance
    for answer, line in zip(answers, lines, strict=True):
        assert (answer is None) == bool(line[-1])
        if answer is not None:
            assert answer == pytest.approx([float(cell) for cell in line[1:4]], abs=made.tolerance)
    with pytest.raises(UsageError, match="in use"):
        export_model(hospital, tmp_path / "exported", None)


OWN = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, columns, outputs):
        super().__init__()
        self.entry = nn.Linear(columns, 4)
        self.normalisation = nn.BatchNorm1d(4)
        self.shared = nn.Linear(4, 4)
        self.exit = nn.Linear(4, outputs)

    def forward(self, rows):
        hidden = torch.nn.functional.gelu(self.shared(self.normalisation(self.entry(rows))))
        return self.exit(hidden{more})


def build(columns, outputs):
    return Own(columns, outputs)
"""
LISTED = {
    "name": "named-tensors",
    "tensors": [
        {"name": "shared.weight", "shape": [4, 4], "bound": 0.5},
        {"name": "shared.bias", "shape": [4], "bound": 0.5, "frozen": True},
    ],
}
# What torch can follow, and what it cannot.
PLAIN, BY_VALUES = "", " * (-1 if rows[0, 0] > 0 else 1)"


def _site_with_own_network(folder: Path, more: str) -> Hospital:
    folder.mkdir()
    (folder / "own.py").write_text(OWN.replace("{more}", more))
    (folder / "own.py").chmod(0o600)
    plan = make_plan(architecture=LISTED)
    return site_after_run(folder, plan=plan, siloed_baseline=False, user_module="own.py")


def test_a_hospitals_own_network_is_exported_without_its_file(tmp_path: Path) -> None:
    """The export answers as predictions do, and has none of the hospital's code."""
    pytest.importorskip("onnxruntime")
    hospital = _site_with_own_network(tmp_path / "site", PLAIN)
    own, folder = Path(hospital.data.table), tmp_path / "exported"

    made = export_model(hospital, folder, None)
    predict_table(hospital, own, tmp_path / "out.csv", None)
    loaded = runpy.run_path(str(folder / "loader.py"))["load"](folder)
    answers = loaded.predict(list(csv.DictReader(own.read_text().splitlines())))
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))

    assert made.difference <= made.tolerance
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.json", "loader.py"}
    for answer, line in zip(answers, lines, strict=True):
        assert (answer is None) == bool(line["abstained_because"])
        assert answer is None or answer == pytest.approx(float(line["probability"]), abs=made.tolerance)


def test_a_network_that_onnx_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Torch cannot follow code that decides by values, and no file is written."""
    pytest.importorskip("onnxruntime")
    hospital = _site_with_own_network(tmp_path / "site", BY_VALUES)

    with pytest.raises(ConfigurationError):
        export_model(hospital, tmp_path / "refused", None)

    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_an_export_without_its_packages_is_refused_at_once(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three sentences name the extra, before a model is read and without a file."""
    monkeypatch.setitem(sys.modules, package, None)
    hospital = read_hospital(make_site(tmp_path))

    with pytest.raises(ConfigurationError) as refused:
        export_model(hospital, tmp_path / "refused", None)

    assert "'.[onnx]'" in refused.value.remedy
    assert not (tmp_path / "refused").exists()


def test_a_run_ends_in_all_that_other_methods_give(tmp_path: Path) -> None:
    """Report page, loader, ONNX and predictions work on a site's saved model, and agree."""
    pytest.importorskip("onnxruntime")
    plan = prior_plan("wine")
    members = members_of(tmp_path, plan, "wine")
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
