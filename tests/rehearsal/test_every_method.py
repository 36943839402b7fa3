"""The whole catalogue over the wire: real programs, real TLS, masked, one study after another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from protos.plan.methods import NETWORK_METHODS
from quickstart.federation import Rehearsal, prepare
from quickstart.hospitals import uci_hospitals
from quickstart.programs import run_to_the_end


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_method_of_the_catalogue_runs_masked_to_its_end(tmp_path: Path) -> None:
    """Each method, named in a plan, is trained by four hospitals, and each hospital gets its report."""
    hospitals = uci_hospitals(tmp_path)
    rehearsal = Rehearsal(
        folder=tmp_path, hospitals=hospitals, methods=NETWORK_METHODS, rounds=2, seed=0, is_masked=True, latent=8
    )
    prepare(rehearsal)
    for hospital in hospitals:
        _compare_with_training_alone_only(tmp_path / hospital.name / "hospital.yaml")

    run_to_the_end(rehearsal, Console(quiet=True))

    records = [json.loads(path.read_text()) for path in tmp_path.glob("coordinator/runs/*/record.json")]
    reports = {
        hospital.name: [
            json.loads(path.read_text()) for path in (tmp_path / hospital.name).glob("state/reports/*.json")
        ]
        for hospital in hospitals
    }
    assert {record["method"] for record in records} == set(NETWORK_METHODS)
    assert all(record["is_complete"] and record["masked"] for record in records)
    for found in reports.values():
        assert {report["method"] for report in found} == set(NETWORK_METHODS)
        assert all(report["federated"]["metrics"]["auroc"] is not None for report in found)


def _compare_with_training_alone_only(config: Path) -> None:
    """Forests and boosting for each of so many studies would be most of the time."""
    document = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(document | {"training": {"simple_models": False}}))
