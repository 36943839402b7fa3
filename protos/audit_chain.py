"""Records chained by hash: what cannot be changed afterwards without being seen.

A line is JSON with the record's number, a salt, the hash of the line before, the facts, and its own
hash over all of these. The salt keeps a hash from confirming a guess at the facts. Pure: whoever
owns a log's file calls this.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protos.canonical import digest

GENESIS: Final = "0" * 64


@dataclass(frozen=True)
class Head:
    """Where a chain stands: the number of the next record and the hash of the last one."""

    sequence: int = 0
    hash: str = GENESIS


class BrokenChain(ValueError):  # a finding, worded by whoever reads the log
    """A log is not what was written; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


def append(head: Head, facts: Mapping[str, object], salt: bytes) -> tuple[Head, bytes]:
    """The next line of a log, with its newline, and where the chain then stands.

    Args:
        head: where it stands now.
        facts: what JSON can hold.
        salt: random, of the caller's making; 16 bytes keep a hash from confirming a guess.
    """
    return _line(head, facts, salt.hex())


def verify(lines: Iterable[bytes], head: Head | None = None) -> Head:
    """Where a chain stands after these lines.

    Args:
        lines: each with its newline, in the order of the file.
        head: where the chain stood before them; None before its first line.

    Raises:
        BrokenChain: a line was changed, taken out, moved, torn or made up.
    """
    head = head or Head()
    for number, line in enumerate(lines, start=1):
        head = _step(head, line, number)
    return head


def _step(head: Head, line: bytes, number: int) -> Head:
    try:
        record = json.loads(line)
        sequence, previous, salt, facts = (record[key] for key in ("sequence", "previous", "salt", "facts"))
        bytes.fromhex(salt)
        after, expected = _line(head, facts, salt)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise BrokenChain(number, "this is no record, or a torn one") from cause
    if sequence != head.sequence or previous != head.hash:
        raise BrokenChain(number, "a record before it was taken out, moved or changed")
    # The whole line and not its hash alone: a field beside those that are hashed, or one given
    # twice, would be read by a person and by no check.
    if not hmac.compare_digest(line, expected):
        raise BrokenChain(number, "the record was changed or torn")
    return after


def _line(head: Head, facts: Mapping[str, object], salt: str) -> tuple[Head, bytes]:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    own = digest("audit record", head.sequence, head.hash, salt, text).hex()
    line = json.dumps(
        {"sequence": head.sequence, "salt": salt, "previous": head.hash, "facts": json.loads(text), "hash": own},
        sort_keys=True,
        separators=(",", ":"),
    )
    return Head(head.sequence + 1, own), line.encode() + b"\n"
