"""`site-agent privacy`: what was spent on which study, and what is left."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from host.audit_log import AuditLog
from protos.plan.plan import Plan
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.site_cli import main
from site_agent.state_folders import gate_store_path
from tests.entry_points import Terminal
from tests.plan_changes import WITHOUT_MASKS
from tests.protos.privacy.private_plans import private_plan

NOW = datetime.now(UTC)
ASKED = private_plan(study="asked")
PLAIN = private_plan(study="plain")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hospital with limits."""
    limits = {"largest_epsilon_per_study": 2.0, "largest_epsilon_per_year": 3.0, "delta": 1e-5}
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": WITHOUT_MASKS | {"privacy": limits}, "data": data}
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def spent(state: Path, plan: Plan) -> None:
    """The plan pays."""
    log = AuditLog(gate_store_path(state), site="a", now=lambda: NOW)
    PrivacyLedger(log).pay(plan, bytes(32), [0] * 100)
    log.close()


def shown(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What the command prints on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "220")
    terminal = Terminal("site-agent", main, capsys, monkeypatch)
    assert terminal("privacy", "--config", folder / "hospital.yaml", *words) == 0
    return terminal.out


def test_a_person_reads_what_was_spent_on_which_study(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each payment has its study, and the limits stand beside the sums."""
    for plan in (ASKED, PLAIN):
        spent(folder / "state", plan)

    facts: dict[str, Any] = json.loads(shown(folder, capsys, monkeypatch, "--json"))
    text = shown(folder, capsys, monkeypatch)

    assert {one["study"] for one in facts["payments"]} == {"asked", "plain"}
    assert all(f"{one['study']} version 1" in text for one in facts["payments"])
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
