"""A state of an earlier version is divided without loss, even after a power cut, and never in the middle of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.own_log import AuditLog
from host.state_format import FILE
from protos.errors import ConfigurationError
from site_agent.approvals import keep_plan, last_approved
from site_agent.approving import approve
from site_agent.service.state_moves import is_of_old_version, move_old_state
from site_agent.state_folders import agent_folder, audit_log_path, gate_folder
from tests.for_each import for_each
from tests.hostile.masking_federation import masked_plan
from tests.pki.whole_site import SiteKeys

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PLAN = masked_plan("abc")


def old_state(state: Path, *events: str) -> Path:
    """A state as 0.1 has left it, with these records about one run."""
    state.mkdir(mode=0o700)
    SiteKeys.create(state / "keys")
    (state / "keys" / "federation.json").write_text("{}")
    approve(state, PLAN, by="A. Jones", at=NOW)
    keep_plan(state, PLAN)
    (state / "gate" / "plans").rename(state / "plans")
    (state / "gate").rmdir()
    (state / "approvals" / "plans" / f"{PLAN.digest.hex()}.json").unlink()
    (state / "approvals" / "plans").rmdir()
    for name in ("masking", "spent", "witness"):
        (state / name).mkdir()
        (state / name / "run.json").write_text(name)
    (state / FILE).write_text(json.dumps({"program": "site agent", "format": 1}))
    log = AuditLog(state / "audit.log", site="a", now=lambda: NOW)
    for event in events:
        log.write(event, run="run-1")
    log.close()
    return state


def contents(state: Path) -> dict[str, bytes]:
    """Every file but locks and the mark, by its last two names."""
    files = (path for path in state.rglob("*") if path.is_file() and path.name not in (".lock", FILE))
    return {path.name if path.parent.name in ("agent", "gate", "keys") else f"{path.parent.name}/{path.name}":
            path.read_bytes() for path in files}  # fmt: skip


def test_everything_is_moved_and_nothing_is_lost(tmp_path: Path) -> None:
    """The TLS key goes to the agent, and the rest to the gate.

    A second time nothing remains to do, and 0.1 refuses the state.
    """
    state = old_state(tmp_path / "state", "run_joined", "run_finished")
    before = sorted(contents(state).values())

    assert move_old_state(state, "a")
    assert not move_old_state(state, "a")

    assert {path.name for path in agent_folder(state).iterdir()} == {"tls.key", "federation.json"}
    assert (gate_folder(state) / "identity.key").exists()
    assert audit_log_path(state).exists()
    assert [content for content in before if content not in contents(state).values()] == []
    assert json.loads((state / FILE).read_text())["format"] == 2
    other = masked_plan("abcd")
    assert last_approved(state, other) is not None


@for_each("cut", range(8))
def test_a_power_cut_at_any_move_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """Moved in two halves or at once, the folders are the same."""
    state, whole = old_state(tmp_path / "state", "run_joined", "run_finished"), tmp_path / "whole"
    moves, rename = [0], Path.rename

    def counted(source: Path, target: Path) -> Path:
        moves[0] += 1
        if moves[0] > cut:
            raise KeyboardInterrupt
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted)
        with pytest.raises(KeyboardInterrupt):
            move_old_state(state, "a")
    assert is_of_old_version(state)
    move_old_state(state, "a")

    old_state(whole, "run_joined", "run_finished")
    move_old_state(whole, "a")
    assert sorted(contents(state)) == sorted(contents(whole))
    assert not is_of_old_version(state)


def test_a_run_in_the_middle_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    """The remedy is to finish it with that version or to give it up. A person who gives it up is on record."""
    state = old_state(tmp_path / "state", "run_joined")
    before = contents(state)

    with pytest.raises(ConfigurationError, match=r"was started by an earlier version") as told:
        move_old_state(state, "a")

    assert contents(state) == before
    assert "Finish the run with the earlier version" in told.value.remedy
    assert move_old_state(state, "a", gives_up_by="A. Jones")
    last = json.loads(audit_log_path(state).read_text().splitlines()[-1])["facts"]
    assert (last["event"], last["run"]) == ("participation_ended", "run-1")
    assert "A. Jones" in last["because"]
