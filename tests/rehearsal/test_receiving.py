"""A hospital without any outcome, over the wire: real programs, masks, four clinics contribute and one receives."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from quickstart import federation
from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import HospitalData, uci_hospitals
from quickstart.programs import run_to_the_end
from site_agent.state_folders import gate_store_path
from tests.logged import lines_of

RECEIVER = "long-beach"


def _hospitals_with_a_receiver(folder: Path) -> list[HospitalData]:
    four = uci_hospitals(folder)
    va = next(one for one in four if one.name == "va")
    lines = va.table.read_text().splitlines()
    va.table.write_text("\n".join(lines[::2]) + "\n")
    (folder / "known-later.data").write_text("\n".join(lines[1::2]) + "\n")
    table, contract = folder / f"{RECEIVER}.data", folder / f"{RECEIVER}.contract.yaml"
    table.write_text("\n".join(line.rpartition(",")[0] for line in lines[1::2]) + "\n")
    shutil.copyfile(va.contract, contract)
    return [*four, HospitalData(RECEIVER, table, contract)]


def _plan_with_a_receiver(rehearsal: Rehearsal, study: Any, identities: dict[str, str]) -> dict[str, Any]:
    four = [one for one in rehearsal.hospitals if one.name != RECEIVER]
    plan = federation.plan_of(study, four, latent=8, is_masked=True)
    sites = [{"name": name, "identity": identity} for name, identity in sorted(identities.items())]
    for site in sites:
        site |= {"tier": "receiving"} if site["name"] == RECEIVER else {}
    return plan | {"sites": sites, "timing": {"contribute_seconds": 120.0}}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hospital_without_outcomes_receives_a_model_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the coefficients of the four others, and predicts and exports with them."""
    tables = tmp_path / "tables"
    tables.mkdir()
    monkeypatch.setattr(federation, "_plan", _plan_with_a_receiver)
    rehearsal = Rehearsal(
        folder=tmp_path,
        hospitals=_hospitals_with_a_receiver(tables),
        methods=("federated-prior",),
        rounds=2,
        seed=0,
        is_masked=True,
    )
    prepare(rehearsal)
    for hospital in rehearsal.hospitals:
        config = tmp_path / hospital.name / "hospital.yaml"
        content = yaml.safe_load(config.read_text()) | {"training": {"simple_models": False}}
        if hospital.name == RECEIVER:
            content["policy"] |= {"tier": "receiving"}
        config.write_text(yaml.safe_dump(content))

    run_to_the_end(rehearsal, Console(quiet=True))

    home, config = tmp_path / RECEIVER, tmp_path / RECEIVER / "hospital.yaml"
    (record_path,) = tmp_path.glob("coordinator/runs/*/record.json")
    fitted = load_file(record_path.parent / "parameters.safetensors")
    report = json.loads(next(home.glob("state/reports/*.json")).read_text())
    kinds = [json.loads(line)["facts"]["event"] for line in lines_of(gate_store_path(home / "state"))]
    assert json.loads(record_path.read_text())["is_complete"]
    assert "run_finished" in kinds
    assert "contribution_released" not in kinds
    slopes = [one["all_sites"] for one in report["receiving"]["coefficients"]]
    np.testing.assert_allclose(slopes, fitted["coefficients"][0], rtol=1e-6)

    reviewed = command("site-agent", "review", "--config", config)
    said = command("site-agent", "report", "--config", config)
    predicted, exported = tmp_path / "predicted.csv", tmp_path / "exported"
    command("site-agent", "predict", "--input", tables / f"{RECEIVER}.data", "--config", config, "--output", predicted)
    command("site-agent", "export", "--config", config, "--output", exported)

    assert "This site sends no number" in reviewed
    assert "only received" in said
    assert (exported / "model.onnx").exists()
    with predicted.open() as file:
        rows = list(csv.DictReader(file))
    sick = np.array([line.rpartition(",")[2] != "0" for line in (tables / "known-later.data").read_text().splitlines()])
    scores = np.array([float(row["probability"] or "nan") for row in rows])
    there = ~np.isnan(scores)
    assert there.mean() > 0.9
    assert roc_auc_score(sick[there], scores[there]) > 0.6
