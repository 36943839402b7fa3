"""The coordinator's audit log: connections, decisions and messages. Each record is written before the act.

The file is that of audit/audit_log.py. Every decision of a run's journal is written here as well, in one go and
before the journal takes it, so that nothing leaves that does not stand here. Never a parameter, a sum or a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from audit.audit_log import Consequences, Limits, LogFile
from audit.cosigning import LogParty
from protos.wire.log_chain import LogPosition
from protos.wire.log_checkpoints import COORDINATOR, IdentityKey, LogCheckpoint, sign_checkpoint

_CONSEQUENCES: Final = Consequences(
    of_damage="The coordinator decides and sends nothing more until this is understood.",
    of_no_room="The coordinator stopped before the decision took effect. Nothing more was sent.",
)
# The journal's words, as the log names them.
_EVENTS: Final = {
    "announced": "run_announced",
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
    "rolled_back": "run_rolled_back",
    "given_up": "site_given_up",
    "paused": "run_paused",
    "resumed": "run_resumed",
    "stopped": "run_stopped",
    "over": "run_over",
}


class CoordinatorLog:
    """The coordinator's log, open for writing."""

    def __init__(
        self,
        state: Path,
        *,
        identity_key: IdentityKey,
        now: Callable[[], datetime],
        limits: Limits | None = None,
    ) -> None:
        """`now` gives aware UTC times; raises AuditError where the log was changed or cannot be opened."""
        self._now, self._software = now, version("global-layers")

        def sign(key_session: int, position: LogPosition) -> LogCheckpoint:
            return sign_checkpoint(COORDINATOR, key_session, position, self.time(), identity_key)

        self.file = LogFile(log_path(state), now=now, consequences=_CONSEQUENCES, sign=sign, limits=limits)
        self.party = LogParty(
            owner=COORDINATOR,
            log=self.file,
            folder=state / "witness",
            key=identity_key,
            now=self.time,
            write=lambda event, facts: self.write(event, **facts),
        )

    def write(self, event: str, **facts: object) -> None:
        """Append one record and sync it. After an AuditError the act must not happen."""
        self.file.write([self._record(event, facts)])

    def journal(self, run: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Append all decisions that a run's journal is about to store."""
        records = []
        for entry in entries:
            facts = {name: value for name, value in entry.items() if name not in ("kind", "line", "time", "check")}
            kind = str(entry["kind"])
            records.append(self._record(_EVENTS.get(kind, f"run_{kind}"), {"run": run} | facts))
        self.file.write(records)

    def time(self) -> str:
        """Return the time in the format of records."""
        return self._now().isoformat(timespec="milliseconds")

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _record(self, event: str, facts: Mapping[str, object]) -> dict[str, object]:
        return {"event": event, "time": self.time(), "software": self._software} | dict(facts)


def log_path(state: Path) -> Path:
    """Return the current file of the coordinator's log."""
    return state / "audit.log"


def record_restored(state: Path, made: str, now: Callable[[], datetime]) -> None:
    """Record in the log of a restored state that it was restored from a backup. No key is needed.

    A state without a log was never started, so that there is nothing to say and no file to make.

    Args:
        state: the state directory, which nobody else uses.
        made: when the backup was made, UTC.
        now: gives aware UTC times.

    Raises:
        AuditError: the log was changed, or cannot be written.
    """
    if not log_path(state).exists():
        return
    log = LogFile(log_path(state), now=now, consequences=_CONSEQUENCES)
    try:
        time = now().isoformat(timespec="milliseconds")
        log.write([{"event": "state_restored", "time": time, "software": version("global-layers"), "made": made}])
    finally:
        log.close()
