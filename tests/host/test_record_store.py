"""One file for what a process must not forget: a transaction is there as a whole or not at all, whatever happens."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from host.audit_log import AuditLog, HeadRefused
from host.log_commands import LogProgram, LogSource
from host.record_store import Store, StoreDamaged, StoreError
from protos.errors import ConfigurationError, UsageError
from tests.for_each import for_each

_TICKS = count()


def opened(folder: Path, name: str = "gate.sqlite") -> AuditLog:
    """A site's log, whose clock moves one second at each reading."""
    return AuditLog(
        folder / name, site="ahus", now=lambda: datetime.fromtimestamp(1_770_000_000 + next(_TICKS), tz=UTC)
    )


def filled(folder: Path, records: int = 5) -> Path:
    """The store of a closed log with some records."""
    with closing(opened(folder)) as log:
        for number in range(records):
            log.write("contribution_released", run="heart", round=number)
    return folder / "gate.sqlite"


def exported(folder: Path) -> LogSource:
    """The log as a file that is readable without the program."""
    file = folder / "log.jsonl"
    LogSource(folder / "gate.sqlite", "ahus").export(file)
    return LogSource(file, "ahus", is_export=True)


def test_a_record_is_readable_without_the_program_and_its_chain_verifies(tmp_path: Path) -> None:
    """The exported lines are JSON with the facts, and anybody can check them."""
    filled(tmp_path)

    source = exported(tmp_path)

    assert [json.loads(line)["facts"]["round"] for line in source.path.read_text().splitlines()] == list(range(5))
    assert "5 records" in source.verify(None)
    assert "5 records" in LogSource(tmp_path / "gate.sqlite", "ahus").verify(None)


@pytest.mark.parametrize("act", ["UPDATE records SET line = '{}' WHERE number = 1", "DELETE FROM records"])
def test_a_record_is_never_changed_or_deleted(tmp_path: Path, act: str) -> None:
    """The store itself refuses it."""
    with closing(sqlite3.connect(filled(tmp_path))) as store, pytest.raises(sqlite3.IntegrityError):
        store.execute(act)


@pytest.mark.parametrize("change", ["replace(line, 'heart', 'liver')", "'no record'", "''"])
def test_a_changed_record_is_found_when_the_log_is_opened_and_when_it_is_verified(tmp_path: Path, change: str) -> None:
    """Even if somebody removes the triggers first."""
    source = _exported_lines(filled(tmp_path))
    with closing(sqlite3.connect(tmp_path / "gate.sqlite")) as store:
        store.execute("DROP TRIGGER records_UPDATE")
        try:
            store.execute(f"UPDATE records SET line = {change} WHERE number = 2")
        except sqlite3.OperationalError:  # a line that is no JSON is refused by the index
            return
        store.commit()

    with pytest.raises(StoreError):
        opened(tmp_path)
    assert len(source) == 5


def _exported_lines(path: Path) -> list[bytes]:
    return list(LogSource(path, "ahus").lines())


@for_each("line", range(5))
def test_an_exported_file_without_a_line_or_with_another_one_is_refused(tmp_path: Path, line: int) -> None:
    """A line that was lost, moved or edited breaks the chain. A lost last line is found by the kept head."""
    filled(tmp_path)
    with closing(opened(tmp_path)) as log:
        head = log.own_head
    heads = tmp_path / "heads.json"
    heads.write_text(json.dumps({"ahus": {"count": head.count, "hash": head.hash.hex()}}))
    source = exported(tmp_path)
    lines = source.path.read_bytes().splitlines(keepends=True)
    source.verify(heads)

    for damaged in (lines[:line] + lines[line + 1 :], [*lines[:line], lines[line].replace(b"heart", b"liver")]):
        source.path.write_bytes(b"".join(damaged))
        with pytest.raises(StoreError):
            source.verify(heads)


def test_several_processes_write_one_after_another(tmp_path: Path) -> None:
    """Two open logs of one store have one chain."""
    with closing(opened(tmp_path)) as one, closing(opened(tmp_path)) as other:
        for number in range(20):
            (one if number % 2 else other).write("plan_approved", number=number)

        assert [facts["number"] for _, facts in one.checked()] == list(range(20))


