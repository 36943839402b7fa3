"""federated-prior with differential privacy over the wire: real programs at four heart clinics, masked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import load_file

from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import uci_hospitals
from quickstart.programs import run_to_the_end
from tests.logged import lines_of
from tests.rehearsal.programs import finished

LIMITS = {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.2, "delta": 1e-5}
PROMISE = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 2.0}


def _privately(rehearsal: Rehearsal) -> Path:
    """Write limits into the policies and the promise into the plan, and approve it; the plan's path."""
    (plan,) = rehearsal.folder.glob("plan-*.yaml")
    plan.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"privacy": PROMISE}))
    for hospital in rehearsal.hospitals:
        config = rehearsal.folder / hospital.name / "hospital.yaml"
        content = yaml.safe_load(config.read_text()) | {"training": {"simple_models": False}}
        content["policy"]["privacy"] = LIMITS
        config.write_text(yaml.safe_dump(content))
        command(
            "site-agent", "approve", "--config", config, "--plan", plan, "--by", "A. Jones", "--beside", "all", "--yes"
        )
    return plan


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_private_run_from_plan_to_report(tmp_path: Path) -> None:
    """One round of noisy masked sums ends in models; each site has paid epsilon 1 before it sent anything, and a
    second version of the study finds nothing left."""
    tables = tmp_path / "tables"
    tables.mkdir()
    rehearsal = Rehearsal(
        folder=tmp_path, hospitals=uci_hospitals(tables), methods=("federated-prior",), rounds=2, seed=0, is_masked=True
    )
    prepare(rehearsal)
    plan = _privately(rehearsal)
    checked = command("coordinator", "check", "--config", tmp_path / "coordinator.yaml")

    run_to_the_end(rehearsal, Console(quiet=True))

    assert "epsilon 1, delta 1e-05 for each patient" in checked
    (record,) = tmp_path.glob("coordinator/runs/*/record.json")
    facts = json.loads(record.read_text())
    assert facts["is_complete"]
    assert facts["masked"]
    fitted = load_file(record.parent / "parameters.safetensors")
    assert np.isfinite(fitted["coefficients"]).all()
    for hospital in rehearsal.hospitals:
        home = tmp_path / hospital.name
        _check_site(home)
        again = plan.with_name("again.yaml")
        again.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"version": 2}))
        words = ("--config", home / "hospital.yaml", "--plan", again, "--by", "B. Lee", "--beside", "all")
        refused = finished("site-agent", "approve", *words)
        assert refused.returncode == 77


def _check_site(home: Path) -> None:
    """The order of records, the ledger, the report and what the command prints."""
    lines = lines_of(home / "state" / "gate" / "gate.sqlite")
    records: list[dict[str, Any]] = [json.loads(line)["facts"] for line in lines]
    events = [record["event"] for record in records]
    assert events.count("privacy_spent") == 1
    assert events.index("privacy_spent") < events.index("contribution_released")
    (report,) = (home / "state" / "reports").glob("*.json")
    prior = json.loads(report.read_text())["prior"]
    row = "row, because the contract has no patient column"
    assert prior["privacy"] == {"epsilon": 1.0, "delta": 1e-5, "clip": 2.0, "unit": row}
    assert prior["guard"] is None
    assert prior["rows_of_all_sites"] is None
    shown = json.loads(command("site-agent", "privacy", "--config", home / "hospital.yaml", "--json"))
    assert [payment["epsilon"] for payment in shown["payments"]] == [1.0]
    assert shown["year"] == pytest.approx(1.0, rel=1e-6)
    assert "epsilon 1 of 1" in command("site-agent", "privacy", "--config", home / "hospital.yaml")
