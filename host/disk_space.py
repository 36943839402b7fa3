"""Checks the free space on a disk before something is written.

A disk that fills in the middle of a write leaves a part behind; one that is looked at first leaves everything as it
was. Two reserves keep the order of stopping: what is large stops first, so that the small records which
say why still find room. A disk that fills in between, or a quota that this cannot see, is met by whoever writes.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

RECORDS_RESERVE_BYTES: Final = 1 << 20  # kept free by journal, audit log and ledger
MODELS_RESERVE_BYTES: Final = 8 << 20  # kept free by snapshots, saved states and models


def require_room(folder: Path, wanted_bytes: int, reserve_bytes: int) -> None:
    """Check that the disk of an existing folder has space for this many bytes and for the reserve.

    Raises:
        OSError: ENOSPC, its `strerror` with the figures; or what the operating system says of the folder.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < wanted_bytes + reserve_bytes:
        needed = f"{(wanted_bytes + reserve_bytes) / 1e6:.1f} MB are needed there"
        raise OSError(errno.ENOSPC, f"its disk has {free / 1e6:.1f} MB free, and {needed}")
