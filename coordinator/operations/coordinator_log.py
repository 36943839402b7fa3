"""Writes the coordinator's audit log. Connections, decisions and messages are recorded before they take effect.

Every decision of a run is written here before its journal stores it, so every act is in this log. The journal is synced
before the decision takes effect, and this log directly after, while the sites work. If the computer loses its power in
between, the next process copies the missing decisions from the journal. The log never contains a parameter, a sum or a
secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from audit.own_log import AuditError, AuditLog

# The events of the log, by the names that the journal uses for them. All others get the prefix `run_`.
_EVENTS: Final = {
    "started": "run_taken_up",
    "joined": "site_joined",
    "left": "site_left",
    "refused": "site_state_refused",
    "done": "result_taken",
    "key_session": "key_session_opened",
    "offered": "round_offered",
    "bound": "round_bound",
    "closed": "round_closed",
    "void": "round_void",
    "given_up": "site_given_up",
    "paused": "run_paused",
    "resumed": "run_resumed",
}


def log_path(state: Path) -> Path:
    """Return the path of the current file of the coordinator's audit log."""
    return state / "audit.log"


class RunRecords:
    """The decisions about one run in the coordinator's audit log. See coordinator.storage.journal.Echo."""

    def __init__(self, log: AuditLog, run: str) -> None:
        self._log, self._run = log, run

    def record(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write decisions to the audit log, before the journal of the run stores them. `sync` syncs them to disk.

        Raises:
            AuditError: the decisions could not be written. They must not take effect.
        """
        self._log.write_all([self._record(entry) for entry in entries], syncs=False)

    def copy(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write earlier decisions from the journal, with their time as `journal_time`. Raises AuditError."""
        self._log.write_all([self._record(entry) | {"journal_time": entry["time"]} for entry in entries])

    def sync(self) -> None:
        """Sync the written decisions to disk. Raises AuditError if the disk does not store them."""
        try:
            self._log.sync()
        except AuditError as cause:
            raise AuditError(
                what=cause.what,
                consequence="The newest decisions were sent to sites, and are in the journal of the run. The "
                "coordinator decides nothing more.",
                remedy=cause.remedy,
            ) from cause

    def lines(self) -> int | None:
        """Return how many lines of the journal are in the log. None if the newest record of the run has no number."""
        try:
            for facts in self._log.newest_records(self._run):
                is_decision = facts["event"] in _EVENTS.values() or facts["event"].startswith("run_")
                if is_decision and facts.get("run") == self._run:
                    return None if (line := facts.get("line")) is None else int(line) + 1
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # `coordinator audit verify` explains it
            return None
        return None

    def _record(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        facts = {name: value for name, value in entry.items() if name not in ("kind", "time", "check")}
        kind = str(entry["kind"])
        return {"event": _EVENTS.get(kind, f"run_{kind}"), "run": self._run} | facts
