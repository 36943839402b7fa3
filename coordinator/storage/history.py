"""Reads from the journal of a run: the current round, the sites that contribute to it, and the events of each site.

Each written entry is applied at once, and a restarted program applies all of them, so both have the same state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coordinator.rounds.phases import Past
from coordinator.storage.journal import Entry, read_journal

# The entries that an operator may need later. All other events are the normal course of a run.
_TOLD: Final = (
    "void", "back", "paused", "resumed", "stopped", "left", "refused", "withdrawn", "revoked", "ahead", "restored",
    "given_up",
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
        given_up: sites that were late so often that the others no longer wait for them, until they are offered a round
            again.
        is_paused: a person has paused the run.
        over: how the run ended.
        counts: how often each kind of entry was written.
        told: the newest entries for an operator.
    """

    def __init__(self) -> None:
        self.key_session = 0
        self.past: dict[int, Past] = {}
        self.digests: dict[int, str] = {}
        self.first_attempt = self.furthest = self.rounds_made = 0
        self.done: set[str] = set()
        self.withdrawn: set[str] = set()
        self.revoked: set[str] = set()
        self.given_up: set[str] = set()
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
            case "offered" | "bound":
                number, attempt, is_bound = entry["round"], entry["attempt"], kind == "bound" or entry["was_bound"]
                self.past[number] = Past(
                    attempt=attempt, bound=frozenset(entry["sites"]), was_bound=is_bound, resample=entry["redraw"]
                )
                self.given_up.difference_update(entry["sites"])
                if kind == "offered":
                    self.digests[number] = entry["parameters"]
                    self.furthest = max(self.furthest, number + 1)
            case "restored":
                self.key_session += RESTORED_STEP
                self.first_attempt += RESTORED_STEP
                for number, past in self.past.items():
                    self.past[number] = replace(past, attempt=past.attempt + RESTORED_STEP)
            case "withdrawn":
                self.withdrawn.add(entry["site"])
            case "revoked":
                self.revoked.add(entry["site"])
            case "given_up":
                self.given_up.add(entry["site"])
            case "started":
                self.given_up.clear()  # the attempts are counted from zero
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
        """Delete all rounds before `oldest` from memory, except the last one, whose contributing sites are needed."""
        for number in [number for number in self.past if number < oldest - 1]:
            del self.past[number]
            self.digests.pop(number, None)

    def needed(self, number: int) -> frozenset[str]:
        """Return the sites without which the run cannot return to a round: those that contributed then or later."""
        needed = [past.bound for later, past in self.past.items() if later >= number]
        return frozenset[str]().union(*needed, self.bound_at(number))

    def bound_at(self, number: int) -> frozenset[str]:
        """Return the contributing sites of a round from its offer. Without an offer, use the previous round."""
        past = self.past.get(number) or self.past.get(number - 1)
        return frozenset() if past is None else past.bound

    def resample_before(self, number: int) -> int:
        """Return the number of the random draw in the previous round. The states before this round depend on it."""
        past = self.past.get(number - 1)
        return 0 if past is None else past.resample

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
