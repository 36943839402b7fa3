"""The budget of records that another member may cause: it bounds, refills, survives, and weakens no checkpoint."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from audit import checkpoint_memory, recording_budget
from audit.cosigning import LogSession
from audit.recording_budget import EACH_DAY_BYTES, RecordingBudget
from protos.wire.log_checkpoints import COORDINATOR, CheckpointRefused
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import LogCosignature, LogGrowth
from tests.audit.audit_sides import NOW, PUBLIC, SITE, Side


class Clock:
    """The time of a test."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        """The time now."""
        return self.time


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until a test moves it."""
    return Clock()


def used_up(budget: RecordingBudget, owner: str = SITE, record_bytes: int = 700) -> int:
    """Use a budget to its end; how many bytes that were."""
    total = 0
    while budget.allows(owner):
        budget.spend(owner, record_bytes)
        total += record_bytes
    return total


def test_a_budget_ends_refills_in_a_day_and_a_restart_gives_nothing(tmp_path: Path, clock: Clock) -> None:
    """However often the program starts again, a member has one budget at first and one more in each day."""
    total = 0
    for _ in range(5):
        total += used_up(RecordingBudget(tmp_path, clock.now))
    assert 0.9 * EACH_DAY_BYTES < total <= EACH_DAY_BYTES + 5 * 700

    clock.time += timedelta(days=0.5)
    half = used_up(RecordingBudget(tmp_path, clock.now))
    clock.time += timedelta(days=9)
    whole = used_up(RecordingBudget(tmp_path, clock.now))

    assert half == pytest.approx(EACH_DAY_BYTES / 2, rel=0.01)
    assert whole == pytest.approx(EACH_DAY_BYTES, rel=0.01)


def test_a_clock_that_is_set_back_gives_nothing_and_blocks_nobody(tmp_path: Path, clock: Clock) -> None:
    """After a correction by a year the budget refills from the corrected time on."""
    budget = RecordingBudget(tmp_path, clock.now)
    used_up(budget)

    clock.time -= timedelta(days=365)
    assert not budget.allows(SITE)
    clock.time += timedelta(hours=1)
    assert budget.allows(SITE)


def test_each_member_has_its_own_budget_and_the_operator_is_told_once_a_day(tmp_path: Path, clock: Clock) -> None:
    """A member that used up its budget takes nothing from another one."""
    told: list[str] = []
    budget = RecordingBudget(tmp_path, clock.now, told.append)
    used_up(budget)
    for _ in range(100):
        assert not budget.allows(SITE)

    assert budget.allows(COORDINATOR)
    assert told == [SITE]
    clock.time += timedelta(days=1)
    used_up(budget)
    assert told == [SITE, SITE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"bytes": "NaN", "time": 0}',
        b'{"bytes": 1e99, "time": "x"}',
        b'{"bytes": -1e99, "time": 0}',
        b'{"bytes": 1' + b"0" * 400 + b', "time": 0}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_refills_from_zero(tmp_path: Path, clock: Clock, content: bytes) -> None:
    """A file that cannot be read never gives a member more."""
    used_up(RecordingBudget(tmp_path, clock.now))
    (file,) = tmp_path.glob("budget-*.json")
    file.write_bytes(content)

    budget = RecordingBudget(tmp_path, clock.now)

    assert not budget.allows(SITE)
    clock.time += timedelta(hours=1)
    assert budget.allows(SITE)


def test_a_file_that_the_disk_does_not_return_allows_nothing(tmp_path: Path, clock: Clock) -> None:
    """The checkpoint waits, and the stream goes on."""
    used_up(RecordingBudget(tmp_path, clock.now))
    (file,) = tmp_path.glob("budget-*.json")
    file.unlink()
    file.mkdir()

    assert not RecordingBudget(tmp_path, clock.now).allows(SITE)


def growth_of(side: Side, start: int) -> LogGrowth:
    """What a side would show from this record on."""
    return LogGrowth(side.party.signed(side.log.position), start, tuple(side.log.leaves(start, 1000)))


