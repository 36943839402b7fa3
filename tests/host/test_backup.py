"""A backup: every byte is checked, nothing newer is overwritten, and only its owner can read it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from coordinator.configuration import CoordinatorConfiguration
from coordinator.serve import make_state_directory
from host.backup_archive import Catalogue, read_catalogue, write_backup
from host.restoring import refuse_unfinished, restore
from host.secret_files import LAYOUT, LAYOUT_FILE, settle_layout
from protos.errors import ConfigurationError, UnavailableError
from site_agent.service.joining import join
from tests.for_each import for_each
from tests.rehearsal.lying import hospital_for


def a_state(folder: Path, lines: int = 3) -> Path:
    """A state directory: a log that grows, a key, a model, a lock, a socket's place and what a crash left."""
    (folder / "runs" / "one" / "snapshots").mkdir(parents=True)
    (folder / "keys").mkdir(mode=0o700)
    (folder / "audit.log").write_text("".join(f"line {number}\n" for number in range(lines)))
    (folder / "runs" / "one" / "journal.jsonl").write_text("".join(f"entry {number}\n" for number in range(lines)))
    key = folder / "keys" / "identity.pem"
    key.write_bytes(b"secret")
    key.chmod(0o600)
    (folder / "runs" / "one" / "snapshots" / "before-1.safetensors").write_bytes(os.urandom(3_000_000))
    (folder / ".lock").touch()
    (folder / "half.partial").write_bytes(b"half")
    return folder


def written(state: Path, file: Path) -> Catalogue:
    """A backup of a state."""
    return write_backup(
        file, {"state": state}, program="coordinator", name="", made="2026-01-01", software="1", key=bytes(32)
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder that a backup holds."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".partial", ""))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != ".lock"}


def brought_back(file: Path, state: Path) -> list[Path]:
    """The former place of the state that a restored backup has replaced."""
    unmarked: Mapping[str, Path] = {"state": state}
    return restore(file, read_catalogue(file, bytes(32)), unmarked, stamp="now", mark=lambda _: None)


def test_what_is_restored_is_what_was_there(tmp_path: Path) -> None:
    """Contents and modes are restored. Only its owner can read the file. Locks and incomplete files are excluded."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    written(state, file)
    before = contents(state)
    shutil.rmtree(state)

    assert brought_back(file, state) == []

    assert contents(state) == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "keys" / "identity.pem").stat().st_mode) == 0o600
    assert not (state / ".lock").exists()
    assert not list(tmp_path.rglob("*.partial"))
    with tarfile.open(file) as archive:  # readable without this program
        assert "state/keys/identity.pem" in archive.getnames()


@for_each("seed", range(12))
def test_a_changed_backup_is_refused(tmp_path: Path, seed: int) -> None:
    """A flipped bit in any content or in the list, and a cut at any place, is detected before anything is written."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    written(state, file)
    content, luck = file.read_bytes(), np.random.default_rng(seed)
    with tarfile.open(file) as archive:
        members = [member for member in archive.getmembers() if member.isreg()]
    member = members[seed % len(members)]
    place = member.offset_data + int(luck.integers(member.size))
    flipped = bytearray(content)
    flipped[place] ^= 1 << int(luck.integers(8))
    cut = content[: int(luck.integers(len(content) - 20_480))]

    for damaged in (bytes(flipped), cut, b""):
        file.write_bytes(damaged)
        with pytest.raises(ConfigurationError) as refused:
            read_catalogue(file, bytes(32))
        assert refused.value.consequence == "Nothing was written or changed."


@pytest.mark.parametrize("change", ["grew", "forked", "of a site", "new run"])
def test_a_newer_state_is_not_overwritten(tmp_path: Path, change: str) -> None:
    """If a log or journal here has lines that the backup lacks, nothing is changed and the newer file is named."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    written(state, file)
    match change:
        case "grew":
            with (state / "audit.log").open("a") as log:
                log.write("one more\n")
        case "forked":
            (state / "audit.log").write_text("line 0\nline 1\nline X\n")
        case "of a site":
            (state / "gate").mkdir()
            (state / "gate" / "audit.log").write_text("line 0\n")
        case _:
            (state / "runs" / "two").mkdir()
            (state / "runs" / "two" / "journal.jsonl").write_text("entry 0\n")
    before = contents(state)

    with pytest.raises(ConfigurationError, match="has records that the backup does not have"):
        brought_back(file, state)

    assert contents(state) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.backup", "state"]


def test_an_older_state_gives_way_and_is_kept(tmp_path: Path) -> None:
    """A backup that continues the present logs is restored, and the earlier state is stored beside it."""
    state, file = a_state(tmp_path / "state", lines=5), tmp_path / "one.backup"
    written(state, file)
    newer = contents(state)
    shutil.rmtree(state)
    a_state(state, lines=2)

    (before,) = brought_back(file, state)

    assert contents(state) == newer
    assert (before / "audit.log").read_text() == "line 0\nline 1\n"


def test_a_backup_replaces_none_and_follows_no_link(tmp_path: Path) -> None:
    """An existing file is not changed, a link in the state is refused, and no incomplete file remains."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    file.write_text("another")
    with pytest.raises(ConfigurationError, match="exists already"):
        written(state, file)
    (state / "link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigurationError, match="is a link"):
        written(state, tmp_path / "two.backup")

    assert file.read_text() == "another"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.backup", "state"]


def test_a_state_of_another_layout_is_refused(tmp_path: Path) -> None:
    """A new state gets its number. A state of another layout or of another program is refused and not changed."""
    settle_layout(tmp_path, "coordinator")
    settle_layout(tmp_path, "coordinator")

    other = f'{{"program": "site agent", "format": {LAYOUT}}}'
    for content in (f'{{"program": "coordinator", "format": {LAYOUT - 1}}}', '{"format": 1}', "", other):
        (tmp_path / LAYOUT_FILE).write_text(content)
        with pytest.raises(ConfigurationError):
            settle_layout(tmp_path, "coordinator")
        assert (tmp_path / LAYOUT_FILE).read_text() == content


def test_a_backup_for_which_there_is_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is checked first: three sentences with the figures, and no file."""
    state = a_state(tmp_path / "state")
    full = os.statvfs_result((4096, 4096, 1000, 100, 100, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)

    with pytest.raises(UnavailableError, match=r"0\.4 MB free"):
        written(state, tmp_path / "one.backup")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_a_backup_is_made_where_a_disk_knows_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finished file is renamed to a name that was reserved before: FAT and many network drives link nothing."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    written(state, file)

    assert read_catalogue(file, bytes(32)).program == "coordinator"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_that_is_taken_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file that appears during the backup stays. If the rename fails, no empty file remains."""
    state, taken, free = a_state(tmp_path / "state"), tmp_path / "taken.backup", tmp_path / "free.backup"

    def take(*_: object) -> None:
        taken.write_bytes(b"another")

    monkeypatch.setattr("host.backup_archive.require_room", take)
    with pytest.raises(UnavailableError, match="File exists"):
        written(state, taken)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("host.backup_archive.require_room", lambda *_: None)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UnavailableError, match="Input/output error"):
        written(state, free)

    assert taken.read_bytes() == b"another"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["state", "taken.backup"]


def test_a_failed_restore_does_not_advise_to_remove_the_earlier_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the second rename fails, the remedy names the unfinished folder alone, and a second try succeeds."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    written(state, file)
    before, rename = contents(state), os.rename

    def fail(source: str, target: str, **places: int) -> None:
        if target == "state":
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target, **places)

    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", fail)
        with pytest.raises(UnavailableError) as failed:
            brought_back(file, state)
    (named,) = re.findall(r"whose name ends with (\.[\w-]+)\.", failed.value.remedy)
    shutil.rmtree(tmp_path / f"state{named}")
    brought_back(file, state)

    assert contents(tmp_path / "state.before-restore-now") == before
    assert contents(state) == before


