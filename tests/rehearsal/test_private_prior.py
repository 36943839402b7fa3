"""federated-prior with differential privacy over the wire: real programs at four heart clinics, masked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from quickstart.federation import Rehearsal, command
from tests.rehearsal.programs import finished
from tests.rehearsal.test_private_training import approved, paid_first, run_privately

LIMITS = {"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.2, "delta": 1e-5}
PROMISE = {"unit": "patient", "epsilon": 1.0, "delta": 1e-5, "clip": 2.0}


def _privately(rehearsal: Rehearsal) -> None:
    """Write the promise into the plan, and approve it."""
    (plan,) = rehearsal.folder.glob("plan-*.yaml")
    plan.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"privacy": PROMISE}))
    assert all("epsilon" in reviewed for reviewed in approved(rehearsal, plan, LIMITS))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_private_run_from_plan_to_report(tmp_path: Path) -> None:
    """One round of noisy masked sums ends in models; each site has paid epsilon 1 before it sent anything, and a
    second version of the study finds nothing left."""
    checked, fitted = run_privately(tmp_path, "federated-prior", _privately)

    assert "epsilon 1, delta 1e-05 for each patient" in checked
    (plan,) = tmp_path.glob("plan-*.yaml")
    assert np.isfinite(fitted["coefficients"]).all()
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        _check_site(tmp_path / name)
        again = plan.with_name("again.yaml")
        again.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"version": 2}))
        words = ("--config", tmp_path / name / "hospital.yaml", "--plan", again, "--by", "B. Lee", "--beside", "all")
        refused = finished("site-agent", "approve", *words)
        assert refused.returncode == 77


def _check_site(home: Path) -> None:
    """The order of records, the ledger, the report and what the command prints."""
    paid_first(home, 1.0)
    (report,) = (home / "state" / "reports").glob("*.json")
    prior = json.loads(report.read_text())["prior"]
    row = "row, because the contract has no patient column"
    assert prior["privacy"] == {"epsilon": 1.0, "delta": 1e-5, "clip": 2.0, "unit": row}
    assert prior["guard"] is None
    shown = json.loads(command("site-agent", "privacy", "--config", home / "hospital.yaml", "--json"))
    assert shown["year"] == pytest.approx(1.0, rel=1e-6)
    assert "epsilon 1 of 1" in command("site-agent", "privacy", "--config", home / "hospital.yaml")
