"""Moves the state files of an earlier program version to separate folders for the agent and the gate process.

In that version, the files that are now in `agent` and `gate` were together in the state directory. The rules:

* nothing is moved while a program of that version uses the state, or while it has an unfinished run;
* each move is a rename, and can be repeated after a power cut. No file is replaced or removed;
* a file stays in the old place, so that the earlier version does not treat the state as an empty one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from audit.own_log import AuditLog
from host.durable import opened_folder, replace_file, sync_folder
from host.state_format import FILE, STATE_FORMAT
from pki import store
from protos.errors import ConfigurationError
from site_agent.gate.mishaps import unfinished_run
from site_agent.state_folders import agent_folder, approvals_folder, gate_folder

_PROGRAM: Final = "site agent"
_OF_GATE: Final = ("masking", "spent", "witness", "plans")


def is_of_old_version(state: Path) -> bool:
    """Return whether a state directory has files of an earlier program version."""
    return any((state / name).exists() for name in ("keys", "audit.log", "masking", "spent"))


def move_old_state(state: Path, site: str, *, gives_up_by: str | None = None) -> bool:
    """Move the state files of an earlier program version to separate folders. Return whether there were such files.

    Args:
        site: this site's name in its audit log.
        gives_up_by: the person who gives up an unfinished run; None for nobody.

    Raises:
        ConfigurationError: a run is unfinished, a program uses the state, or this user may not move the files.
    """
    if not is_of_old_version(state):
        return False
    if not os.access(state, os.W_OK):
        raise ConfigurationError(
            what=f"The folder {state} has files of an earlier program version, and this user account may not move "
            f"them.",
            consequence="Nothing was moved or sent.",
            remedy="Run `sudo site-agent move-state --config` with this site's hospital.yaml, then start again.",
        )
    held = store.hold_directory(state, _PROGRAM)
    try:
        _refuse_run(state, site, gives_up_by)
        with store.explained(state, "moved"):
            for folder in (agent_folder(state), gate_folder(state)):
                store.make_private_directory(folder)
            mark = json.dumps({"program": _PROGRAM, "format": STATE_FORMAT}) + "\n"
            replace_file(state / FILE, mark.encode())
            for source, target in _moves(state):
                _move(source, target)
            _copy_approved_plans(state)
    finally:
        os.close(held)
    return True


def _refuse_run(state: Path, site: str, gives_up_by: str | None) -> None:
    place = state / "audit.log"
    if not place.exists():
        return
    audit = AuditLog(place, site=site, now=lambda: datetime.now(UTC))
    try:
        run = unfinished_run(audit)
        if run is None:
            return
        if gives_up_by is None:
            raise ConfigurationError(
                what=f"The run {run} is active and was started by an earlier version of this program.",
                consequence="Nothing was moved or sent. The run is unchanged.",
                remedy="Finish the run with the earlier version, or end the run permanently: "
                "`site-agent move-state --give-up-run --by NAME`. "
                "After that, the researcher starts the study again with a new version of the plan.",
            )
        because = f"{gives_up_by} gave it up before an upgrade"
        audit.write("participation_ended", run=run, reason="stopped_by_operator", tensor="", because=because)
    finally:
        audit.close()


def _moves(state: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the old and the new path of each file. The audit log is the last file.

    Until the log is moved, each start checks again for an unfinished run.
    """
    gate, agent, keys = gate_folder(state), agent_folder(state), state / "keys"
    yield keys / "identity.key", gate / "identity.key"
    if keys.is_dir():
        for place in sorted(set(keys.iterdir()) - {keys / "identity.key"}):
            yield place, agent / place.name
    for name in _OF_GATE:
        yield state / name, gate / name
    for place in sorted(state.glob("audit.log.*")):
        yield place, gate / place.name
    yield state / "audit.log", gate / "audit.log"


def _move(source: Path, target: Path) -> None:
    if not os.path.lexists(source):
        return
    if os.path.lexists(target):
        raise ConfigurationError(
            what=f"Both files or folders {source} and {target} exist, although only one of them may exist.",
            consequence="The program changed none of these two.",
            remedy="Find out which of the two belongs to this site, and move the other to another place.",
        )
    source.rename(target)
    _give(target)
    sync_folder(target.parent)
    sync_folder(source.parent)
    if source.parent.name == "keys" and not any(source.parent.iterdir()):
        source.parent.rmdir()


def _give(target: Path) -> None:
    """If root moves the files, make the owner of the new folder their owner, because the services need access."""
    if os.geteuid() != 0:
        return
    with opened_folder(target.parent) as folder:
        owner = os.fstat(folder)
        for place in (target, *(target.rglob("*") if target.is_dir() else ())):
            os.lchown(place, owner.st_uid, owner.st_gid)


def _copy_approved_plans(state: Path) -> None:
    """Copy approved plans to the folder of their approvals."""
    folder = approvals_folder(state)
    for approval in folder.glob("*.json"):
        plan, target = gate_folder(state) / "plans" / approval.name, folder / "plans" / approval.name
        if plan.exists() and not target.exists():
            target.parent.mkdir(mode=0o750, exist_ok=True)
            replace_file(target, plan.read_bytes(), mode=0o640)
