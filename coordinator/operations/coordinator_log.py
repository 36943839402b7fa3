"""Writes the coordinator's audit log. Connections, decisions and messages are recorded before they take effect.

Every decision of a run is written here before its journal stores it, so every act is in this log. The journal is
synced before the decision takes effect. This log is synced when the coordinator has started to send. If the power fails
before this log is synced, the next process copies the missing decisions from the journal. The log never contains a
parameter, a sum or a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from host.audit_log import AuditLog
from host.record_store import StoreError

# The events of the log, by the names that the journal uses for them. All others get the prefix `run_`.
_EVENTS: Final = {
    "started": "run_taken_up",
    "joined": "site_joined",
    "left": "site_left",
    "refused": "site_state_refused",
    "done": "result_taken",
    "key_session": "key_session_opened",
    "offered": "round_offered",
    "closed": "round_closed",
    "void": "round_void",
    "paused": "run_paused",
    "resumed": "run_resumed",
}


def store_path(state: Path) -> Path:
    """Return the path of the coordinator's store (host/record_store.py), which has its audit log."""
    return state / "coordinator.sqlite"


class RunRecords:
    """The decisions about one run in the coordinator's audit log. See coordinator.storage.journal.Echo."""

    def __init__(self, log: AuditLog, run: str) -> None:
        self._log, self._run = log, run

    def record(self, entries: Sequence[Mapping[str, Any]], *, syncs: bool) -> None:
        """Write decisions to the audit log, before the journal of the run stores them.

        With `syncs`, sync them at once. Without it, the caller calls `sync` later.

        Raises:
            StoreError: the decisions could not be written. They must not take effect.
        """
        self._log.write_all([self._record(entry) for entry in entries], syncs=syncs)

    def copy(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write earlier decisions from the journal, with their time as `journal_time`. Raises StoreError."""
        records = [self._record(entry) | {"journal_time": entry["time"]} for entry in entries]
        with _explained(
            "Some decisions are in the journal of the run, but not in the audit log. The coordinator could not copy "
            "them. It did not continue this run."
        ):
            self._log.write_all(records)

    def sync(self) -> None:
        """Sync the written decisions to disk. Raises StoreError if the disk does not store them."""
        with _explained(
            "The newest decisions are in the journal of the run. The coordinator may already have sent them to sites. "
            "It makes no further decision."
        ):
            self._log.sync()

    def lines(self) -> int | None:
        """Return how many lines of the journal are in the log.

        Return None if the log has no record of the run, if its newest record has no line number, or if the log cannot
        be read.
        """
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


@contextmanager
def _explained(consequence: str) -> Iterator[None]:
    """Replace the consequence of each StoreError that is raised in the block."""
    try:
        yield
    except StoreError as cause:
        raise StoreError(what=cause.what, consequence=consequence, remedy=cause.remedy) from cause
