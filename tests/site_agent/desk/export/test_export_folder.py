"""An export for a hospital: a folder whose model predicts as `predict` does, from the inputs that model.json names."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import ConfigurationError, UsageError
from site_agent.desk.export.export_folder import export_model, run_onnx
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.joining_models import fit_own_models
from site_agent.desk.results.prior_report import joined_with, make_prior_report
from site_agent.desk.results.saved_model import SavedModel
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.prior.concept_columns import ConceptEncoding
from tests.site_agent.desk.export.test_parity import check
from tests.site_agent.trainer.prior.prior_federation import federate, heart_members, members_of, prior_plan
from tests.site_agent.trainer.sites import SMALL, make_plan, make_site, site_after_run


def answered(folder: Path, table: Path, predicted: Path) -> tuple[Any, list[dict[str, str]]]:
    """What an export answers for the rows of a table of numbers that `predict` answered, and what `predict` wrote."""
    told = json.loads((folder / "model.json").read_text())
    rows, lines = (list(csv.DictReader(path.read_text().splitlines())) for path in (table, predicted))
    pairs = [(row, line) for row, line in zip(rows, lines, strict=True) if not line["abstained_because"]]
    values = np.array([[float(row[one["name"]]) for one in told["inputs"]] for row, _ in pairs])
    return run_onnx((folder / "model.onnx").read_bytes(), values), [line for _, line in pairs]


def test_the_folder_answers_as_predictions_do(tmp_path: Path) -> None:
    """ONNX agrees for each row with a prediction, from inputs in the order of model.json. Nothing is written over."""
    pytest.importorskip("onnxruntime")
    plan = make_plan(architecture=SMALL)
    hospital = site_after_run(tmp_path / "site", table="wine", plan=plan, siloed_baseline=False)
    own = Path(hospital.data.table)

    made = export_model(hospital, tmp_path / "exported", None)
    predict_table(hospital, own, tmp_path / "out.csv", None)

    answers, lines = answered(tmp_path / "exported", own, tmp_path / "out.csv")
    assert made.difference <= made.tolerance
    assert len(lines) > 50
    for answer, line in zip(answers, lines, strict=True):
        cells = [float(cell) for name, cell in line.items() if name.startswith("probability")]
        assert answer == pytest.approx(cells, abs=made.tolerance)
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
    answers, lines = answered(folder, own, tmp_path / "out.csv")

    assert made.difference <= made.tolerance
    assert {path.name for path in folder.iterdir()} == {"model.onnx", "model.json"}
    assert answers[:, 0] == pytest.approx([float(line["probability"]) for line in lines], abs=made.tolerance)


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
    """Report page, ONNX and predictions work on a site's saved model, and agree."""
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
    facts: Any = site_facts(member.hospital.state_path, plan.run_name)

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
        joined=joined_with(study, known, preprocessing, fit_own_models(study.own, 1)).model,
        concepts=ConceptEncoding.of(names, known.mapped, known.standard),
        profile=study.own.profile,
    )
    check(saved)
