"""Reads from the journal of a run: the current round, the sites that contribute to it, and the events of each site.

Each written entry is applied at once, and a restarted program applies all of them, so both have the same state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.storage.journal import Entry, read_journal

# The entries that an operator may need later. All other events are the normal course of a run.
_TOLD: Final = (
    "void", "back", "paused", "resumed", "stopped", "left", "refused", "withdrawn", "revoked", "ahead", "restored",
)  # fmt: skip
_MOST_TOLD: Final = 200
# A restored backup lacks the later decisions, and sites accept no number of an attempt or key session twice. So both
# numbers continue this much higher. If even higher numbers were already used, sites refuse, and nothing is masked a
# second time.
RESTORED_STEP: Final = 1 << 12


class History:
    """The state of a run, computed from its journal.

    Attributes:
        past: the last offer of each round that may be repeated.
        digests: of everything that was sent for such a round.
        first_attempt: the number of the first attempt at each round; see phases.Terms.
        furthest: one more than the latest round that was ever offered.
        rounds_made: rounds that were closed and not undone by a return.
        done: sites that have loaded the result.
        withdrawn: sites that their own persons have withdrawn and that have not joined again.
        revoked: sites that the federation office has removed and that have not joined again.
        is_paused: a person has paused the run.
        over: how the run ended.
        counts: how often each kind of entry was written.
        told: the newest entries for an operator.
    """

    def __init__(self) -> None:
        self.key_session = 0
        self.past: dict[int, int] = {}
        self.digests: dict[int, str] = {}
        self.first_attempt = self.furthest = self.rounds_made = 0
        self.done: set[str] = set()
        self.withdrawn: set[str] = set()
        self.revoked: set[str] = set()
        self.is_paused = False
        self.over: Entry | None = None
        self.counts: Counter[str] = Counter()
        self.told: list[Entry] = []

    @property
    def is_over(self) -> bool:
        """Return whether the run cannot continue, because it ended after its first round began or a person ended it."""
        return self.over is not None and (self.over["complete"] or self.has_begun or self.counts["stopped"] > 0)

    @property
    def reason(self) -> str:
        """Return the reason for the end of the run."""
        return "" if self.over is None else str(self.over["reason"])

    @property
    def has_begun(self) -> bool:
        """Return whether the coordinator has offered any round of this run to sites."""
        return bool(self.past)

    def take(self, entry: Entry) -> None:
        """Update the state of the run by one entry of its journal. The entries must be applied in their order."""
        kind = entry["kind"]
        self.counts[kind] += 1
        if kind in _TOLD:
            self.told = [*self.told[1 - _MOST_TOLD :], entry]
        match kind:
            case "key_session":
                self.key_session = entry["key_session"]
            case "offered":
                number = entry["round"]
                self.past[number], self.digests[number] = entry["attempt"], entry["parameters"]
                self.furthest = max(self.furthest, number + 1)
            case "restored":
                self.key_session += RESTORED_STEP
                self.first_attempt += RESTORED_STEP
                self.past = {number: attempt + RESTORED_STEP for number, attempt in self.past.items()}
            case "withdrawn":
                self.withdrawn.add(entry["site"])
            case "revoked":
                self.revoked.add(entry["site"])
            case "joined":
                self.withdrawn.discard(entry["site"])
                self.revoked.discard(entry["site"])
            case "closed":
                self.rounds_made = entry["round"] + 1
            case "back":
                self.rounds_made = entry["round"]
                self.done.clear()
            case "done":
                self.done.add(entry["site"])
            case "paused" | "resumed":
                self.is_paused = kind == "paused"
            case "announced":
                self.over = None
            case "over":
                self.over = entry

    def forget_before(self, oldest: int) -> None:
        """Delete all rounds before `oldest` from memory."""
        for number in [number for number in self.past if number < oldest]:
            del self.past[number]
            self.digests.pop(number, None)

    def facts(self) -> dict[str, object]:
        """Return the recorded events of each site in this run, as values for JSON."""
        return {
            "void_attempts": self.counts["void"],
            "returns_to_an_earlier_round": self.counts["back"],
            "restarts_of_the_coordinator": self.counts["started"],
            "restored_from_a_backup": self.counts["restored"],
            "happenings": self.told,
        }


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """One run: its name, its state, and the counts of its journal. `began` is in UTC, from the journal."""

    name: str
    standing: str
    began: str
    rounds_made: int
    void_attempts: int
    returns: int
    restarts: int


def known_runs(state: Path) -> list[KnownRun]:
    """Return all runs in the state directory, oldest first. Raises JournalDamaged: a journal was changed or damaged."""
    runs = [_known(journal) for journal in (state / "runs").glob("*/journal.jsonl")]
    return sorted(runs, key=lambda run: run.began)


def _known(journal: Path) -> KnownRun:
    history, began = History(), ""
    for entry in read_journal(journal):
        began = began or str(entry["time"])
        history.take(entry)
    return KnownRun(
        name=journal.parent.name,
        standing=_standing(history),
        began=began,
        rounds_made=history.rounds_made,
        void_attempts=history.counts["void"],
        returns=history.counts["back"],
        restarts=history.counts["started"],
    )


def _standing(history: History) -> str:
    if history.over is not None:
        return "complete" if history.over["complete"] else f"ended: {history.reason}"
    if history.is_paused:
        return "paused"
    return "under way" if history.has_begun else "gathering"