def kept_size(witness: Side) -> int:
    """How far the site's log is confirmed."""
    kept = checkpoint_memory.kept_checkpoint(witness.party.folder, SITE)
    assert kept is not None
    return kept.size


def test_a_checkpoint_above_the_budget_waits_and_is_recorded_before_it_is_signed(sides: tuple[Side, Side]) -> None:
    """Nothing is refused: the cosignature comes when the budget allows, for all records of the meantime."""
    site, witness = sides
    session = LogSession(witness.party, SITE, PUBLIC[SITE])
    session.standing()
    used_up(witness.party.budget)
    recorded, confirmed = len(list(witness.log.records("log_witnessed"))), kept_size(witness)
    site.work(30)

    assert session.heard(growth_of(site, confirmed)) == []
    assert session.due() == []
    assert (len(list(witness.log.records("log_witnessed"))), kept_size(witness)) == (recorded, confirmed)
    witness.party.budget.spend(SITE, -EACH_DAY_BYTES)  # time passes
    (cosigned,) = session.due()

    assert isinstance(cosigned, LogCosignature)
    assert cosigned.size == kept_size(witness) == site.log.position.sequence
    assert len(list(witness.log.records("log_witnessed"))) == recorded + 1


def test_a_false_checkpoint_does_not_wait(sides: tuple[Side, Side]) -> None:
    """A log that has parted is refused and on record at once, above the budget, too."""
    site, witness = sides
    session = LogSession(witness.party, SITE, PUBLIC[SITE])
    used_up(witness.party.budget)
    site.work(3)

    with pytest.raises(CheckpointRefused, match="are missing"):
        session.heard(growth_of(site, 1))

    assert [facts["owner"] for facts in witness.log.records("log_refused")] == [SITE]


def test_of_two_futures_that_wait_on_two_streams_one_is_signed(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """What waited is checked again before it is signed, so a fork is found as it is below the budget."""
    site, witness = sides
    start = kept_size(witness)
    shutil.copytree(site.path.parent, tmp_path / "fork")
    fork = Side(tmp_path / "fork", SITE)
    site.work(3)
    fork.work(7)
    one, other = (LogSession(witness.party, SITE, PUBLIC[SITE]) for _ in range(2))
    used_up(witness.party.budget)
    assert one.heard(growth_of(site, start)) == other.heard(growth_of(fork, start)) == []
    witness.party.budget.spend(SITE, -EACH_DAY_BYTES)

    assert len(one.due()) == 1
    with pytest.raises(CheckpointRefused):
        other.due()

    assert [facts["owner"] for facts in witness.log.records("log_refused")] == [SITE]
    fork.log.close()


def test_one_checkpoint_waits_and_no_second_one(sides: tuple[Side, Side]) -> None:
    """An honest owner has one under way at a time, so a second one is a fault and costs no memory."""
    site, witness = sides
    session = LogSession(witness.party, SITE, PUBLIC[SITE])
    used_up(witness.party.budget)
    site.work(3)
    session.heard(growth_of(site, kept_size(witness)))

    with pytest.raises(MalformedMessage, match="while another one waits"):
        session.heard(growth_of(site, kept_size(witness)))


def test_the_own_checkpoint_waits_for_a_witness_without_budget(sides: tuple[Side, Side]) -> None:
    """A cosignature is a record, too: a peer that connects again and again causes none above its budget."""
    site, witness = sides
    used_up(site.party.budget, COORDINATOR)
    site.work(30)
    session = LogSession(site.party, COORDINATOR, PUBLIC[COORDINATOR])

    assert session.heard(LogSession(witness.party, SITE, PUBLIC[SITE]).standing()) == []
    assert session.due() == []
    site.party.budget.spend(COORDINATOR, -EACH_DAY_BYTES)

    assert [type(message) for message in session.due()] == [LogGrowth]


def test_a_record_is_never_larger_than_what_has_to_be_left(sides: tuple[Side, Side]) -> None:
    """The smallest block that is taken from the budget holds each of the two records."""
    for side in sides:
        lines = side.path.read_bytes().splitlines(keepends=True)
        assert max(map(len, lines)) < recording_budget._LEAST_BYTES