def test_a_disk_that_is_mounted_as_the_state_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mount point can be renamed. A folder on the disk can."""
    state, file = a_state(tmp_path / "state"), tmp_path / "one.backup"
    written(state, file)
    monkeypatch.setattr(Path, "is_mount", lambda place: place == state)

    with pytest.raises(ConfigurationError, match="is the mount point of a disk") as refused:
        brought_back(file, state)

    assert f"such as {state / 'state'}" in refused.value.remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.backup", "state"]


def test_a_mounted_folder_of_the_same_disk_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's volume can be such a folder. Only the kernel's list of mounts shows it."""
    state, file, mounts = a_state(tmp_path / "a state"), tmp_path / "one.backup", tmp_path / "mountinfo"
    written(state, file)
    place = str(state.resolve()).replace(" ", "\\040")
    mounts.write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 8:1 /volume {place} rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr("host.restoring._MOUNTS", mounts)

    with pytest.raises(ConfigurationError, match="is the mount point of a disk"):
        brought_back(file, state)

    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    brought_back(file, state)


@pytest.mark.parametrize("is_made", ["", ".", "gate"])
def test_nothing_begins_beside_a_restore_that_was_cut_short(tmp_path: Path, is_made: str) -> None:
    """Between the two renames there is no state.

    A program would make new keys, so it must wait until the state is back.
    """
    state = a_state(tmp_path / "state")
    refuse_unfinished(state)
    (tmp_path / "state.restoring-20260301T120000").mkdir()
    refuse_unfinished(state)
    state.rename(tmp_path / "state.before-restore-20260301T120000")
    if is_made:  # by a service manager, with the folders of a package
        (state / is_made).mkdir(parents=True)
        (state / is_made / ".lock").touch()

    with pytest.raises(ConfigurationError, match="was interrupted"):
        refuse_unfinished(state)
    configuration = CoordinatorConfiguration.model_construct(state=str(state))
    with pytest.raises(ConfigurationError, match="was interrupted"):
        make_state_directory(configuration)
    with pytest.raises(ConfigurationError, match="was interrupted"):
        asyncio.run(join(hospital_for(tmp_path), tmp_path / "hospital.yaml"))

    assert not (state / "keys").exists()