def test_a_second_connection_of_a_process_takes_no_lock_from_the_first(tmp_path: Path) -> None:
    """Otherwise another process that closes the store would delete the file to which the first one still writes."""
    with closing(opened(tmp_path)) as log:
        log.write("plan_approved", number=0)
        opened(tmp_path).close()
        other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM records'); c.close()"
        subprocess.run([sys.executable, "-c", other, str(tmp_path / "gate.sqlite")], check=True)
        log.write("plan_approved", number=1)

        assert (tmp_path / "gate.sqlite-wal").exists()


def test_a_record_is_synced_also_after_an_unsynced_one_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked store must not leave a mode in which later records wait for their sync."""
    monkeypatch.setattr("host.record_store.BUSY_SECONDS", 0.1)
    path = filled(tmp_path)
    with closing(opened(tmp_path)) as log:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError), log.store.transaction(syncs=False):
                pass

        with log.store.transaction():
            assert log.store.read("PRAGMA synchronous") == [(2,)]


def read_only(path: Path) -> None:
    """Nobody may write."""
    path.chmod(0o400)
    path.parent.chmod(0o500)


def _no_database(path: Path) -> None:
    path.write_bytes(b"patients" * 1000)


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_no_database, _a_folder, read_only])
def test_a_store_that_cannot_be_used_is_three_sentences(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Whatever SQLite or the disk says."""
    if damage is read_only and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    path = filled(tmp_path / "gate")
    damage(path)

    try:
        with pytest.raises(StoreError) as refused:
            opened(tmp_path / "gate").write("plan_approved")
        assert refused.value.remedy
    finally:
        (tmp_path / "gate").chmod(0o700)


@pytest.mark.parametrize("left", [1, 50, 99, 100, 511])
def test_a_store_that_was_cut_to_its_first_bytes_is_no_new_one(tmp_path: Path, left: int) -> None:
    """Otherwise a process would begin again as if nothing had ever been sent."""
    path = filled(tmp_path)
    os.truncate(path, left)

    with pytest.raises(StoreDamaged):
        opened(tmp_path)


@pytest.mark.parametrize("change", [(b'"run":', b'"run"!'), (b'"heart"', b'"hea\xfft"')])
def test_a_record_that_is_no_text_or_no_json_is_damage_and_is_not_quoted(
    tmp_path: Path, change: tuple[bytes, bytes]
) -> None:
    """One changed byte on the disk. Another start would not help."""
    path = filled(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(*change, 1))
    assert path.read_bytes() != content

    with pytest.raises(StoreDamaged) as refused:
        opened(tmp_path)
    assert "contribution_released" not in str(refused.value)


