"""Chains log records by hash, so that every later change is detected.

A line is JSON with the record's number, a salt, the hash of the previous line, the facts, and its own hash. The line's
own hash covers the number, the previous hash, and the leaf: the hash of salt and facts. So a witness with an earlier
checkpoint can link the leaves to the next checkpoint without reading the log. The salt prevents that a leaf confirms a
guess of the facts.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from protos.plan.canonical import digest

GENESIS: Final = "0" * 64
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
_CONTAINERS: Final = (dict, list, tuple)  # of JSON
_NO_RECORD: Final = "this is not a complete record"


@dataclass(frozen=True)
class LogPosition:
    """The position of a log's chain: the number of the next record and the hash of the last one."""

    sequence: int = 0
    hash: str = GENESIS


class BrokenChain(ValueError):  # the reader of the log turns it into a message
    """A log was changed; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


def append(position: LogPosition, facts: Mapping[str, object], salt: bytes) -> tuple[LogPosition, bytes, bytes]:
    """Append a record to a hash chain. Return the new position, the record's hash (leaf, 32 bytes) and its line.

    Args:
        facts: values that JSON can contain, by name. All keys in them are text, so that a reader sorts them equally.
        salt: 16 random bytes from the caller.
    """
    _require_text_keys(facts)
    return _line(position, _text(facts), salt.hex())


def link(position: LogPosition, leaf: bytes) -> LogPosition:
    """Return the position of a hash chain after a record of which only the hash (leaf, 32 bytes) is known."""
    return LogPosition(position.sequence + 1, digest("audit record", position.sequence, position.hash, leaf).hex())


def relink(position: LogPosition, leaves: Iterable[bytes]) -> LogPosition:
    """Return the position of a hash chain after records of which only the hashes (leaves) are known."""
    for leaf in leaves:
        position = link(position, leaf)
    return position


@dataclass(frozen=True)
class Record:
    """One checked line: the chain's positions before and after the line, its leaf (32 bytes) and its facts."""

    before: LogPosition
    position: LogPosition
    leaf: bytes
    facts: dict[str, Any]  # Any: every type that JSON has


def checked(lines: Iterable[bytes], position: LogPosition | None = None) -> Iterator[Record]:
    """Check the lines of a log in sequence and yield each record.

    Args:
        lines: each with its newline, in the order of the file.
        position: the chain's position before the lines; None before its first line.

    Raises:
        BrokenChain: a line was changed, removed, moved, cut or invented.
    """
    position = position or LogPosition()
    for number, line in enumerate(lines, start=1):
        record = _step(position, line, number)
        position = record.position
        yield record


def start_of(line: bytes) -> LogPosition:
    """Return the position of a hash chain before a line, which the line itself contains.

    Raises:
        BrokenChain: the line is no record.
    """
    try:
        record = json.loads(line)
        sequence, previous = record["sequence"], record["previous"]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise BrokenChain(1, _NO_RECORD) from cause
    if type(sequence) is not int or not isinstance(previous, str):
        raise BrokenChain(1, _NO_RECORD)
    return LogPosition(sequence, previous)


def _step(position: LogPosition, line: bytes, number: int) -> Record:
    try:
        record = json.loads(line)
        sequence, previous, salt, facts = (record[key] for key in ("sequence", "previous", "salt", "facts"))
        bytes.fromhex(salt)
        after, leaf, expected = _line(position, _text(facts), salt)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise BrokenChain(number, _NO_RECORD) from cause
    if sequence != position.sequence or previous != position.hash:
        raise BrokenChain(number, "an earlier record was removed, moved or changed")
    # The whole line and not only its hash is compared. Otherwise a person could read an added or repeated field that no
    # hash covers.
    if not hmac.compare_digest(line, expected):
        raise BrokenChain(number, "the record was changed or is incomplete")
    return Record(position, after, leaf, facts)


def _line(position: LogPosition, text: str, salt: str) -> tuple[LogPosition, bytes, bytes]:
    leaf = digest("audit leaf", salt, text)
    after = link(position, leaf)
    # The keys are in alphabetical order, as `_text` writes them. Formatting by hand is three times as fast.
    start, number = f'{{"facts":{text},"hash":"{after.hash}",', f'"sequence":{position.sequence}}}'
    line = f'{start}"previous":"{position.hash}","salt":"{salt}",{number}'
    return after, leaf, line.encode() + b"\n"


def _text(facts: object) -> str:
    if not isinstance(facts, dict):
        raise TypeError("facts are one JSON object")
    return _JSON.encode(facts)


def _require_text_keys(value: Iterable[object]) -> None:
    """Check the keys of all objects. JSON writes a number as text, but a reader would sort it differently."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError("the keys of facts are text")
        parts: Iterable[object] = value.values()
    else:
        parts = value
    for part in parts:
        if isinstance(part, _CONTAINERS):
            _require_text_keys(part)
