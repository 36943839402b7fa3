"""Defines a finding about a hospital's table, and stores which person accepted the warnings about the table.

An acceptance is one small file for each digest, stored next to the approvals. The digest covers the table's content,
its contract, the split and the exact warnings. If one cell that is read changes, a person must accept the warnings
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import ValidationError

from protos.errors import DataError
from protos.plan.documents import Document
from site_agent.trainer.disk import write_whole

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about a table, as a sentence without any patient's value.

    Attributes:
        level: an error stops training, a person must accept a warning, and a note is only shown.
        key: the kind of finding, often followed by a column; equal for the same subject.
        words: one sentence without its full stop.
        rows: the first rows concerned, as a spreadsheet counts them.
        count: the number of all rows concerned; 0 if the finding is not about rows.
    """

    level: Level
    key: str
    words: str
    rows: tuple[int, ...] = ()
    count: int = 0


def counted(number: int, word: str) -> str:
    """Return a number with its noun: 1 error, 2 errors."""
    return f"{number} {word}{'' if number == 1 else 's'}"


class Acceptance(Document):
    """The record that a named person accepted the warnings of one examination."""

    digest: str
    warnings: tuple[str, ...]
    query_digest: str | None
    by: str
    at: str


def accept(state: Path, acceptance: Acceptance) -> None:
    """Store that a person accepted the warnings about a table. After a crash the file is complete or does not exist.

    Raises:
        UnavailableError: the disk cannot be written.
    """
    write_whole(_path(state, acceptance.digest), acceptance.model_dump_json(indent=2).encode())


def find_acceptance(state: Path, digest: str) -> Acceptance | None:
    """Return who accepted exactly these warnings, or None. Raises DataError if the stored file is damaged."""
    try:
        found = Acceptance.model_validate_json(_path(state, digest).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        found = None
    if found is None or found.digest != digest:
        raise DataError(
            what="The file that stores who accepted the warnings about the table cannot be read.",
            consequence="Nothing was trained and nothing was sent.",
            remedy=(
                "Check the table again with `site-agent data check`, then accept the warnings again with `site-agent "
                "data accept`."
            ),
        )
    return found


def _path(state: Path, digest: str) -> Path:
    return state / "data" / "accepted" / f"{digest}.json"
