"""Disks with the faults of real disks: small ones that become full, and read-only ones. Only a user who may mount can
use them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: int = 32) -> Iterator[Path]:
    """A disk in memory with this many megabytes at a new folder. The test is skipped if it may not be mounted."""
    if shutil.which("mount") is None:  # a small Debian 13 has none
        pytest.skip("the program mount is not installed here")
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(place)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a disk of this test's own cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """While the block runs, a disk of this test is read-only, also for the administrator."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True, capture_output=True)


def fill(place: Path, leaving: int) -> Path:
    """Fill a disk except for this many bytes. Return the file that fills it."""
    disk = os.statvfs(place)
    filler = place / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, disk.f_bavail * disk.f_frsize - leaving))
    return filler
