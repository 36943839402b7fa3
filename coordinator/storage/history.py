"""The decisions about a run, as the audit log has them, and the state of a run that follows from them.

Each decision is a record of the audit log with the name of the run. It is on disk before it takes effect, and there is
no other journal. Each written decision is applied at once, and a restarted program applies all of them, so both have
the same state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from host.audit_log import RESTORED, AuditLog, Facts

# A restored backup lacks the later decisions, and sites accept no number of an attempt or key session twice. So both
# numbers continue this much higher. If even higher numbers were already used, sites refuse, and nothing is masked a
# second time.
RESTORED_STEP: Final = 1 << 12


def store_path(state: Path) -> Path:
    """Return the path of the coordinator's store (host/record_store.py), which has its audit log."""
    return state / "coordinator.sqlite"


class History:
    """The state of a run, computed from its records.

    Attributes:
        past: the last offer of each round that may be repeated.
        digests: of everything that was sent for such a round.
        first_attempt: the number of the first attempt at each round; see phases.Terms.
        furthest: one more than the latest round that was ever offered.
        rounds_made: rounds that were closed and not undone by a return.
        done: sites that have loaded the result.
        withdrawn: sites that their own persons have withdrawn and that have not joined again.
        revoked: sites that the federation office has removed and that have not joined again.
        over: how the run ended.
        began: the time of the first record, in UTC.
        counts: how often each event was recorded.
    """

    def __init__(self) -> None:
        self.key_session = 0
        self.past: dict[int, int] = {}
        self.digests: dict[int, str] = {}
        self.first_attempt = self.furthest = self.rounds_made = 0
        self.done: set[str] = set()
        self.withdrawn: set[str] = set()
        self.revoked: set[str] = set()
        self.over: Facts | None = None
        self.began = ""
        self.counts: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """Return whether the run cannot continue, because it ended after its first round began or a person ended it."""
        return self.over is not None and (self.over["complete"] or self.has_begun or self.counts["run_stopped"] > 0)

    @property
    def is_void(self) -> bool:
        """Return whether the run ended because some site could not send its numbers."""
        return self.over is not None and bool(self.over["void"])

    @property
    def standing(self) -> str:
        if self.over is not None:
            how = "voided" if self.is_void else "ended"
            return "complete" if self.over["complete"] else f"{how}: {self.over['reason']}"
        return "under way" if self.has_begun else "gathering"

    @property
    def has_begun(self) -> bool:
        return bool(self.past)

    def take(self, record: Facts) -> None:
        """Update the state of the run by one of its records. They must be applied in their order."""
        event, self.began = record["event"], self.began or record["time"]
        self.counts[event] += 1
        match event:
            case "key_session_opened":
                self.key_session = record["key_session"]
            case "round_offered":
                number = record["round"]
                self.past[number], self.digests[number] = record["attempt"], record["parameters"]
                self.furthest = max(self.furthest, number + 1)
            case "state_restored":
                self.key_session += RESTORED_STEP
                self.first_attempt += RESTORED_STEP
                self.past = {number: attempt + RESTORED_STEP for number, attempt in self.past.items()}
            case "run_withdrawn":
                self.withdrawn.add(record["site"])
            case "run_revoked":
                self.revoked.add(record["site"])
            case "site_joined":
                self.withdrawn.discard(record["site"])
                self.revoked.discard(record["site"])
            case "round_closed":
                self.rounds_made = record["round"] + 1
            case "run_back":
                self.rounds_made = record["round"]
                self.done.clear()
            case "result_taken":
                self.done.add(record["site"])
            case "run_announced":
                self.over = None
            case "run_over":
                self.over = record

    def forget_before(self, oldest: int) -> None:
        for number in [number for number in self.past if number < oldest]:
            del self.past[number]
            self.digests.pop(number, None)

    def facts(self) -> dict[str, object]:
        return {
            "void_attempts": self.counts["round_void"],
            "returns_to_an_earlier_round": self.counts["run_back"],
            "restarts_of_the_coordinator": self.counts["run_taken_up"],
            "restored_from_a_backup": self.counts[RESTORED],
        }


def decisions_of(log: AuditLog, run: str) -> Iterator[Facts]:
    """Yield the records of a run, and restores that were declared since its first one. Check the log from there on.

    Raises:
        StoreError: a record was changed or damaged.
    """
    ((first,),) = log.store.read("SELECT min(number) FROM records WHERE run = ?", run)
    if first is not None:
        yield from (facts for _, facts in log.checked(first) if facts.get("run") == run or facts["event"] == RESTORED)


def history_of(log: AuditLog, run: str) -> History:
    """Return the state of a run. Raises StoreError: a record was changed or damaged."""
    history = History()
    for record in decisions_of(log, run):
        history.take(record)
    return history


def known_runs(state: Path) -> dict[str, History]:
    """Return all runs in the state directory, oldest first. Raises StoreError: a record was changed or damaged."""
    if not store_path(state).exists():
        return {}
    found = defaultdict[str, History](History)
    with closing(AuditLog(store_path(state), site=None, now=lambda: datetime.now(UTC), exists=True)) as log:
        for _, record in log.checked():
            if "run" in record:
                found[record["run"]].take(record)
    return dict(found)
