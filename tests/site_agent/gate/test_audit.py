"""The audit log on disk: every change is detected, and a crash loses no written record."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.own_log import AuditError, AuditLog
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys
from protos.errors import ConfigurationError
from protos.wire.log_chain import LogPosition, append

RECORDS = 6


def now() -> datetime:
    """A moment."""
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def opened(path: Path) -> AuditLog:
    """The log at a path."""
    return AuditLog(path, site="a", now=now)


def verify_log(path: Path) -> LogPosition:
    """Return the position of a log, after checking all of it."""
    return Desk(path, "site/a", KnownKeys()).verification().position


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with six records."""
    log = opened(tmp_path / "audit.log")
    for number in range(RECORDS):
        log.write("something_happened", number=number)
    log.close()
    return tmp_path / "audit.log"


def lines(path: Path) -> list[bytes]:
    """The lines of a log."""
    return path.read_bytes().splitlines(keepends=True)


def recomputed(content: list[bytes], start: int) -> list[bytes]:
    """Return a chain that an expert has rewritten from a line on."""
    position = LogPosition()
    made = []
    for number, line in enumerate(content):
        record = json.loads(line)
        facts = record["facts"] | ({"number": 99} if number == start else {})
        position, _, new = append(position, facts, bytes.fromhex(record["salt"]))
        made.append(new)
    return made


def test_an_untouched_log_is_whole(path: Path) -> None:
    """The checkpoint names the number of records and the last one's hash."""
    position = verify_log(path)

    assert position.sequence == RECORDS
    assert position.hash == json.loads(lines(path)[-1])["hash"]


@pytest.mark.parametrize("line", range(RECORDS))
def test_a_flipped_digit_shows_in_its_line(path: Path, line: int) -> None:
    """A fact that was changed by one character breaks the chain at its line."""
    content = lines(path)
    content[line] = content[line].replace(b'"number":%d' % line, b'"number":%d' % (line + 1))
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError, match=f"line {line + 1}: "):
        verify_log(path)


@pytest.mark.parametrize("byte", range(0, 320, 7))
def test_a_flipped_bit_shows_wherever_it_is(path: Path, byte: int) -> None:
    """Any changed byte of a line breaks the chain."""
    content = lines(path)
    changed = bytearray(content[2])
    changed[byte % (len(changed) - 1)] ^= 1
    content[2] = bytes(changed)
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError):
        verify_log(path)


@pytest.mark.parametrize("line", range(RECORDS - 1))
def test_a_deleted_record_shows(path: Path, line: int) -> None:
    """A removed record breaks the chain at the record after it."""
    content = lines(path)
    del content[line]
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError, match=f"line {line + 1}: .*removed"):
        verify_log(path)


@pytest.mark.parametrize("line", range(RECORDS - 1))
def test_swapped_records_show(path: Path, line: int) -> None:
    """Two records in another order break the chain."""
    content = lines(path)
    content[line], content[line + 1] = content[line + 1], content[line]
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError, match=f"line {line + 1}: "):
        verify_log(path)


@pytest.mark.parametrize("line", range(RECORDS))
def test_a_record_written_twice_shows(path: Path, line: int) -> None:
    """A repeated record breaks the chain."""
    content = lines(path)
    content.insert(line, content[line])
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError, match=f"line {line + 2}: "):
        verify_log(path)


def test_an_inserted_field_shows(path: Path) -> None:
    """An added field, which a person would read and no hash covers, is detected."""
    content = lines(path)
    content[1] = content[1].replace(b'{"facts"', b'{"approved":true,"facts"')
    path.write_bytes(b"".join(content))

    with pytest.raises(AuditError, match="line 2: "):
        verify_log(path)


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_torn_line_shows_and_is_set_aside_when_the_log_is_opened(path: Path, cut: int) -> None:
    """After a crash during a write, the incomplete part is stored beside the log, and the chain continues before it."""
    whole = lines(path)
    path.write_bytes(b"".join(whole)[:-cut])
    with pytest.raises(AuditError, match=f"line {RECORDS}: "):
        verify_log(path)

    log = opened(path)
    log.write("started_again")
    log.close()

    assert verify_log(path).sequence == RECORDS
    assert lines(path)[: RECORDS - 1] == whole[: RECORDS - 1]
    (torn,) = path.parent.glob("audit.log.torn-*")
    assert torn.read_bytes() == whole[-1][:-cut]
    assert stat.S_IMODE(torn.stat().st_mode) == 0o600


