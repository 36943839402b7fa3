"""Stores one run on disk: the journal and the snapshots of the run, and which states the sites have saved.

After a crash the run returns to the newest round before which this program and every participating site have their
state. The rules:

* a decision takes effect only after `sync` has returned;
* a snapshot is written after a round for which every contributor has saved its own state, so all have that state;
* a large snapshot is written while rounds continue, from the run's own memory. If the next round closes before all its
  bytes are read, the run continues in a copy. Until the snapshot is on disk the run returns to the previous one, and no
  site deletes the states for that;
* a repeated round is from the same bytes, under a later attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from coordinator.rounds.phases import Attempt, Over
from coordinator.rounds.round_times import JournalTimes, RoundTimes
from coordinator.rounds.run import Run
from coordinator.storage.history import History
from coordinator.storage.journal import Echo, Journal, JournalDamaged, read_journal
from coordinator.storage.snapshots import (
    KEPT,
    Snapshot,
    begin_snapshot,
    end_snapshot,
    forget_after,
    forget_partial,
    read_snapshot,
    rounds_in,
    write_snapshot,
)
from protos.errors import UnavailableError
from protos.plan.exchange import stage_at
from protos.wire.messages import Join, Offer, Stage

LARGE_BYTES: Final = 4 << 20  # writing a smaller snapshot is faster than starting another thread


class Kept:
    """Reads and writes the files of a run that remain after this process ends."""

    def __init__(
        self,
        folder: Path,
        run: Run,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        aside: Executor | None = None,
        echo: Echo | None = None,
    ) -> None:
        """Open or begin a run's folder.

        Args:
            clock: returns monotonic seconds.
            now: returns aware UTC times.
            aside: writes large snapshots, one after another. Without it they are written at once.
            echo: see Journal.

        Raises:
            JournalDamaged: the journal was changed or has lost lines.
            UnavailableError: the disk cannot be written.
        """
        self._folder, self._run, self._clock, self._aside = folder / "snapshots", run, clock, aside
        self._writing: tuple[int, Future[Path], Future[None]] | None = None  # a round, its bytes, and the whole file
        forget_partial(self._folder)
        place, times = folder / "journal.jsonl", JournalTimes()
        self.journal, self.history = Journal(place, now, echo), History()
        for entry in read_journal(place):
            self.history.take(entry)
            times.take(entry)
        run.times = RoundTimes(clock, times.newest)
        self.holds: dict[str, set[int]] = {}  # by site the rounds from which it can continue
        self.rounds = self._readable(place)
        self._saved_at = clock()
        self._saving: tuple[int, bool] = (-1, False)

    @property
    def oldest(self) -> int:
        """Return the oldest round to which this run can return after a crash."""
        return self.rounds[0]

    def note(self, kind: str, **facts: object) -> None:
        """Add a decision or an event to the journal of the run, and update the state of the run by it."""
        self.journal.add(kind, **facts)
        self.history.take({"kind": kind} | facts)

    def offer(self, attempt: Attempt) -> Offer:
        """Return the message that offers an attempt at a round to sites. Write a new attempt to the journal.

        Raises:
            UnavailableError: a repeated round would send other bytes than before.
        """
        self._settle(waits=False)
        offered, number = self._run.offered(attempt.round).offer, attempt.round
        digest = offered.parameters_digest.hex()
        if self.history.digests.get(number, digest) != digest:
            raise _differs(number)
        if self._saving[0] != number:
            self._saving = (number, self._is_due(attempt))
        if self.history.past.get(number) != attempt.number:
            sites = list(self._run.plan.site_names)
            self.note("offered", round=number, attempt=attempt.number, sites=sites, parameters=digest)
        return replace(offered, attempt=attempt.number, saves=self._saving[1], oldest=self.oldest)

    def before_change(self) -> None:
        """Prepare for new values of the run. If a snapshot still reads the old values, the run gets other memory."""
        if self._writing is not None and not self._writing[1].done():
            self._run.take_new_memory()

    def closed(self, number: int) -> None:
        """Record that a round is complete. Write a snapshot if all contributing sites have saved their states.

        Raises:
            UnavailableError: the disk cannot be written.
        """
        self.note("closed", round=number, sites=list(self._run.plan.site_names))
        if self._saving != (number, True):
            return
        self.journal.sync()
        self._write(Snapshot(self._run.before(number + 1), self.journal.lines))
        self._saved_at = self._clock()
        for site in self._run.plan.site_names:
            self.hold(site, number + 1)

    def joined(self, site: str, join: Join) -> None:
        """Record from which saved states a joining site can continue the run."""
        # A site that has not begun can begin. Its saved states remain on its disk. Only its memory changes.
        begun = {0} if join.next_round == 0 else set()
        self.holds[site] = {*join.saved, *begun}

    def hold(self, site: str, number: int) -> None:
        """Record that a site has saved its state before a round on disk."""
        self.holds[site] = {held for held in self.holds.get(site, ()) if held >= self.oldest} | {number}

    def is_behind(self, join: Join) -> bool:
        """Return whether a site already has a later round than this journal. If so, the journal is an older copy."""
        reached = max(join.saved, default=0)
        return not self.history.first_attempt and max(reached, join.next_round or 0) > self.history.furthest

    def is_current(self, join: Join, number: int) -> bool:
        """Return whether a site has the state in memory or on disk from which a round continues."""
        return join.next_round in (number, number + 1) or number in join.saved

    def can_return(self, site: str) -> bool:
        """Return whether the run can return to an earlier round whose state this site has also saved."""
        return not self.holds.get(site, set()).isdisjoint(self.rounds)

    def find_return(self, present: Collection[str]) -> int | None:
        """Return the newest round to which the run can return together with the connected sites."""
        sites = self._run.plan.site_names
        if not set(sites) <= set(present):
            return None
        held = (number for number in reversed(self.rounds) if all(number in self.holds.get(site, ()) for site in sites))
        return next(held, None)

    def go_back(self, number: int) -> int:
        """Restore the state of the run before a round. Return the last attempt at this round.

        Raises:
            UnavailableError: the snapshot can no longer be read.
        """
        self._settle(waits=True)
        snapshot = read_snapshot(self._folder, number) if number else None
        if number and snapshot is None:
            raise UnavailableError(
                what=f"The coordinator's saved state (snapshot) before round {number + 1} cannot be read.",
                consequence="The coordinator stopped. The coordinator sent nothing to any site.",
                remedy="Start the coordinator again. The coordinator then continues from the previous snapshot.",
            )
        self._run.go_back(snapshot)
        self.note("back", round=number, before=self.history.rounds_made)
        self.journal.sync()
        forget_after(self._folder, number)
        self.rounds = [kept for kept in self.rounds if kept <= number]
        self._saved_at, self._saving = self._clock(), (-1, False)
        return self.history.past.get(number, self.history.first_attempt - 1)

    def is_at_result(self) -> bool:
        """Restore the newest snapshot of the run. Return whether all rounds are complete in this snapshot."""
        if self.rounds[-1]:
            self._run.go_back(read_snapshot(self._folder, self.rounds[-1]))
        return self._run.rounds_made >= self._run.terms.rounds

    def end(self, over: Over) -> None:
        """Record the end of the run in its journal, and delete snapshots that are no longer needed.

        Raises:
            UnavailableError: the disk cannot be written.
        """
        self._settle(waits=True)
        self.note("over", complete=over.is_complete, reason=over.reason, missing=sorted(over.missing))
        self.journal.sync()
        self.journal.close()
        if over.is_complete:
            forget_after(self._folder, -1)

    def close(self) -> None:
        """Close the journal, after the snapshot that is being written is finished if the disk permits."""
        with suppress(UnavailableError):  # then the run continues from the previous snapshot
            self._settle(waits=True)
        self.journal.close()

    def _write(self, snapshot: Snapshot) -> None:
        """Write a small snapshot to disk, or start to write a large snapshot in a thread."""
        self._settle(waits=True)
        number = snapshot.state.round
        if self._aside is None or snapshot.number_bytes < LARGE_BYTES:
            write_snapshot(self._folder, snapshot)
            self._is_on_disk(number)
        else:
            partial = self._aside.submit(begin_snapshot, self._folder, snapshot)
            self._writing = number, partial, self._aside.submit(lambda: end_snapshot(partial.result()))

    def _settle(self, *, waits: bool) -> None:
        """Record a snapshot that was written while rounds continued. With `waits`, first wait until it is written.

        Raises:
            UnavailableError: the disk could not be written.
        """
        if self._writing is None or not (waits or self._writing[2].done()):
            return
        (number, _, written), self._writing = self._writing, None
        written.result()
        self._is_on_disk(number)

    def _is_on_disk(self, number: int) -> None:
        self.rounds = [*self.rounds, number][-KEPT:]
        self.history.forget_before(self.oldest)

    def _is_due(self, attempt: Attempt) -> bool:
        """Return whether a snapshot is due after a round."""
        run, every = self._run, self._run.plan.snapshots
        following = stage_at(run.plan, attempt.round + 1, run.course.training_rounds)
        if attempt.round == 0 or following is not Stage.TRAINING:
            return True
        if self._writing is not None:
            return False  # the snapshot after this round is written later
        if every.every_rounds is not None and attempt.round + 1 - self.rounds[-1] >= every.every_rounds:
            return True
        # We assume that this round takes as long as the last round.
        expected = self._clock() - self._saved_at + (run.times.newest[-1] if run.times.newest else 0.0)
        return every.every_seconds is not None and expected >= every.every_seconds

    def _readable(self, journal: Path) -> list[int]:
        """Return the rounds to which the run can return. Round 0 is included until enough snapshots exist."""
        found = [read_snapshot(self._folder, number) for number in rounds_in(self._folder)]
        snapshots = [snapshot for snapshot in found if snapshot is not None]
        if any(snapshot.journal_lines > self.journal.lines for snapshot in snapshots):
            raise JournalDamaged(journal, "it has fewer lines than when the last snapshot was taken")
        has_start = len(found) < KEPT
        return [0] * has_start + [snapshot.state.round for snapshot in snapshots] or [0]


def _differs(number: int) -> UnavailableError:
    return UnavailableError(
        what=f"Round {number + 1} was computed again after a restart, and its starting parameters differ from the "
        f"first time.",
        consequence="The coordinator stopped before it sent anything to a site. No wrong number was computed.",
        remedy="Use the same kind of computer and the same versions of all programs as before, or start the study "
        "again as a new version.",
    )
