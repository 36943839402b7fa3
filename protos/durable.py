"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Put a file of this mode in place of the one before, whatever the process's own mask; its folder is there.

    The content is synced beside it, then renamed, then the name is synced. Several processes may do so at once: each
    has a partial file of its own, which is removed where something fails. What the administrator writes belongs to
    the folder's owner (`give_to_owner`).

    Raises:
        OSError: the disk does not take it; the old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            give_to_owner(file.fileno(), path.parent)
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder of mode 0700 with those above it; what the administrator makes belongs to the owner above.

    Raises:
        OSError: the disk does not take it.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_to_owner(descriptor, folder.parent)
    finally:
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Where the administrator writes, give what is open to the owner of the folder it lies in.

    Otherwise the service, which runs as that owner, could not read what a command run as root has left there. Of a
    folder that anybody may write to, such as /tmp, nothing follows.
    """
    if os.geteuid() != 0:
        return
    around = folder.stat()
    if not around.st_mode & stat.S_IWOTH:
        with suppress(PermissionError):  # an administrator of a container may lack the right; the file is then theirs
            os.fchown(descriptor, around.st_uid, around.st_gid)


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
