"""Keeps what a process must not forget in one SQLite file. A transaction is on disk as a whole, or not at all.

The file is in WAL mode with `synchronous=FULL`. So a commit is one sync, and a killed process or a power cut leaves
either all rows of a transaction or none. Several processes can write, one after another. The rules:

* a table of records is append-only: triggers refuse to change or delete a row;
* whatever the file lacks or the disk refuses becomes one StoreError, and the caller stops;
* root follows no other user's link to the file, and the folder's owner owns the file (host/durable.py).
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from host.durable import by_descriptor, give_to_owner, make_folder, opened_folder
from protos.errors import OperatorError

BUSY_SECONDS: Final = 20.0
_FORMAT: Final = 3  # 1 had the audit log alone, 2 other digests of answered values
_SMALLEST_PAGE_BYTES: Final = 512  # SQLite takes a file that was cut in its first hundred bytes for a new one
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}  # the last: no JSON
_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
FREE_SPACE: Final = (
    "Free space on the disk of the state directory, or correct its permissions, and start again. Delete nothing in "
    "the state directory. Run a command as root, or under the user account of the program that owns the file."
)
RESTORE: Final = (
    "Stop the programs, and move the state folder to another place. Copy the newest copy of the folder back, and "
    "declare it with the command `restored`."
)


class StoreError(OperatorError):
    """The file that keeps this process's records cannot be trusted or written. The program must stop."""

    code = "E014"


class StoreDamaged(StoreError):
    """The file was damaged or changed. A restart does not correct it."""

    exit_status = 78


def append_only(table: str) -> str:
    """Return the SQL of triggers that refuse to change or delete a row of a table."""
    return "".join(
        f"CREATE TRIGGER IF NOT EXISTS {table}_{act} BEFORE {act} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are permanent'); END;\n"
        for act in ("UPDATE", "DELETE")
    )


class Store:
    """An open file of records. Threads and processes take turns.

    Attributes:
        consequence: what a failure means for the data, as the second sentence of each StoreError.
    """

    def __init__(self, path: Path, *, consequence: str = "Nothing more is sent.", exists: bool = False) -> None:
        """Open the file. Create it if it does not exist, unless the caller requires that it `exists`.

        Raises:
            StoreError: the file is damaged, or the disk cannot be used.
            FileNotFoundError: it had to exist.
        """
        self.path, self.consequence = path, consequence
        self._turn, self._depth = threading.RLock(), 0
        self._then: list[Callable[[], object]] = []
        try:
            with self.explained():
                self._open(exists)
        except FileNotFoundError:
            raise
        except OSError as cause:
            raise StoreError(
                what=f"The file {path} cannot be used: {cause.strerror}.", consequence=consequence, remedy=FREE_SPACE
            ) from cause

    def _open(self, exists: bool) -> None:
        if not exists:
            make_folder(self.path.parent)
        with opened_folder(self.path.parent) as folder:
            if not exists:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with suppress(FileExistsError):
                    descriptor = os.open(self.path.name, flags, 0o600, dir_fd=folder)
                    give_to_owner(descriptor, folder)
                    os.close(descriptor)
                    os.fsync(folder)
            # An existing file is only looked at. If a process closes any descriptor of a file, its other connections to
            # this file lose their locks. Then another process that closes the file deletes the log of their writes.
            has_log = (by_descriptor(folder) / f"{self.path.name}-wal").exists()  # never beside an empty file
            found = os.stat(self.path.name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ELOOP, "it is a link or a folder, and not a file")
            if found.st_size < _SMALLEST_PAGE_BYTES and (found.st_size or has_log):
                raise self.damaged("it was cut")
            place = by_descriptor(folder) / self.path.name
            self._connection = sqlite3.connect(
                f"file:{place}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
            )
            # This also opens the files while the folder is open.
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA recursive_triggers=ON")  # otherwise REPLACE deletes rows and asks no trigger
        if not tables:
            self._connection.execute(f"PRAGMA user_version={_FORMAT}")
        elif self._connection.execute("PRAGMA user_version").fetchone() != (_FORMAT,):
            raise StoreError(
                what=f"The file {self.path} is from another version of this software.",
                consequence=self.consequence,
                remedy="Finish its runs with that version, or begin with a new state folder.",
            )

    def define(self, schema: str) -> None:
        """Create tables, indexes and triggers that do not exist yet. Raises StoreError."""
        with self._turn, self.explained():
            self._connection.executescript(schema)

    def check(self) -> None:
        """Check the structure of the whole file, and each index against its table. Raises StoreError: it is damaged."""
        with self._turn, self.explained():
            (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self.damaged(found)

    @contextmanager
    def transaction(self, *, syncs: bool = True) -> Iterator[None]:
        """Write everything inside the block in one transaction. An inner block belongs to the outer one.

        Without `syncs` a killed process loses nothing, but a power cut may lose the rows until the next transaction.

        Raises:
            StoreError: nothing of the block was written.
        """
        with self._turn:
            if self._depth:
                yield
                return
            with self.explained():
                self._connection.execute(f"PRAGMA synchronous={'FULL' if syncs else 'NORMAL'}")
                self._connection.execute("BEGIN IMMEDIATE")
            self._depth, self._then = 1, []
            try:
                yield
                with self.explained():
                    self._connection.execute("COMMIT")
                for act in self._then:
                    act()
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._depth = 0

    def after(self, act: Callable[[], object]) -> None:
        """Call a function as soon as the present transaction is on disk."""
        self._then.append(act)

    def write(self, sql: str, *values: object) -> None:
        """Change rows with one statement. Outside a transaction the statement is one. Raises StoreError."""
        with self.transaction(), self.explained():
            self._connection.execute(sql, values)

    def read(self, sql: str, *values: object) -> list[Any]:  # Any: the columns of each row
        """Return all rows of a query. Raises StoreError."""
        with self._turn, self.explained():
            return self._connection.execute(sql, values).fetchall()

    def each(self, sql: str, *values: object) -> Iterator[Any]:  # Any: the columns of each row
        """Yield the rows of a query one by one. Raises StoreError."""
        with self.explained():
            yield from self._connection.execute(sql, values)

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def damaged(self, finding: str) -> StoreDamaged:
        """Return the error that this file was changed or damaged."""
        what = f"The file {self.path} is damaged or was changed: {finding}."
        return StoreDamaged(what=what, consequence=self.consequence, remedy=RESTORE)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise StoreError in place of each error of SQLite inside the block."""
        try:
            yield
        except sqlite3.Error as cause:
            number = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
            if number in _DAMAGED or (not number and isinstance(cause, sqlite3.OperationalError)):  # 0: no text
                raise self.damaged(str(cause).partition(" with text ")[0]) from cause
            if number == sqlite3.SQLITE_FULL:
                reason = "its disk is full"
            elif number in _BUSY:
                reason = f"another program has locked it for {BUSY_SECONDS:.0f} seconds"
            else:
                reason = str(cause)
            raise StoreError(
                what=f"The file {self.path} cannot be used: {reason}.", consequence=self.consequence, remedy=FREE_SPACE
            ) from cause
