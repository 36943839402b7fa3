"""Dashboard and alert rules name only metrics that the programs have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from coordinator.commands.coordinator_cli import coordinator_metrics
from site_agent.service.status_socket import site_metrics

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
SITE = {
    "site": "a", "version": "1", "phase": "training", "connected_since": "2026-01-01T00:00:00+00:00",
    "contributed_at": "2026-01-01T00:00:00+00:00", "trainer": "idle", "certificate_days_left": 63.0, "round": 1,
    "rounds": 9, "left": {"contributions": 1, "bytes": 401_408}, "audit": {"records": 12},
}  # fmt: skip
STATUS = {
    "run": {"run": "r", "phase": "collecting", "rounds_made": 1, "rounds": 9, "median_round_seconds": 2.0},
    "sites": {"a": {"connected": True, "joined": True}, "b": {"connected": False, "joined": True}}, "runs_over": 0,
    "runs_waiting": 0, "coordinator_certificate_days": 63.0,
}  # fmt: skip


@pytest.fixture
def metrics(tmp_path: Path) -> dict[str, float]:
    """Every metric of both programs in the middle of a run, by the name under which Prometheus keeps it."""
    lines = (site_metrics(SITE, tmp_path) + coordinator_metrics(STATUS, tmp_path)).splitlines()
    return {line.split()[0].split("{")[0]: float(line.split()[-1]) for line in lines}


def _names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bglobal_layers_\w+", expression))


def rules() -> list[dict[str, str]]:
    """The alert rules."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, list[dict[str, str]]]]:
    """The dashboard's panels."""
    return list(json.loads((MONITORING / "dashboard.json").read_text())["panels"])


def test_what_is_alerted_is_measured(metrics: dict[str, float]) -> None:
    """Each rule names existing metrics, and states whom it concerns and what to do."""
    for rule in rules():
        assert _names_in(rule["expr"]) <= metrics.keys(), rule
        assert "$labels.instance" in rule["annotations"]["summary"]
        assert rule["annotations"]["remedy"].endswith(".")
    named = set().union(*(_names_in(rule["expr"]) for rule in rules()))
    assert {"global_layers_site_certificate_days", "global_layers_coordinator_rounds_made"} <= named
    assert "global_layers_site_disk_free_bytes" in named


def test_what_is_drawn_is_measured(metrics: dict[str, float]) -> None:
    """Each panel draws metrics that there are."""
    drawn = [target["expr"] for panel in panels() for target in panel["targets"]]

    assert len(drawn) >= 10
    assert all(_names_in(expression) and _names_in(expression) <= metrics.keys() for expression in drawn)


def test_the_figures_are_those_of_status(metrics: dict[str, float]) -> None:
    """The metrics have the figures of the status."""
    assert metrics["global_layers_site_left_bytes_total"] == 401_408
    assert metrics["global_layers_coordinator_sites_connected"] == 1
