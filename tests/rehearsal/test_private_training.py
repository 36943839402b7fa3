"""A network with differential privacy over the wire: real programs at four heart clinics, masked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import load_file

from quickstart.federation import Rehearsal, command, prepare
from quickstart.hospitals import uci_hospitals
from quickstart.plans import plan_of, studies_of
from quickstart.programs import run_to_the_end
from tests.logged import lines_of, noise_of

ROUNDS = 12
LIMITS = {"largest_epsilon_per_study": 4.0, "largest_epsilon_per_year": 4.0, "delta": 1e-5}
PROMISE = {"unit": "patient", "epsilon": 4.0, "delta": 1e-5, "clip": 1.0, "patients": 600}


def privately(
    rehearsal: Rehearsal, rounds: int = ROUNDS, promise: dict[str, Any] = PROMISE, rate: float = 4.0, **keys: Any
) -> None:
    """Write limits into the policies and a private network on concepts into the plan, and approve it. `keys` are
    further keys of the plan."""
    (plan,) = rehearsal.folder.glob("plan-*.yaml")
    (study,) = studies_of(["federated-prior"])
    concepts = plan_of(study, rehearsal.hospitals, latent=8, is_masked=True)["concepts"]
    written = {key: value for key, value in yaml.safe_load(plan.read_text()).items() if key != "columns"} | {
        "concepts": concepts, "architecture": {"name": "dense", "hidden": []},
        "schedule": {"aggregate": "every-batch", "epochs": rounds, "batches_per_epoch": 1},
        "optimiser": {"name": "sgd", "learning_rate": rate}, "weighting": {"name": "equal"}, "privacy": promise,
    }  # fmt: skip
    plan.write_text(yaml.safe_dump(written | keys))
    for reviewed in approved(rehearsal, plan, LIMITS, siloed_baseline=False):
        assert f"{rounds} rounds of training: this site sends only sums with random noise" in reviewed


def approved(rehearsal: Rehearsal, plan: Path, limits: dict[str, float], **training: bool) -> Iterator[str]:
    """Write limits into the policies, and approve a plan at each hospital. Yield what it reviewed before."""
    for hospital in rehearsal.hospitals:
        config = rehearsal.folder / hospital.name / "hospital.yaml"
        content = yaml.safe_load(config.read_text()) | {"training": {"simple_models": False, **training}}
        content["policy"]["privacy"] = limits
        config.write_text(yaml.safe_dump(content))
        named = ("--config", config, "--plan", plan)
        yield command("site-agent", "review", *named)
        command("site-agent", "approve", *named, "--by", "A. Jones", "--beside", "all", "--yes")


def run_privately(folder: Path, method: str, approve: Callable[[Rehearsal], None]) -> tuple[str, dict[str, Any]]:
    """Run a method at the four clinics to its end. Return what `coordinator check` said, and the shared parameters."""
    (tables := folder / "tables").mkdir()
    rehearsal = Rehearsal(
        folder=folder, hospitals=uci_hospitals(tables), methods=(method,), rounds=2, seed=0, is_masked=True
    )
    prepare(rehearsal)
    approve(rehearsal)
    checked = command("coordinator", "check", "--config", folder / "coordinator.yaml")
    run_to_the_end(rehearsal, Console(quiet=True))
    (record,) = folder.glob("coordinator/runs/*/record.json")
    facts = json.loads(record.read_text())
    assert facts["is_complete"]
    assert facts["masked"]
    return checked, load_file(record.parent / "parameters.safetensors")


def paid_first(home: Path, epsilon: float) -> list[dict[str, Any]]:
    """The records of a site that paid this epsilon once, before it sent anything."""
    records: list[dict[str, Any]] = [
        json.loads(line)["facts"] for line in lines_of(home / "state" / "gate" / "gate.sqlite")
    ]
    events = [record["event"] for record in records]
    assert events.count("privacy_spent") == 1
    assert events.index("privacy_spent") < events.index("contribution_released")
    shown = json.loads(command("site-agent", "privacy", "--config", home / "hospital.yaml", "--json"))
    assert [payment["epsilon"] for payment in shown["payments"]] == [epsilon]
    return records


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_private_network_from_plan_to_report(tmp_path: Path) -> None:
    """Twelve rounds of noisy masked sums end in a network; each site paid epsilon 4 once, before anything left."""
    checked, fitted = run_privately(tmp_path, "fedavg", privately)

    assert f"epsilon 4, delta 1e-05 for each patient over all {ROUNDS} rounds" in checked
    assert all(np.isfinite(values).all() for values in fitted.values())
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        _check_site(tmp_path / name)
    report = json.loads(next((tmp_path / "cleveland").glob("state/reports/*.json")).read_text())
    assert report["federated"]["metrics"]["auroc"] > 0.6


def _check_site(home: Path) -> None:
    """One payment before twelve releases, no number but the gradient, and no stored noise at the end."""
    released = [record for record in paid_first(home, 4.0) if record["event"] == "contribution_released"]
    assert sorted({record["round"] for record in released}) == list(range(ROUNDS))
    assert {record["tensors"] for record in released} == {0}
    assert {record["bytes"] for record in released} == {8 + 8 * released[0]["scalars"]}
    assert noise_of(home / "state" / "gate" / "gate.sqlite") == {}
    (report,) = (home / "state" / "reports").glob("*.json")
    row = "row, because the contract has no patient column"
    assert json.loads(report.read_text())["privacy"] == {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0, "unit": row}
