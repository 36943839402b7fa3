"""Reads the files of an audit log: the current file and the rotated files.

`audit.log` is the current file. A full file is renamed to `audit.log.` and the number of its first record in ten
digits. So sorted names have the sequence of the records. This module never writes to a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from protos.wire.log_chain import BrokenChain, LogPosition, Record, checked, start_of

CONTINUED: Final = "log_continued"
RESTARTED: Final = "log_began_anew"
OLDER_STATE: Final = "older_state_restored"
RESTORED_FROM: Final = "backup"  # in the record RESTARTED: when the restored backup was made
FIRST_GENERATION: Final = 1
_DIGITS: Final = 10
_TAIL_BYTES: Final = 1 << 16


class BrokenFile(ValueError):  # the reader of the log turns it into a message
    """A file of a log was changed. `line` counts from 1 within the file."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}, line {line}: {reason}")
        self.name, self.line, self.reason = name, line, reason


def full_name(path: Path, first: int) -> Path:
    """Return the new name of the current log file after its rotation. `first` is the number of its first record."""
    return path.with_name(f"{path.name}.{first:0{_DIGITS}d}")


def full_files(path: Path) -> list[Path]:
    """Return the rotated files of an audit log, oldest first."""
    pattern = re.compile(re.escape(path.name) + rf"\.[0-9]{{{_DIGITS}}}")
    try:
        return sorted(found for found in path.parent.iterdir() if pattern.fullmatch(found.name))
    except FileNotFoundError:
        return []


def all_files(path: Path) -> list[Path]:
    """Return all existing files of an audit log, oldest first."""
    return [*full_files(path), *([path] if path.exists() else [])]


def last_line(file: Path) -> bytes:
    """Return the last line of a file, or b"" if the file is empty. Read only the end of the file."""
    with file.open("rb") as opened:
        end = opened.seek(0, os.SEEK_END)
        length = _TAIL_BYTES
        while True:
            opened.seek(max(0, end - length))
            tail = opened.read(length)
            cut = tail[:-1].rfind(b"\n")
            if cut >= 0 or length >= end:
                return tail[cut + 1 :]
            length *= 8


def first_line(file: Path) -> bytes:
    """Return the first line of a file, or b"" if the file is empty."""
    with file.open("rb") as opened:
        return opened.readline()


def position_after(file: Path) -> LogPosition:
    """Return the position of the hash chain after a rotated file, from its last line. Check only this line.

    Raises:
        BrokenFile: the last line is no record.
    """
    try:
        return _alone(last_line(file)).position
    except BrokenChain as broken:
        with file.open("rb") as opened:
            lines = sum(1 for _ in opened)
        raise BrokenFile(file.name, lines, broken.reason) from broken


def start_of_file(path: Path, file: Path, before: LogPosition | None) -> LogPosition:
    """Return the position of the hash chain before the first line of a file.

    Args:
        before: the position after the previous file; None if that file is missing or there was none.

    Raises:
        BrokenFile: the file does not continue the previous one, or the previous one is missing.
    """
    line = first_line(file)
    if not line:
        return before or LogPosition()
    record = _first_record(file, line)
    start = record.before
    if before is not None and start != before:
        raise BrokenFile(file.name, 1, "earlier records were removed, moved or changed")
    if before is None and start != LogPosition() and record.facts.get("event") != CONTINUED:
        raise BrokenFile(file.name, 1, "an earlier record was removed, moved or changed")
    if file not in (path, full_name(path, start.sequence)):
        raise BrokenFile(file.name, 1, "the file has another name than rotation gave it")
    return start


def generation_of(path: Path) -> int:
    """Return the generation number of a log, from the first record of the newest file that has a record."""
    for file in reversed(all_files(path)):
        line = first_line(file)
        if line.endswith(b"\n"):
            return generation_in(_first_record(file, line).facts)
    return FIRST_GENERATION


def began_with(path: Path) -> dict[str, Any]:  # Any: every type that JSON has
    """Return the facts of the first record in the oldest file of a log, or {} if there is none.

    Raises:
        BrokenFile: the record was changed.
    """
    for file in all_files(path):
        if (line := first_line(file)).endswith(b"\n"):
            return _first_record(file, line).facts
    return {}


def generation_in(facts: dict[str, Any]) -> int:
    """Return the generation number in the first record of a file."""
    generation = facts.get("generation") if facts.get("event") in (CONTINUED, RESTARTED) else FIRST_GENERATION
    return generation if type(generation) is int and generation >= FIRST_GENERATION else FIRST_GENERATION


def set_aside(path: Path, now: datetime, *, least: int = 0) -> int:
    """Rename all files of an audit log, so that a new log begins. Return the next generation number.

    Args:
        now: aware; it becomes part of the new names.
        least: the highest generation known from elsewhere.
    """
    try:
        generation = generation_of(path)
    except BrokenFile:
        generation = FIRST_GENERATION  # unreadable; the witness's checkpoint decides
    stem = f"before-{now:%Y%m%dT%H%M%S}"
    stamp = next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000))) if not _has(path, name))
    for file in all_files(path):
        file.rename(file.with_name(f"{file.name}.{stamp}"))
    return max(generation, least) + 1


