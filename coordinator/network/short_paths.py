"""Unix sockets below paths of any length.

Linux takes no more than 107 characters as a socket's address; by its folder's descriptor any is short enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """The same place by a short path, valid while the block lasts; a socket bound there stays.

    Raises:
        OSError: there is no such folder, or this user may not enter it.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{folder}") / path.name
    finally:
        os.close(folder)
