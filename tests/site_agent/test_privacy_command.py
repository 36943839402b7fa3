"""`site-agent privacy`: what was spent, by whom and on what, and what is left."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from host.audit_log import AuditLog
from protos.plan.plan import Plan
from site_agent.approvals import keep_plan
from site_agent.approving import approve, withdraw
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.site_cli import main
from site_agent.state_folders import approvals_folder, gate_folder, gate_store_path
from tests.protos.privacy.private_plans import private_plan
from tests.site_agent.test_approval_commands import RULES

NOW = datetime.now(UTC)
QUESTION = {
    "outcome": "death within a year", "population": "adults after a stroke", "time": "at discharge",
    "use": "to plan visits", "responsible": "R. Stone, University", "approval_number": "2026-17",
}  # fmt: skip
ASKED = private_plan(study="asked", question=QUESTION)
PLAIN = private_plan(study="plain")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hospital with limits."""
    limits = {"largest_epsilon_per_study": 2.0, "largest_epsilon_per_year": 3.0, "delta": 1e-5}
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": RULES | {"privacy": limits}, "data": data}
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def spent(state: Path, plan: Plan, *names: str) -> None:
    """The persons approve a plan, and it pays."""
    log = AuditLog(gate_store_path(state), site="a", now=lambda: NOW)
    for name in names:
        approve(state, plan, by=name, at=NOW)
        log.write("plan_approved", plan=plan.digest.hex(), by=name)
    keep_plan(state, plan)
    PrivacyLedger(state, log).pay(plan, bytes(32), [0] * 100)
    log.close()


def shown(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What the command prints on a wide terminal."""
    monkeypatch.setattr(sys, "argv", ["site-agent", "privacy", "--config", str(folder / "hospital.yaml"), *words])
    monkeypatch.setenv("COLUMNS", "220")
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("left", ["everything", "log", "files", "neither"])
def test_a_person_reads_who_spent_what_on_what(
    left: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approvals are in their files and in the log, and either is enough. A withdrawal takes no name away."""
    state = folder / "state"
    spent(state, ASKED, "A. Jones", "B. [Lee]")
    spent(state, PLAIN, "C. Kim")
    withdraw(state, ASKED, by="B. [Lee]", at=NOW)
    if left in ("log", "neither"):
        shutil.rmtree(approvals_folder(state))
    if left in ("files", "neither"):
        gate_store_path(state).unlink()
    if left == "neither":
        shutil.rmtree(gate_folder(state) / "plans")

    facts: dict[str, Any] = json.loads(shown(folder, capsys, monkeypatch, "--json"))
    text = shown(folder, capsys, monkeypatch)

    by_study = {one["study"]: one for one in facts["payments"]}
    is_known = left != "neither"
    assert by_study["asked"]["approved_by"] == (["A. Jones", "B. [Lee]"] if is_known else [])
    assert by_study["plain"]["approved_by"] == (["C. Kim"] if is_known else [])
    lines = {study: next(line for line in text.splitlines() if f"{study} version" in line) for study in by_study}
    wanted = {
        "asked": ("R. Stone, University, approval 2026-17", "to predict: death within a year", "A. Jones and B. [Lee]"),
        "plain": ("the plan has no question", "federated-prior on", "C. Kim"),
    }
    unknown = ("the plan is not stored here", "no approval is stored here")
    for study, words in wanted.items():
        assert [word for word in (words if is_known else ()) if word not in lines[study]] == []
    assert is_known or all(word in " ".join(text.split()) for word in unknown)
    assert "asked: epsilon 1 of 2" in text
    assert "last 365 days: epsilon" in text


def test_a_declared_restore_is_shown_with_its_end(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who finds no payments reads why nothing is left."""
    log = AuditLog(gate_store_path(folder / "state"), site="a", now=lambda: NOW)
    log.declare_restored(by="A. Jones", because="disk", account="root")
    log.close()

    assert f"A year's budget is spent until {NOW + timedelta(days=365):%F}" in shown(folder, capsys, monkeypatch)
