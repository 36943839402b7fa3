"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put a file of mode 0600 in place of the one before; its folder is there.

    The content is synced beside it, then renamed, then the name is synced. Several processes may do so at once: each
    has a partial file of its own, which is removed where something fails.

    Raises:
        OSError: the disk does not take it; the old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut.

    Raises:
        OSError: the disk does not take them.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
