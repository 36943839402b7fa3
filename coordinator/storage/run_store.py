"""Stores one run: its decisions and snapshots, and from which states the sites can continue.

After a crash the run returns to the newest round before which this program and every participating site have their
state. The rules:

* a decision takes effect only after `commit` has returned. All decisions since the previous commit, their records in
  the audit log and the rows of new snapshots are one transaction of the store, and one sync;
* a snapshot is written after a round for which every contributor has saved its own state, so all have that state. Its
  file is on disk before the transaction that names it;
* a repeated round is from the same bytes, under a later attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Final

from coordinator.rounds.phases import Over
from coordinator.rounds.run import Run
from coordinator.rounds.transfers import RoundTimes
from coordinator.storage.history import History
from coordinator.storage.snapshots import (
    KEPT,
    Snapshot,
    SnapshotRow,
    delete_others,
    delete_snapshots,
    read_snapshot,
    write_snapshot,
)
from host.audit_log import AuditLog, Facts
from host.record_store import StoreError
from protos.errors import OperatorError, UnavailableError
from protos.plan.exchange import stage_at
from protos.wire.messages import Join, Offer, Stage

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS snapshots (
    run TEXT NOT NULL, round INTEGER NOT NULL, course TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (run, round)
) STRICT;
"""


class RunStore:
    """Reads and writes the state of a run that remains after this process ends."""

    def __init__(self, log: AuditLog, folder: Path, run: Run, history: History, *, clock: Callable[[], float]) -> None:
        """Open or begin a run.

        Args:
            folder: for the files of its snapshots.
            history: of the records of this run in the log.
            clock: returns monotonic seconds.

        Raises:
            OperatorError: the disk cannot be used.
        """
        self._log, self._folder, self._run, self._clock = log, folder, run, clock
        self._failure: StoreError | None = None
        self._decisions: list[Facts] = []
        self._written: list[SnapshotRow] = []  # on disk, and not named in the store yet
        self.history = history
        run.times = RoundTimes(clock)
        self.holds: dict[str, set[int]] = {}  # by site the rounds from which it can continue
        log.store.define(_SCHEMA)
        rows = self._rows()
        whole = [row.round for row in rows if read_snapshot(folder, row) is not None]
        # The rounds to which the run can return. Round 0 is included until enough snapshots exist.
        self.rounds = [0] * (len(rows) < KEPT) + whole or [0]
        self._named = [0] * (len(rows) < KEPT) + [row.round for row in rows]  # the rounds whose files the store names
        delete_others(folder, self._named)
        self._saved_at = clock()
        self._saving: tuple[int, bool] = (-1, False)

    @property
    def oldest(self) -> int:
        """Return the oldest round to which this run can return after a crash."""
        return self.rounds[0]

    def note(self, event: str, **facts: object) -> None:
        """Add a decision or an event, and update the state of the run by it. It is on disk only after `commit`."""
        decision = {"event": event, "time": self._log.time(), "run": self._run.name} | facts
        self._decisions.append(decision)
        self.history.take(decision)

    def commit(self) -> None:
        """Write the added decisions and the rows of new snapshots in one transaction, and sync it.

        Raises:
            StoreError: nothing was written, now or at an earlier call. The decisions must not take effect.
            UnavailableError: a file that is no longer needed cannot be deleted.
        """
        if self._failure is not None:
            raise self._failure
        if not self._decisions and self.rounds == self._named:
            return
        run, write, rounds = self._run.name, self._log.store.write, self.rounds
        first, last = rounds[0], rounds[-1]
        try:
            with self._log.store.transaction():
                self._log.write_all(self._decisions)
                for row in self._written:
                    write("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", run, *astuple(row))
                if rounds != self._named:
                    write("DELETE FROM snapshots WHERE run = ? AND NOT round BETWEEN ? AND ?", run, first, last)
        except StoreError as failure:
            self._failure = failure
            raise
        self._decisions.clear()
        earlier = {*self._named, *(row.round for row in self._written)}
        self._written, self._named = [], rounds
        delete_snapshots(self._folder, earlier - set(rounds))

    def offer(self, number: int, attempt: int) -> Offer:
        """Return the message that offers an attempt at a round to sites. Add a new attempt to the decisions.

        Raises:
            UnavailableError: a repeated round would send other bytes than before.
        """
        offered = self._run.offered(number).offer
        digest = offered.parameters_digest.hex()
        if self.history.digests.get(number, digest) != digest:
            raise _differs(number)
        if self._saving[0] != number:
            self._saving = (number, self._is_due(number))
        if self.history.past.get(number) != attempt:
            sites = list(self._run.plan.site_names)
            self.note("round_offered", round=number, attempt=attempt, sites=sites, parameters=digest)
        return replace(offered, attempt=attempt, saves=self._saving[1], oldest=self.oldest)

    def closed(self, number: int) -> None:
        """Add that a round is complete. Write a snapshot if all contributing sites have saved their states.

        Raises:
            UnavailableError: the disk cannot be written.
        """
        self.note("round_closed", round=number, sites=list(self._run.plan.site_names))
        if self._saving != (number, True):
            return
        row = write_snapshot(self._folder, self._run.before(number + 1))
        self._written.append(row)
        self.rounds = [*self.rounds, row.round][-KEPT:]
        self.history.forget_before(self.oldest)
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
        """Return whether a site already has a later round than this log. If so, the log is an older copy."""
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
        snapshot = self._read(number)
        if number and snapshot is None:
            raise UnavailableError(
                what=f"The coordinator's saved state (snapshot) before round {number + 1} cannot be read.",
                consequence="The coordinator stopped. The coordinator sent nothing to any site.",
                remedy="Start the coordinator again. The coordinator then continues from the previous snapshot.",
            )
        self._run.go_back(snapshot)
        self.note("run_back", round=number, before=self.history.rounds_made)
        self.rounds = [kept for kept in self.rounds if kept <= number]
        self.commit()
        self._saved_at, self._saving = self._clock(), (-1, False)
        return self.history.past.get(number, self.history.first_attempt - 1)

    def is_at_result(self) -> bool:
        """Restore the newest snapshot of the run. Return whether all rounds are complete in this snapshot."""
        if self.rounds[-1]:
            self._run.go_back(self._read(self.rounds[-1]))
        return self._run.rounds_made >= self._run.terms.rounds

    def end(self, over: Over, record_sha256: str) -> None:
        """Record the end of the run and the digest of its record. Delete snapshots that are no longer needed.

        Raises:
            OperatorError: the disk cannot be written.
        """
        ended = {"complete": over.is_complete, "reason": over.reason, "missing": sorted(over.missing)}
        self.note("run_over", **ended, void=over.is_void, record_sha256=record_sha256)
        if over.is_complete:
            self.rounds = [0]
        self.commit()

    def close(self) -> None:
        """Commit, if the disk permits."""
        with suppress(OperatorError):  # then the run continues from the previous snapshot
            self.commit()

    def _is_due(self, number: int) -> bool:
        run, every = self._run, self._run.plan.timing
        following = stage_at(run.plan, number + 1, run.course.training_rounds)
        if number == 0 or following is not Stage.TRAINING:
            return True
        if every.save_every_rounds is not None and number + 1 - self.rounds[-1] >= every.save_every_rounds:
            return True
        # We assume that this round takes as long as the last round.
        expected = self._clock() - self._saved_at + (run.times.newest[-1] if run.times.newest else 0.0)
        return every.save_every_seconds is not None and expected >= every.save_every_seconds

    def _rows(self) -> list[SnapshotRow]:
        wanted = "SELECT round, course, digest FROM snapshots WHERE run = ? ORDER BY round"
        return [SnapshotRow(*row) for row in self._log.store.read(wanted, self._run.name)]

    def _read(self, number: int) -> Snapshot | None:
        rows = (row for row in self._rows() if row.round == number)
        return next((read_snapshot(self._folder, row) for row in rows), None)


def _differs(number: int) -> UnavailableError:
    return UnavailableError(
        what=f"Round {number + 1} was computed again after a restart, and its starting parameters differ from the "
        f"first time.",
        consequence="The coordinator stopped before it sent anything to a site. No wrong number was computed.",
        remedy="Use the same kind of computer and the same versions of all programs as before, or start the study "
        "again as a new version.",
    )
