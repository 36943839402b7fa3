"""A file is replaced completely or not at all, and only one program uses a state directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host.durable import make_folder, replace_file
from host.secret_files import hold_directory
from protos.errors import ConfigurationError


def test_a_file_is_replaced_with_a_private_one(tmp_path: Path) -> None:
    """The new content has mode 0600, whatever the umask and the old file's mode. No other file remains beside it."""
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        replace_file(path, b"new")
    finally:
        os.umask(before)

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_where_the_disk_refuses_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A failure at either step leaves the old bytes, and no partial file."""
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refuse)

    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_names_of_new_folders_outlast_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder in which another was made is synced, because otherwise files below it could be lost with it."""
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))

    make_folder(tmp_path / "runs" / "study")

    assert synced == {tmp_path.stat().st_ino, (tmp_path / "runs").stat().st_ino}


def test_a_directory_is_held_by_one_until_it_ends(tmp_path: Path) -> None:
    """A second program is refused while the first one runs, and taken when it has gone."""
    first = hold_directory(tmp_path, "site agent")

    with pytest.raises(ConfigurationError, match="already runs"):
        hold_directory(tmp_path, "site agent")

    os.close(first)
    os.close(hold_directory(tmp_path, "site agent"))