def test_two_torn_tails_are_both_kept(path: Path) -> None:
    """A second crash within the same second does not overwrite what the first one left."""
    for tail in (b"first", b"second"):
        with path.open("ab") as file:
            file.write(tail)
        opened(path).close()

    assert sorted(torn.read_bytes() for torn in path.parent.glob("audit.log.torn-*")) == [b"first", b"second"]


def tampered_flip(content: list[bytes]) -> list[bytes]:
    """One digit."""
    return [content[0].replace(b'"number":0', b'"number":7'), *content[1:]]


@pytest.mark.parametrize("tamper", [tampered_flip, lambda content: content[1:]], ids=["flip", "delete"])
def test_a_log_that_was_changed_is_not_opened(path: Path, tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    """The agent does not start on a broken chain; it does not correct it either."""
    path.write_bytes(b"".join(tamper(lines(path))))
    before = path.read_bytes()

    with pytest.raises(AuditError, match="Nothing more is sent"):
        opened(path)

    assert path.read_bytes() == before


def test_a_log_that_becomes_shorter_under_a_running_agent_stops_it(path: Path) -> None:
    """A cut end, which a chain alone cannot show, is detected by the process that wrote it."""
    log = opened(path)
    path.write_bytes(b"".join(lines(path)[:-2]))

    with pytest.raises(AuditError, match="shorter"):
        log.write("something_else")
    log.close()


def test_a_recomputed_chain_stops_the_agent_that_goes_on_with_it(path: Path) -> None:
    """A person who rewrites the log under a running agent and adds to it is detected at the agent's next record."""
    log = opened(path)
    content = recomputed(lines(path), 2)
    _, _, more = append(LogPosition(RECORDS, json.loads(content[-1])["hash"]), {"event": "made_up"}, bytes(16))
    path.write_bytes(b"".join([*content, more]))
    assert verify_log(path).sequence == RECORDS + 1  # whole in itself

    with pytest.raises(AuditError):
        log.write("something_else")
    log.close()


def _write_many(path: Path, name: str, count: int) -> None:
    log = opened(path)
    for number in range(count):
        log.write("written", by=name, number=number)
    log.close()


def test_two_processes_keep_one_chain(tmp_path: Path) -> None:
    """Records of an agent and of a person's command interleave into one unbroken chain, none lost."""
    path, count = tmp_path / "audit.log", 60
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, name, count)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    assert [writer.exitcode for writer in writers] == [0, 0]
    assert verify_log(path).sequence == 2 * count
    facts = [json.loads(line)["facts"] for line in lines(path)]
    for name in ("one", "two"):
        assert [fact["number"] for fact in facts if fact["by"] == name] == list(range(count))


@pytest.mark.parametrize("written", [0, 1, 40])
def test_a_short_write_leaves_no_part_of_a_record(path: Path, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that becomes full in the middle of a line leaves the earlier log unchanged."""
    log = opened(path)
    before, real = path.read_bytes(), os.write

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: real(file, line[:written]))
        with pytest.raises(AuditError, match="cannot be written"):
            log.write("something_else")
    assert path.read_bytes() == before

    log.write("something_else")
    log.close()
    assert verify_log(path).sequence == RECORDS + 1


def test_the_log_is_for_its_owner_only(path: Path) -> None:
    """Nobody else may read it."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_log_that_cannot_be_made_is_an_error_in_three_sentences(tmp_path: Path) -> None:
    """If the state directory cannot contain a log, nothing is sent, and the operator reads why."""
    (tmp_path / "file").write_text("")

    with pytest.raises(AuditError, match="Nothing was sent"):
        opened(tmp_path / "file" / "audit.log")


def test_a_log_that_is_missing_is_told_so(tmp_path: Path) -> None:
    """Without a log nothing is verified, and the operator reads that an absent log proves nothing."""
    with pytest.raises(ConfigurationError, match=r"There is no audit log at .*proves nothing"):
        verify_log(tmp_path / "audit.log")