@pytest.mark.parametrize("lose", [Path.unlink, partial(os.truncate, length=0)])
def test_a_log_of_writes_without_its_store_is_damage(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    """SQLite would delete the log, which has the newest records, and begin a new store."""
    with closing(opened(tmp_path / "site")) as log:
        log.write("plan_approved")
        shutil.copytree(tmp_path / "site", tmp_path / "copy")
    lose(tmp_path / "copy" / "gate.sqlite")

    with pytest.raises(StoreDamaged):
        opened(tmp_path / "copy")
    assert (tmp_path / "copy" / "gate.sqlite-wal").stat().st_size


def test_a_record_is_not_replaced(tmp_path: Path) -> None:
    """To replace a row is to delete it."""
    filled(tmp_path)
    with closing(opened(tmp_path)) as log:
        before = list(log.lines())
        with pytest.raises(StoreError):
            log.store.write("INSERT OR REPLACE INTO records (number, line) VALUES (0, '{}')")

        assert list(log.lines()) == before


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    """A run that it began would continue without what this version writes beside the audit log."""
    with closing(sqlite3.connect(filled(tmp_path))) as store:
        store.execute("PRAGMA user_version = 0")

    with pytest.raises(StoreError):
        opened(tmp_path)


def test_a_full_store_writes_nothing_of_a_call(tmp_path: Path) -> None:
    """The records before stay, and the caller stops."""
    with closing(opened(tmp_path)) as log:
        log.write("plan_approved")
        log.store.read("PRAGMA max_page_count = 20")

        with pytest.raises(StoreError):
            log.write_all([{"event": "run_joined", "words": "x" * 5000} for _ in range(100)])

        assert [facts["event"] for _, facts in log.checked()] == ["plan_approved"]


def test_a_locked_store_is_waited_for_and_then_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that never ends its transaction must not stop this one without a word."""
    monkeypatch.setattr("host.record_store.BUSY_SECONDS", 0.1)
    path = filled(tmp_path)
    with closing(opened(tmp_path)) as log, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreError, match="another program"):
            log.write("plan_approved")


def test_a_store_that_was_cut_is_refused_or_still_has_whole_records(tmp_path: Path) -> None:
    """Cut at any byte, the file is refused, or its records are a beginning of the ones that were there."""
    path = filled(tmp_path, records=60)
    before, content = _exported_lines(path), path.read_bytes()
    generator = random.Random(1)
    for cut in (0, 100, 4096, *(generator.randrange(len(content)) for _ in range(40))):
        path.write_bytes(content[:cut])
        try:
            with closing(opened(tmp_path)) as log:
                found = list(log.lines())
        except StoreError:
            continue
        assert found == before[: len(found)], cut


# The head that the other program keeps


def both(folder: Path) -> tuple[AuditLog, AuditLog]:
    """A site's log, and the coordinator's, which has just kept the head of the site's."""
    site, coordinator = opened(folder / "site"), opened(folder / "coordinator")
    site.write("plan_approved")
    site.write("contribution_released", round=0)
    told(site, coordinator)
    return site, coordinator


def told(site: AuditLog, coordinator: AuditLog) -> None:
    """What both do at each connection."""
    site.check_own(coordinator.kept_head("ahus"))
    coordinator.check_other("ahus", site.own_head)
    coordinator.keep_head("ahus", site.own_head)


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_log_that_was_copied_back_is_refused_until_a_person_declares_it(tmp_path: Path, more: int) -> None:
    """Also if it has grown beyond the kept head since. After the declaration both sides continue."""
    site, coordinator = both(tmp_path)
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    for number in range(3):
        site.write("contribution_released", round=number + 1)
    told(site, coordinator)

    with closing(opened(tmp_path / "copy")) as older:
        for number in range(more):
            older.write("contribution_released", round=number + 1)
        with pytest.raises(HeadRefused):
            told(older, coordinator)
        older.declare_restored(by="A. Jones", because="disk", account="root")
        told(older, coordinator)
        older.write("plan_approved")
        told(older, coordinator)

    assert [facts["owner"] for facts in coordinator.records("restore_accepted")] == ["ahus"]
    with pytest.raises(HeadRefused):
        told(site, coordinator)


def test_a_second_copy_of_the_time_before_the_declaration_needs_another_one(tmp_path: Path) -> None:
    """The declaration of the first restore does not cover a later one."""
    site, coordinator = both(tmp_path)
    for name in ("first", "second"):
        shutil.copytree(tmp_path / "site", tmp_path / name)
    site.write("contribution_released", round=1)
    told(site, coordinator)
    with closing(opened(tmp_path / "first")) as first:
        first.declare_restored(by="A. Jones", because="disk", account="root")
        told(first, coordinator)

    with closing(opened(tmp_path / "second")) as second:
        with pytest.raises(HeadRefused):
            told(second, coordinator)
        second.declare_restored(by="A. Jones", because="disk again", account="root")
        told(second, coordinator)


def test_an_empty_log_in_the_place_of_a_lost_one_is_refused(tmp_path: Path) -> None:
    """Nobody gets a new beginning in silence."""
    _, coordinator = both(tmp_path)

    with closing(opened(tmp_path / "new")) as new, pytest.raises(HeadRefused):
        told(new, coordinator)


def test_the_other_side_refuses_a_shorter_log_by_itself(tmp_path: Path) -> None:
    """Also if the owner's program does not check it."""
    site, coordinator = both(tmp_path)
    with closing(opened(tmp_path / "new")) as new, pytest.raises(HeadRefused):
        coordinator.check_other("ahus", new.own_head)

    assert coordinator.records("log_refused")[0]["owner"] == "ahus"
    site.close()


def test_a_restore_in_the_future_is_refused(tmp_path: Path) -> None:
    """Once kept, no later restore of an honest program could ever replace it."""
    site, coordinator = both(tmp_path)
    with pytest.raises(HeadRefused, match="future"):
        coordinator.check_other("ahus", replace(site.own_head, restored=1 << 61))

    site.declare_restored(by="A. Jones", because="disk", account="root")
    told(site, coordinator)


def test_the_log_of_another_site_is_refused(tmp_path: Path) -> None:
    """Also if the head of that other site is the only one in the file, or no head of the named site is known."""
    filled(tmp_path)
    with closing(opened(tmp_path)) as log:
        head = {"count": log.head.count, "hash": log.head.hash}
    other, heads = LogSource(exported(tmp_path).path, "st-mary", is_export=True), tmp_path / "heads.json"

    heads.write_text(json.dumps({"ahus": head}))
    with pytest.raises(ConfigurationError):
        other.verify(heads)
    heads.write_text(json.dumps({"ahus": head, "st-mary": {"count": 0, "hash": "0" * 64}}))
    with pytest.raises(StoreError):
        other.verify(heads)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"ahus": {"count": 1e400, "hash": ""}}', '{"ahus": 1}'])
