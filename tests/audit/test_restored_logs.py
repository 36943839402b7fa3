"""A person restores a backup: the log begins again, and the other side accepts it. It shows whether it was older."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from audit import checkpoint_memory
from audit.log_files import files_set_aside, set_aside
from audit.own_log import AuditError
from audit.restarting import restart_log
from audit.rolled_back import lacks_confirmed
from protos.wire.log_checkpoints import COORDINATOR, CheckpointRefused
from tests.audit.audit_sides import NOW, SITE, Side, meet


def met(folder: Path) -> tuple[Side, Side]:
    """A site and the coordinator, which have cosigned each other's logs."""
    sides = []
    for name, owner in (("site", SITE), ("coordinator", COORDINATOR)):
        (folder / name).mkdir()
        sides.append(Side(folder / name, owner))
        sides[-1].work()
    meet(*sides)
    return sides[0], sides[1]


def restored(side: Side, backup: Path, seconds: float = 0.0) -> Side:
    """The side after `restore`, in place of its lost folder."""
    place = side.path.parent
    shutil.rmtree(place)
    shutil.copytree(backup, place)
    site = None if side.owner == COORDINATOR else side.owner.removeprefix("site/")
    at = NOW + timedelta(seconds=seconds)
    restart_log(place / "audit.log", site=site, by="root", because="restored", now=lambda: at, backup="then")
    return Side(place, side.owner)


@pytest.mark.parametrize("owner", [SITE, COORDINATOR])
@pytest.mark.parametrize("later", [0, 7])
def test_a_restored_log_is_accepted_and_shows_whether_it_lacks_records(tmp_path: Path, owner: str, later: int) -> None:
    """Both programs go on. Only an older backup lacks records that the other side has confirmed."""
    sides = met(tmp_path)
    lost, other = sides if owner == SITE else sides[::-1]
    shutil.copytree(lost.path.parent, tmp_path / "backup")
    if later:
        lost.work(later)
        meet(lost, other)

    again = restored(lost, tmp_path / "backup")
    kept = checkpoint_memory.kept_checkpoint(other.party.folder, owner)
    lacks = lacks_confirmed(again.own, kept)
    meet(again, other)

    assert lacks is (later > 0)
    newest = checkpoint_memory.kept_checkpoint(other.party.folder, owner)
    assert newest is not None
    assert newest.generation == again.own.generation > 1
    assert newest.position == again.own.position_at(newest.size)
    begun = next(again.own.records("log_began_anew"))
    assert (begun["by"], begun["backup"]) == ("root", "then")
    assert [facts["generation"] for facts in other.own.records("log_witnessed")][-1] == again.own.generation
    assert len(list(again.own.earlier_records("contribution_released"))) == 5


def test_one_backup_can_be_restored_twice(tmp_path: Path) -> None:
    """The second restored log has a higher generation than the first one, which nobody can read any more."""
    site, coordinator = met(tmp_path)
    shutil.copytree(site.path.parent, tmp_path / "backup")
    first = restored(site, tmp_path / "backup")
    first.work(7)
    meet(first, coordinator)
    generation = first.own.generation

    second = restored(first, tmp_path / "backup", seconds=60)
    lacks = lacks_confirmed(second.own, checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE))
    meet(second, coordinator)

    assert lacks
    assert second.own.generation > generation


@pytest.mark.parametrize("later", [0, 7])
def test_a_backup_of_a_restored_state_hides_nothing(tmp_path: Path, later: int) -> None:
    """Restored twice before it connects, a state is still compared with the log of its first backup."""
    site, coordinator = met(tmp_path)
    shutil.copytree(site.path.parent, tmp_path / "backup")
    site.work(later)
    meet(site, coordinator)
    first = restored(site, tmp_path / "backup")
    second = restored(first, shutil.copytree(first.path.parent, tmp_path / "again"), seconds=60)

    lacks = lacks_confirmed(second.own, checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE))

    assert lacks is (later > 0)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_line_that_a_crash_cut_is_no_missing_record(tmp_path: Path, lost: int) -> None:
    """A backup can have the rest of a line at the end of its log. Only a confirmed record that is missing counts."""
    site, coordinator = met(tmp_path)
    backup = shutil.copytree(site.path.parent, tmp_path / "backup")
    kept = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
    assert kept is not None
    lines = (backup / "audit.log").read_bytes().splitlines(keepends=True)[: kept.size - lost + 1]
    (backup / "audit.log").write_bytes(b"".join(lines[:-1]) + lines[-1][:-7])

    again = restored(site, backup)

    assert lacks_confirmed(again.own, kept) is (lost > 0)


