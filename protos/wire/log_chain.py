"""Chains log records by hash, so that every later change is detected.

A line is JSON with the record's number, a salt, the hash of the previous line, the facts, and its own hash over all of
them. A head is the number of records and the hash of the last one. Another program keeps the head of this log, so a
cut end is detected too. The salt prevents that a head confirms a guess of the facts.
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
class LogHead:
    """The number of records in a log, and the hash of the last one (hex)."""

    count: int = 0
    hash: str = GENESIS


class BrokenChain(ValueError):  # the reader of the log turns it into a message
    """A log was changed; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


def append(head: LogHead, facts: Mapping[str, object], salt: bytes) -> tuple[LogHead, bytes]:
    """Append a record to a log. Return the new head and the record's line with its newline.

    Args:
        facts: values that JSON can contain, by name. All keys in them are text, so that a reader sorts them equally.
        salt: 16 random bytes from the caller.
    """
    _require_text_keys(facts)
    return _line(head, _text(facts), salt.hex())


@dataclass(frozen=True)
class Record:
    """One checked line: the head of the log after it, and its facts."""

    head: LogHead
    facts: dict[str, Any]  # Any: every type that JSON has


def checked(lines: Iterable[bytes], head: LogHead | None = None) -> Iterator[Record]:
    """Check the lines of a log in sequence and yield each record.

    Args:
        lines: each with its newline, in their order.
        head: of the log before the lines; None before its first line.

    Raises:
        BrokenChain: a line was changed, removed, moved, cut or invented.
    """
    head = head or LogHead()
    for number, line in enumerate(lines, start=1):
        record = _step(head, line, number)
        head = record.head
        yield record


def head_of(line: bytes) -> LogHead:
    """Return the head of a log after a line, as the line itself states it. Raises BrokenChain: it is no record."""
    try:
        record = json.loads(line)
        sequence, own = record["sequence"], record["hash"]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise BrokenChain(1, _NO_RECORD) from cause
    if type(sequence) is not int or not isinstance(own, str):
        raise BrokenChain(1, _NO_RECORD)
    return LogHead(sequence + 1, own)


def _step(head: LogHead, line: bytes, number: int) -> Record:
    try:
        record = json.loads(line)
        sequence, previous, salt, facts = (record[key] for key in ("sequence", "previous", "salt", "facts"))
        bytes.fromhex(salt)
        after, expected = _line(head, _text(facts), salt)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise BrokenChain(number, _NO_RECORD) from cause
    if sequence != head.count or previous != head.hash:
        raise BrokenChain(number, "an earlier record was removed, moved or changed")
    # The whole line and not only its hash is compared. Otherwise a person could read an added or repeated field that no
    # hash covers.
    if not hmac.compare_digest(line, expected):
        raise BrokenChain(number, "the record was changed or is incomplete")
    return Record(after, facts)


def _line(head: LogHead, text: str, salt: str) -> tuple[LogHead, bytes]:
    after = LogHead(head.count + 1, digest("audit record", head.count, head.hash, salt, text).hex())
    # The keys are in alphabetical order, as `_text` writes them. Formatting by hand is three times as fast.
    start, number = f'{{"facts":{text},"hash":"{after.hash}",', f'"sequence":{head.count}}}'
    return after, f'{start}"previous":"{head.hash}","salt":"{salt}",{number}'.encode() + b"\n"


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