def _has(path: Path, stamp: str) -> bool:
    """Return whether an earlier log was set aside with this stamp. Its files must not be replaced."""
    return any(path.parent.glob(f"{path.name}*.{stamp}"))


def files_set_aside(path: Path) -> list[Path]:
    """Return the files that `set_aside` renamed, oldest first."""
    found = [file.name.rpartition(".before-")[::2] for file in path.parent.glob(f"{path.name}*.before-*")]
    return [path.with_name(f"{name}.before-{stamp}") for name, stamp in sorted(found, key=_oldest_first)]


def _oldest_first(file: tuple[str, str]) -> tuple[str, str]:
    name, stamp = file
    return stamp, name  # of one log, the rotated files with their digits come before the last file


def newest_first(path: Path, word: bytes) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
    """Yield the facts of the records that contain a word, newest first, from the two newest files. Check no hash.

    A loss of power can only remove records at the end, so older files are not read. If a person has just started a new
    log, the newest file that was set aside is the second one.

    Raises:
        OSError: a file cannot be read.
        ValueError: a line is no record.
    """
    for file in reversed([*files_set_aside(path), *all_files(path)][-2:]):
        with file.open("rb") as opened:
            places = [(start, len(line)) for start, line in _placed(opened) if word in line]
            for start, length in reversed(places):
                opened.seek(start)
                yield json.loads(opened.read(length))["facts"]


def _placed(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield where each complete line of a file begins, and the line."""
    start = 0
    for line in file:
        if line.endswith(b"\n"):
            yield start, line
        start += len(line)


def earlier_facts(path: Path) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
    """Yield the facts of each complete record in the files that `set_aside` renamed. Skip damaged lines."""
    for file in files_set_aside(path):
        for record in _undamaged(file):
            yield record.facts


def may_contain(path: Path, generation: int, position: LogPosition) -> bool:
    """Return whether a log that was set aside had this position, or an old file with it was deleted.

    If a crash left part of a line at the end of a file, this part is not a record.

    Args:
        generation: the generation number of the log that had the position.
    """
    last = 0
    files = [file for file in files_set_aside(path) if _generation_set_aside(file) == generation]
    for record in chain.from_iterable(map(_undamaged, files)):
        last = record.position.sequence
        if last == position.sequence:
            return record.position == position
    return last > position.sequence


def _undamaged(file: Path) -> Iterator[Record]:
    """Yield each record whose line is whole and has its own hash. Skip the other lines."""
    with file.open("rb") as opened:
        for line in opened:
            with suppress(BrokenChain):
                yield _alone(line)


def _generation_set_aside(file: Path) -> int | None:
    """Return the generation number of a file that was set aside, or None if its first record cannot be read."""
    try:
        return generation_in(_first_record(file, first_line(file)).facts)
    except BrokenFile:
        return None


@dataclass(frozen=True)
class Placed:
    """A checked record with its file and line."""

    file: str
    line: int
    record: Record


def checked_records(path: Path, size: int | None = None) -> Iterator[Placed]:
    """Check and yield every record of an audit log, over all its files, oldest first.

    Args:
        size: the number of bytes of that file to read; without it, the whole file.

    Raises:
        BrokenFile: a line was changed, removed, moved, cut or invented.
    """
    before: LogPosition | None = None
    for file in all_files(path):
        before = start_of_file(path, file, before)
        with file.open("rb") as opened:
            lines = iter(opened) if file != path else _up_to(opened, _settled(opened) if size is None else size)
            try:
                for number, record in enumerate(checked(lines, before), start=1):
                    before = record.position
                    yield Placed(file.name, number, record)
            except BrokenChain as broken:
                raise BrokenFile(file.name, broken.line, broken.reason) from broken


def _first_record(file: Path, line: bytes) -> Record:
    try:
        return _alone(line)
    except BrokenChain as broken:
        raise BrokenFile(file.name, 1, broken.reason) from broken


def _alone(line: bytes) -> Record:
    """Check a line without the lines before it, from the position that the line itself records."""
    (record,) = checked([line], start_of(line))
    return record


def _settled(file: BinaryIO) -> int:
    """Return the size of a file while no process writes to it. An incomplete line is then the result of a crash."""
    fcntl.flock(file, fcntl.LOCK_SH)
    try:
        return os.fstat(file.fileno()).st_size
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def complete_bytes(path: Path) -> int:
    """Return the size of the complete lines of a log's current file, without the rest of a line that a crash leaves."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            tail = last_line(path)
            return os.fstat(file.fileno()).st_size - (0 if tail.endswith(b"\n") else len(tail))
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _up_to(file: BinaryIO, size: int) -> Iterator[bytes]:
    for line in file:
        if size <= 0:
            return
        yield line[:size]
        size -= len(line)
