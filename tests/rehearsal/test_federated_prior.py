"""federated-prior over the wire: real programs at four heart clinics, masked and in the clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import load_file

from quickstart.federation import Rehearsal, prepare
from quickstart.hospitals import uci_hospitals
from quickstart.programs import run_to_the_end


def _run(folder: Path, *, is_masked: bool) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """A whole run: the coordinator's record, each clinic's report, and the coordinator's folder of the run."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    hospitals = uci_hospitals(tables)
    rehearsal = Rehearsal(
        folder=folder, hospitals=hospitals, methods=("federated-prior",), rounds=2, seed=0, is_masked=is_masked
    )
    prepare(rehearsal)
    for hospital in hospitals:
        config = folder / hospital.name / "hospital.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"training": {"simple_models": False}}))

    run_to_the_end(rehearsal, Console(quiet=True))

    (record,) = folder.glob("coordinator/runs/*/record.json")
    reports = {
        hospital.name: json.loads(next((folder / hospital.name).glob("state/reports/*.json")).read_text())
        for hospital in hospitals
    }
    return json.loads(record.read_text()), reports, record.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_masks_change_no_bit_of_the_regression(tmp_path: Path) -> None:
    """Masked and in the clear all coefficients and all models are equal to the bit. Void sums are random by plan."""
    masked, reports, folder = _run(tmp_path / "masked", is_masked=True)
    clear, others, folder_in_the_clear = _run(tmp_path / "clear", is_masked=False)

    assert masked["is_complete"]
    assert masked["masked"]
    assert not clear["masked"]
    fitted, in_the_clear = (load_file(each / "parameters.safetensors") for each in (folder, folder_in_the_clear))
    for name, numbers in fitted.items():  # coefficients and, from all sums that are not void, their errors
        np.testing.assert_array_equal(numbers, in_the_clear[name])
    for name, report in reports.items():
        assert report["prior"] == others[name]["prior"]
        assert report["federated"]["metrics"] == others[name]["federated"]["metrics"]
        assert sum(report["prior"]["weights"].values()) == pytest.approx(1.0)
        assert report["prior"]["guard"] > 0
