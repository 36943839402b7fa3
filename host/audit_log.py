"""A program's own audit log: each record is on disk before the recorded act happens.

The records are rows of the program's store (record_store.py), chained by hash (protos/wire/log_chain.py). Each record
has the time, the software and, at a site, the site's name. It never has a value, a secret or a path that may name a
patient. The line of each record also goes to the journal, so a copy remains outside the store. The rules:

* all records of a call are written, or none is. A full disk is an error, and the caller stops;
* a row is never changed or deleted. `audit export` writes the lines, which anybody can verify without this program;
* the program at the other end keeps the head of this log, and this program keeps the other's. A log that does not
  contain the kept head was cut or copied back, and is refused;
* a person declares that an older state was copied back (`declare_restored`). Then the other side accepts the log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog

from host.record_store import Store, StoreError, append_only
from protos.errors import ConfigurationError
from protos.wire.log_chain import BrokenChain, LogHead, append, checked, head_of
from protos.wire.upkeep_messages import KeptHead

RESTORED: Final = "state_restored"
_CHECKED_AT_OPENING: Final = 10_000  # records; `audit verify` checks all
_CLOCKS_DIFFER: Final = timedelta(days=1)  # at most, between two computers
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY,
    line TEXT NOT NULL,
    event TEXT GENERATED ALWAYS AS (json_extract(line, '$.facts.event')) VIRTUAL,
    run TEXT GENERATED ALWAYS AS (json_extract(line, '$.facts.run')) VIRTUAL
) STRICT;
CREATE INDEX IF NOT EXISTS records_by_event ON records (event, number);
CREATE TABLE IF NOT EXISTS heads (
    owner TEXT PRIMARY KEY, count INTEGER NOT NULL, hash TEXT NOT NULL, restored INTEGER NOT NULL
) STRICT;
""" + append_only("records")

OF_A_SITE: Final = "This site sends nothing more until the cause is removed."
OF_THE_COORDINATOR: Final = "The coordinator decides and sends nothing more until the cause is removed."
_OF_A_READER: Final = "The log was not read completely. Nothing was changed, and running programs continue."

Facts = dict[str, Any]  # Any: every type that JSON has


class HeadRefused(ValueError):  # the caller turns it into a message
    """A log does not contain the head that the other program keeps of it."""


