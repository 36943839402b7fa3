"""FedAvg on concepts over the wire: real programs at four heart clinics, masked and in the clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import uci_hospitals
from quickstart.plans import plan_of, studies_of
from quickstart.programs import run_to_the_end

OF_COLUMNS = ("columns", "partly_recorded", "unused_columns")


def _on_concepts(rehearsal: Rehearsal) -> None:
    """Replace the plan's list of columns by the concepts, and approve it."""
    (plan,) = rehearsal.folder.glob("plan-*.yaml")
    (study,) = studies_of(["federated-prior"])
    concepts = plan_of(study, rehearsal.hospitals, latent=8, is_masked=True)["concepts"]
    written = {key: value for key, value in yaml.safe_load(plan.read_text()).items() if key not in OF_COLUMNS}
    plan.write_text(yaml.safe_dump(written | {"concepts": concepts}))
    for hospital in rehearsal.hospitals:
        config = rehearsal.folder / hospital.name / "hospital.yaml"
        training = {"training": {"simple_models": False, "siloed_baseline": False, "draws": "published"}}
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | training))
        reviewed = command("site-agent", "review", "--config", config, "--plan", plan)
        assert "The network reads" in reviewed
        command("site-agent", "approve", "--config", config, "--plan", plan, "--by", "A. Jones", "--yes")


def _run(folder: Path, *, is_masked: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A whole run: the coordinator's record and each clinic's report."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    rehearsal = Rehearsal(
        folder=folder, hospitals=uci_hospitals(tables), methods=("fedavg",), rounds=6, seed=0, is_masked=is_masked
    )
    prepare(rehearsal)
    _on_concepts(rehearsal)
    checked = command("coordinator", "check", "--config", folder / "coordinator.yaml")
    assert "fedavg" in checked

    run_to_the_end(rehearsal, Console(quiet=True))

    (record,) = folder.glob("coordinator/runs/*/record.json")
    reports = {
        hospital.name: json.loads(next((folder / hospital.name).glob("state/reports/*.json")).read_text())
        for hospital in rehearsal.hospitals
    }
    return json.loads(record.read_text()), reports


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_masks_change_no_bit_of_a_network_on_concepts(tmp_path: Path) -> None:
    """Without a typed list of columns four clinics train one network, the same to the bit with masks and without."""
    masked, reports = _run(tmp_path / "masked", is_masked=True)
    clear, others = _run(tmp_path / "clear", is_masked=False)

    assert masked["is_complete"]
    assert masked["masked"]
    assert not clear["masked"]
    assert masked["shared_parameters_sha256"] == clear["shared_parameters_sha256"]
    for name, report in reports.items():
        assert report["federated"]["metrics"] == others[name]["federated"]["metrics"]
    assert reports["cleveland"]["federated"]["metrics"]["auroc"] > 0.8
