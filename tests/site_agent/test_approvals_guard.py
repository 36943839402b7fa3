"""Approvals that a service could have written do not count. Each refusal has the command that corrects it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protos.errors import ConfigurationError
from site_agent.approvals_guard import require_guarded
from site_agent.approving import approve
from tests.federation import masked_plan

GATE, AGENT, TRAINER, APPROVER = 61001, 61002, 61003, 61004
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders as the packages make them, with an approval by root; this process is the gate's."""
    place = tmp_path / "state"
    place.mkdir(mode=0o755)
    for name, owner in (("agent", AGENT), ("gate", GATE), ("models", TRAINER)):
        (place / name).mkdir(mode=0o700)
        os.chown(place / name, owner, owner)
    approve(place, masked_plan("abc"), by="A. Jones", at=datetime(2026, 3, 1, tzinfo=UTC))
    monkeypatch.setattr(os, "geteuid", lambda: GATE)
    return place


def test_what_root_or_an_approvers_user_has_written_counts(state: Path) -> None:
    """Neither owner is a service, and nobody else may write."""
    require_guarded(state)
    for place in (state / "approvals", *(state / "approvals").rglob("*")):
        os.chown(place, APPROVER, APPROVER)

    require_guarded(state)


@pytest.mark.parametrize("owner", [GATE, AGENT, TRAINER, 65534])
@pytest.mark.parametrize("name", ["", "approvals", "approvals/plans", "approvals/*.json"])
def test_what_belongs_to_a_service_does_not_count(state: Path, owner: int, name: str) -> None:
    """Folder, file, and the folder above: the owner of any of them could have written the approval."""
    (place,) = state.glob(name) if name else [state]
    os.chown(place, owner, owner)

    with pytest.raises(ConfigurationError, match="cannot be trusted") as told:
        require_guarded(state)

    assert "chown" in told.value.remedy
    assert "chmod" in told.value.remedy


@pytest.mark.parametrize("bits", [0o020, 0o002])
@pytest.mark.parametrize("name", ["", "approvals", "approvals/plans", "approvals/*.json"])
def test_what_a_group_or_others_may_write_does_not_count(state: Path, bits: int, name: str) -> None:
    """Group and others are refused alike."""
    (place,) = state.glob(name) if name else [state]
    place.chmod(place.stat().st_mode | bits)

    with pytest.raises(ConfigurationError, match="can be written by others"):
        require_guarded(state)


def test_a_link_in_an_approvals_place_does_not_count(state: Path, tmp_path: Path) -> None:
    """Its target may belong to anybody."""
    (tmp_path / "own.json").write_text("{}")
    (state / "approvals" / "more.json").symlink_to(tmp_path / "own.json")

    with pytest.raises(ConfigurationError, match="symbolic link"):
        require_guarded(state)
