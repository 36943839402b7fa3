"""Computes the memory limit of this process: the computer's memory, or the limit of its control group if lower."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def usable_memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the least of the computer's memory and the limits (memory.max) of this process's control groups.

    Memory that other processes use now is not subtracted, so a later start gets the same result.

    Args:
        groups: where the control groups of version 2 are mounted.
        own: the file that names this process's group.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        group = next((line[4:] for line in own.read_text().splitlines() if line.startswith("0::/")), "")
        for place in (PurePosixPath(group), *PurePosixPath(group).parents):
            with suppress(OSError, ValueError):  # there is no limit, or the word max
                limits.append(int((groups / place / "memory.max").read_text()))
    return min(limits)