class AuditLog:
    """One program's log, in its store. Several processes can write, one at a time.

    Attributes:
        failure: why the newest records could not be written, for example because the disk is full; otherwise None.
    """

    def __init__(self, path: Path, *, site: str | None, now: Callable[[], datetime], exists: bool = False) -> None:
        """Open the store and check the newest records.

        `site` is None for the coordinator's log; `now` returns aware UTC times. Commands that only read require that
        the log `exists`.

        Raises:
            StoreError: the log was changed, or cannot be opened.
            ConfigurationError: the caller requires that it `exists`, and it does not.
        """
        consequence = _OF_A_READER if exists else OF_THE_COORDINATOR if site is None else OF_A_SITE
        self._every = {"software": version("global-layers")} | ({} if site is None else {"site": site})
        self._now, self._journal = now, structlog.get_logger()
        self.failure: StoreError | None = None
        try:
            self.store = Store(path, consequence=consequence, exists=exists)
        except FileNotFoundError as cause:
            raise ConfigurationError(
                what=f"There is no audit log at {path}.",
                consequence="Nothing was read. A missing log proves nothing.",
                remedy="Check the state directory. If the log existed before, inform the security officer.",
            ) from cause
        self.store.check()
        self.store.define(_SCHEMA)
        for _ in self.checked(max(0, self.head.count - _CHECKED_AT_OPENING)):
            pass

    def write(self, event: str, **facts: object) -> None:
        """Append one record, and sync it to disk, unless a transaction of the store does that.

        Args:
            event: the act that will happen or has happened, in a few words with underscores.
            facts: JSON values; never data of a patient, never a secret.

        Raises:
            StoreError: the record could not be written. Then the announced act must not happen.
        """
        self.write_all([{"event": event} | facts])

    def write_all(self, records: Sequence[Mapping[str, object]]) -> None:
        """Append either all these records or no record. See `write`."""
        try:
            with self.store.transaction():
                self._append(records)
        except StoreError as failure:
            self.failure = failure
            raise
        self.failure = None

    def _append(self, records: Sequence[Mapping[str, object]]) -> None:
        time, is_service = self.time(), structlog.is_configured()  # a command prints no journal
        head = self.head
        for facts in records:
            number = head.count
            head, line = append(head, {"time": time} | self._every | dict(facts), secrets.token_bytes(16))
            text = line[:-1].decode()
            self.store.write("INSERT INTO records (number, line) VALUES (?, ?)", number, text)
            if is_service:
                self.store.after(partial(self._journal.info, "audit_record", line=text))

    @property
    def head(self) -> LogHead:
        """Return the number of records, and the hash of the last one."""
        newest = self.store.read("SELECT line FROM records ORDER BY number DESC LIMIT 1")
        return self._head(newest[0][0]) if newest else LogHead()

    def now(self) -> datetime:
        """Return the current time in UTC, with its time zone."""
        return self._now()

    def time(self) -> str:
        """Return the current time in the format of audit log records."""
        return self._now().isoformat(timespec="milliseconds")

    def records(self, *events: str, run: str | None = None) -> list[Facts]:
        """Return the facts of every record of these events, oldest first, of all runs or of one."""
        marks, of_run = ",".join("?" * len(events)), "" if run is None else "AND run = ?"
        values = events if run is None else (*events, run)
        found = self.store.read(f"SELECT line FROM records WHERE event IN ({marks}) {of_run} ORDER BY number", *values)  # noqa: S608  # only question marks
        return [json.loads(line)["facts"] for (line,) in found]

    def newest(self, event: str, fact: str) -> str:
        """Return a fact of the newest record of an event that has it; empty if none has."""
        value = f"json_extract(line, '$.facts.{fact}')"
        query = f"SELECT {value} FROM records WHERE event = ? AND {value} != '' ORDER BY number DESC LIMIT 1"  # noqa: S608  # a name of this program
        return next((str(found) for (found,) in self.store.read(query, event)), "")

    def total(self, event: str, fact: str) -> tuple[int, int]:
        """Return the number of records of an event, and the sum of one of their facts."""
        total = f"coalesce(sum(json_extract(line, '$.facts.{fact}')), 0)"
        ((count, size),) = self.store.read(f"SELECT count(*), {total} FROM records WHERE event = ?", event)  # noqa: S608  # a name of this program
        return count, size

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Yield the lines of the records from a number on, each with its newline."""
        for (line,) in self.store.each("SELECT line FROM records WHERE number >= ? ORDER BY number", start):
            if not isinstance(line, str):
                raise self.store.damaged("a record of the audit log is missing")
            yield line.encode() + b"\n"

    def checked(self, start: int = 0) -> Iterator[tuple[int, Facts]]:
        """Check and yield the number and the facts of each record from a number on.

        Raises:
            StoreError: a record was changed, removed or invented.
        """
        if (head := self._head_after(start)) is None:
            raise self.store.damaged(f"the audit log has no record {start - 1}")
        try:
            for record in checked(self.lines(start), head):
                yield record.head.count - 1, record.facts
        except BrokenChain as broken:
            raise self.store.damaged(f"record {start + broken.line - 1} of the audit log: {broken.reason}") from broken

    def _head_after(self, count: int) -> LogHead | None:
        if count == 0:
            return LogHead()
        found = self.store.read("SELECT line FROM records WHERE number = ?", count - 1)
        return self._head(found[0][0]) if found else None

    def _head(self, line: object) -> LogHead:
        if not isinstance(line, str):
            raise self.store.damaged("a record of the audit log is missing")
        try:
            return head_of(line.encode())
        except BrokenChain as broken:
            raise self.store.damaged(f"a record of the audit log: {broken.reason}") from broken

    def close(self) -> None:
        self.store.close()

    # The heads of logs, which two programs keep of each other

    def declare_restored(self, *, by: str, because: str, account: str) -> None:
        """Record a person's statement that this state may be older than what this program has done.

        `account` is the user account that runs the command.
        """
        self.write(RESTORED, by=by, reason=because, account=account)

    @property
    def own_head(self) -> KeptHead:
        """Return this log's head and the time of its newest declared restore, for the program at the other end."""
        head, restores = self.head, self.records(RESTORED)
        at = round(datetime.fromisoformat(restores[-1]["time"]).timestamp() * 1000) if restores else 0
        return KeptHead(head.count, bytes.fromhex(head.hash), at)

    def kept_head(self, owner: str) -> KeptHead:
        """Return the head that this program keeps of another program's log. Without one, it is empty."""
        found = self.store.read("SELECT count, hash, restored FROM heads WHERE owner = ?", owner)
        return KeptHead(found[0][0], bytes.fromhex(found[0][1]), found[0][2]) if found else KeptHead()

    def kept_heads(self) -> dict[str, KeptHead]:
        """Return the kept heads of all other programs' logs, by the owner of the log."""
        owners = self.store.read("SELECT owner FROM heads ORDER BY owner")
        return {owner: self.kept_head(owner) for (owner,) in owners}

    def check_own(self, kept: KeptHead) -> None:
        """Check that this log contains the head that the other side keeps, or that a later restore was declared.

        Raises:
            HeadRefused: this log was cut, or an older state was copied back.
        """
        here = self._head_after(kept.count)
        if kept.restored < self.own_head.restored or (here is not None and here.hash == kept.hash.hex()):
            return
        if kept.count == 0:
            return
        raise HeadRefused(
            f"this program's own log lacks record {kept.count - 1}, which the other side knows, or has another one"
        )

    def check_other(self, owner: str, head: KeptHead) -> None:
        """Check that another program's log continues from the head that this program keeps. A failure is recorded.

        A newer declared restore is accepted. One in the future is not, because no later one could ever replace it.

        Raises:
            HeadRefused: the log was cut, or an older state was copied back.
        """
        kept, latest = self.kept_head(owner), self._now() + _CLOCKS_DIFFER
        if head.restored > latest.timestamp() * 1000:
            reason = f"the log of {owner} declares a restore in the future"
        elif head.restored > kept.restored or head.count > kept.count or head == kept:
            return
        else:
            reason = f"the log of {owner} has {head.count} records and had {kept.count} before"
        self.write("log_refused", owner=owner, count=head.count, kept=kept.count)
        raise HeadRefused(reason)

    def keep_head(self, owner: str, head: KeptHead) -> None:
        """Store the newest head of another program's log. The next record syncs it. Record a newer restore."""
        kept = self.kept_head(owner)
        is_restored = head.restored > kept.restored
        with self.store.transaction(syncs=is_restored):
            if is_restored:
                self.write("restore_accepted", owner=owner, count=head.count, before=kept.count)
            self.store.write(
                "INSERT OR REPLACE INTO heads VALUES (?, ?, ?, ?)",
                owner, head.count, head.hash.hex(), head.restored,
            )  # fmt: skip


def refused_words(refused: HeadRefused, command: str) -> dict[str, str]:
    """Return the three sentences about a log that lacks the kept head. `command` declares a restore."""
    return {
        "what": f"An audit log was cut, or an older state was copied back: {refused}.",
        "consequence": "Nothing more is sent until a person has decided.",
        "remedy": f"Copy the newest copy of the state folder back. If a person knows that the state is older, "
        f"declare that with `{command} --by NAME --because REASON`. At a site this costs the privacy budget of a year.",
    }