def test_a_file_of_heads_from_the_other_side_may_be_anything(tmp_path: Path, content: str) -> None:
    """It is refused with three sentences."""
    filled(tmp_path)
    (tmp_path / "heads.json").write_text(content)
    with pytest.raises(ConfigurationError):
        exported(tmp_path).verify(tmp_path / "heads.json")


def test_heads_never_replace_a_file(tmp_path: Path) -> None:
    """A file that the other side wrote, or an earlier evidence, stays."""
    filled(tmp_path)
    (tmp_path / "heads.json").write_text("evidence")
    source = LogSource(tmp_path / "gate.sqlite", "ahus")
    group = LogProgram(command="site-agent", file="hospital.yaml", source_of=lambda _: source).group("")
    words = ["heads", "--config", str(tmp_path), "--output", str(tmp_path / "heads.json")]

    assert isinstance(CliRunner().invoke(group, words).exception, UsageError)
    assert (tmp_path / "heads.json").read_text() == "evidence"


def test_an_index_with_other_entries_is_found_when_the_log_is_opened(tmp_path: Path) -> None:
    """Otherwise payments and contributions would be missing in silence, because they are read with this index."""
    with closing(sqlite3.connect(filled(tmp_path))) as store:
        store.execute("CREATE INDEX other ON records (run, number)")
        store.execute("PRAGMA writable_schema = ON")
        roots = dict(store.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'index'"))
        for name, other in (("records_by_event", "other"), ("other", "records_by_event")):
            store.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (roots[other], name))
        store.commit()

    with pytest.raises(StoreError):
        opened(tmp_path)


def test_a_log_that_must_exist_is_not_made(tmp_path: Path) -> None:
    """A missing log proves nothing, and no command hides that."""
    with pytest.raises(ConfigurationError):
        LogSource(tmp_path / "gate.sqlite", "ahus").verify(None)

    assert not (tmp_path / "gate.sqlite").exists()


# Kills

WRITER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from host.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), site="ahus", now=lambda: datetime.now(UTC))
log.store.define("CREATE TABLE IF NOT EXISTS masked (step INTEGER PRIMARY KEY) STRICT")
start = log.head.count
for number in range(start, start + 100_000):
    with log.store.transaction():
        log.store.write("INSERT INTO masked VALUES (?)", number)
        log.write("contribution_released", round=number)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


@for_each("seed", range(3))
def test_a_kill_at_any_moment_leaves_no_contradiction(tmp_path: Path, seed: int) -> None:
    """Every reported step has its record and its row, and each record has its row."""
    path, told_last, generator = tmp_path / "gate.sqlite", -1, random.Random(seed)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(generator.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            told_lines = (first + process.stdout.read()).split("\n")[:-1]
        told_last = max(told_last, *map(int, told_lines))

        with closing(Store(path)) as store, closing(opened(tmp_path)) as log:
            steps = [step for (step,) in store.read("SELECT step FROM masked ORDER BY step")]
            rounds = [facts["round"] for _, facts in log.checked()]
            assert steps == rounds == list(range(len(rounds)))
            assert told_last < len(rounds)
