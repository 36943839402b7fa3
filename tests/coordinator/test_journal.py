"""The journal: synced lines are there, an incomplete end is moved aside, and every other fault is refused."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.storage.journal import Entry, Journal, JournalDamaged, read_journal
from protos.errors import UnavailableError


def opened(path: Path) -> Journal:
    """The journal, with a clock that stands still."""
    return Journal(path, lambda: datetime(2026, 1, 1, tzinfo=UTC))


def entries_of(path: Path) -> list[Entry]:
    """Open the journal as a restarted program does. Return its lines."""
    opened(path).close()
    return list(read_journal(path))


def written(path: Path, count: int = 5) -> bytes:
    """A journal of this number of decisions, and its bytes."""
    journal = opened(path)
    for number in range(count):
        journal.add("offered", round=number, sites=["a", "b"])
    journal.sync()
    journal.close()
    return path.read_bytes()


def test_what_was_synced_is_read_back_in_order(tmp_path: Path) -> None:
    """Over several openings entries and their numbers go on where they ended; what was not synced never was."""
    path = tmp_path / "run" / "journal.jsonl"
    written(path, 2)
    journal = opened(path)
    journal.add("closed", round=1)
    journal.sync()
    journal.add("offered", round=2)
    journal.close()

    entries = entries_of(path)
    assert [(entry["line"], entry["kind"]) for entry in entries] == [(0, "offered"), (1, "offered"), (2, "closed")]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_end_is_set_aside_at_every_length(tmp_path: Path) -> None:
    """After a power cut in the last line, the lines before it are read, and its part is stored beside them."""
    path = tmp_path / "journal.jsonl"
    content = written(path)
    whole = content.rindex(b"\n", 0, -1) + 1

    for length in range(whole + 1, len(content)):
        path.write_bytes(content[:length])
        assert len(entries_of(path)) == 4
        (torn,) = tmp_path.glob("journal.jsonl.torn-*")
        assert torn.read_bytes() == content[whole:length]
        torn.unlink()


def test_any_flipped_bit_in_a_whole_line_is_refused(tmp_path: Path) -> None:
    """Also in the last one: a decision that took effect must not be half believed."""
    path = tmp_path / "journal.jsonl"
    content = written(path, 3)

    for place in range(len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(JournalDamaged) as damaged:
            opened(path)
        assert damaged.value.consequence.startswith("The coordinator did not continue the run")


@pytest.mark.parametrize("fault", ["lost", "twice", "exchanged", "first lost"])
def test_lines_that_were_lost_doubled_or_exchanged_are_refused(tmp_path: Path, fault: str) -> None:
    """Each line follows on the one before."""
    path = tmp_path / "journal.jsonl"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "lost": lines[:2] + lines[3:],
        "twice": lines[:2] + lines[1:],
        "exchanged": [lines[1], lines[0], *lines[2:]],
        "first lost": lines[1:],
    }[fault]

    path.write_bytes(b"".join(changed))

    with pytest.raises(JournalDamaged):
        list(read_journal(path))


def test_a_full_disk_stops_the_decision_and_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete decision is no decision: three sentences, and the next program reads the earlier lines."""
    path = tmp_path / "journal.jsonl"
    before = written(path)
    journal = opened(path)
    journal.add("offered", round=9)
    honest = os.write
    monkeypatch.setattr(os, "write", lambda file, content: honest(file, content[: len(content) // 2]))

    with pytest.raises(UnavailableError, match=os.strerror(errno.ENOSPC)):
        journal.sync()

    assert path.read_bytes() == before