def test_the_newest_backup_no_longer_helps_after_an_older_one_was_confirmed(tmp_path: Path) -> None:
    """The coordinator keeps one checkpoint of the site's log, and it is in none of the earlier backups."""
    site, coordinator = met(tmp_path)
    older = shutil.copytree(site.path.parent, tmp_path / "older")
    site.work(7)
    meet(site, coordinator)
    newest = shutil.copytree(site.path.parent, tmp_path / "newest")
    again = restored(site, older)
    meet(again, coordinator)

    last = restored(again, newest, seconds=60)

    assert lacks_confirmed(last.own, checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE))


def test_a_log_that_a_person_restarted_is_not_called_older(tmp_path: Path) -> None:
    """A damaged disk alone loses no privacy budget."""
    site, coordinator = met(tmp_path)
    site.own.close()
    restart_log(site.path, site="berlin", by="A. Jones", because="disk failed", now=lambda: NOW)

    again = Side(site.path.parent, SITE)

    assert not lacks_confirmed(again.own, checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE))


def test_the_coordinator_cannot_invent_the_checkpoint_that_a_restored_log_lacks(tmp_path: Path) -> None:
    """Otherwise it could make a restored site count its privacy budget as spent."""
    site, coordinator = met(tmp_path)
    again = restored(site, shutil.copytree(site.path.parent, tmp_path / "backup"))
    forged = coordinator.own.signed(1, coordinator.own.position)

    with pytest.raises(CheckpointRefused, match="did not sign"):
        lacks_confirmed(again.own, forged)


def test_a_copied_folder_is_refused_and_the_reason_names_the_log(tmp_path: Path) -> None:
    """Only a person's act, restore or audit restart, begins a new log."""
    site, coordinator = met(tmp_path)
    shutil.copytree(coordinator.path.parent, tmp_path / "copy")
    coordinator.work(7)
    meet(site, coordinator)

    with pytest.raises(CheckpointRefused, match="the coordinator's audit log differs"):
        meet(Side(tmp_path / "copy", COORDINATOR), site)


@pytest.mark.parametrize(("blocks", "files"), [(100, 10), (1 << 20, 0)])
def test_a_full_disk_leaves_the_log_that_a_person_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int
) -> None:
    """Without its log a site would begin one of the first generation, and the coordinator would refuse that."""
    side = Side(tmp_path, SITE)
    side.work()
    full = os.statvfs_result((4096, 4096, 1 << 21, blocks, blocks, 1000, files, files, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)

    with pytest.raises(AuditError, match=r"run this command again before you start the program"):
        restart_log(side.path, site="berlin", by="A. Jones", because="disk failed", now=lambda: NOW)

    assert files_set_aside(side.path) == []
    assert len(list(Side(tmp_path, SITE).own.records("contribution_released"))) == 5


def test_two_logs_of_one_second_are_both_kept_in_their_sequence(tmp_path: Path) -> None:
    """A file that was set aside is evidence, and never replaced."""
    path = tmp_path / "audit.log"
    for number in range(3):
        Side(tmp_path, SITE).write("contribution_released", round=number)
        set_aside(path, NOW)

    assert len(files_set_aside(path)) == 3
    earlier = Side(tmp_path, SITE).own.all_records("contribution_released")
    assert [facts["round"] for facts in earlier] == [0, 1, 2]
