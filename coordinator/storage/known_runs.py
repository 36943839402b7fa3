"""Every run in this coordinator's state directory, read from its journal. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator.storage.history import History
from coordinator.storage.journal import read_journal


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """One run: its name, how it stands, and what was counted in its journal.

    `began` is UTC, as the journal has it.
    """

    name: str
    standing: str
    began: str
    rounds_made: int
    void_attempts: int
    returns: int
    restarts: int


def known_runs(state: Path) -> list[KnownRun]:
    """Return the runs in a state directory, the oldest first.

    Raises:
        JournalDamaged: a journal is not what was written.
    """
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
