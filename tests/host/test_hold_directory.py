"""Only one program uses a state directory."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from host.secret_files import hold_directory, holder_of
from protos.errors import ConfigurationError


def test_a_directory_is_held_by_one_until_it_ends(tmp_path: Path) -> None:
    """A second program is refused while the first one runs, and taken when it has gone."""
    first = hold_directory(tmp_path, "site agent")

    with pytest.raises(ConfigurationError, match="already runs"):
        hold_directory(tmp_path, "site agent")

    os.close(first)
    os.close(hold_directory(tmp_path, "site agent"))


def test_a_look_at_the_lock_stops_no_program_that_starts(tmp_path: Path) -> None:
    """`status` and `doctor` lock the directory for a moment, to find out whether a program has it."""
    os.close(hold_directory(tmp_path, "site agent"))
    look = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, [look]).start()

    os.close(hold_directory(tmp_path, "site agent"))


def test_only_the_process_that_has_this_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the same inode number on another disk belongs to another program, which nobody may end."""
    held = hold_directory(tmp_path, "site agent")
    file = os.fstat(held)
    of_another = f"1: FLOCK  ADVISORY  WRITE 4711 fe:fe:{file.st_ino} 0 EOF"
    monkeypatch.setattr(Path, "read_text", lambda _: of_another)

    assert holder_of(tmp_path) == 0

    os.close(held)
    assert holder_of(tmp_path) is None
