"""Writes files, so that after a power cut a file has its old or its new content. Root follows no other user's link.

If root wrote through a symbolic link in a service's folder, the service's user could make root write any file, or give
it away. So folders are opened step by step, and files are made, renamed and given away relative to the open folder
(`opened_folder`).

The free space of the disk is checked before a file is written (`require_room`), so that a full disk changes nothing.
A reserve makes large files stop first. Then small records, which say why, still have space. A disk that fills after
the check is an error of the write.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Final

from protos.errors import ConfigurationError, OperatorError, UnavailableError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DESCRIPTORS: Final = ("/", "proc", "self", "fd")
_MOST_LINKS: Final = 40  # the largest number that the kernel follows in one path


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a folder, so that files in this folder can be opened. Root follows only root's own links.

    Raises:
        ConfigurationError: the process is root, and the path has another user's symbolic link.
        OSError: there is no such folder, or it cannot be read.
    """
    descriptor = _opened_by_steps(folder) if os.geteuid() == 0 else os.open(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def by_descriptor(folder: int) -> Path:
    """Return a path to an open folder. The path stays correct even if the folder is renamed."""
    return Path(*_DESCRIPTORS, str(folder))


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file by a file with exactly this content and mode. The folder of the file must exist.

    A partial file is written and synced, then renamed, then the name is synced. Several processes can do this at once,
    because each has its own partial file, which is removed after an error. A file that root writes is given to the
    folder's owner (`give_to_owner`).

    Raises:
        ConfigurationError: as `opened_folder`.
        OSError: the disk cannot be written; the old file is unchanged.
    """
    with opened_folder(path.parent) as folder:
        replace_in(folder, path.name, content, partial=f".{path.name}.{secrets.token_hex(8)}.partial", mode=mode)


def replace_in(folder: int, name: str, content: bytes, *, partial: str, mode: int, is_new: bool = False) -> None:
    """Replace a file in an open folder. First write the content to the unused name `partial`. See `replace_file`.

    With `is_new` it is an error if the file exists.

    Raises:
        OSError: the disk cannot be written; the old file is unchanged.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "wb") as file:
            give_to_owner(file.fileno(), folder)
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        put = os.link if is_new else os.replace  # os.link fails if the name is taken, os.replace does not
        put(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
    os.fsync(folder)


def new_file(path: Path) -> int:
    """Create a file with mode 0600, and return its open descriptor. If root does this, the folder's owner owns it.

    Raises:
        ConfigurationError: as `opened_folder`.
        OSError: the name is taken, the folder does not exist, or the disk cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened_folder(path.parent) as folder:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        give_to_owner(descriptor, folder)
    return descriptor


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Create a folder and its parents, and sync their names. If root does this, the parent folder's owner owns it.

    `mode` is the mode of this folder, whatever the process's mask. The folders above it get mode 0700.

    Raises:
        ConfigurationError: as `opened_folder`.
        OSError: the disk cannot be written.
    """
    if folder.is_dir():  # behind another user's link, the first write is refused
        return
    with suppress(FileNotFoundError), opened_folder(folder):  # another user's link may also have no target
        return
    make_folder(folder.parent)
    with opened_folder(folder.parent) as above:
        with suppress(FileExistsError):
            os.mkdir(folder.name, 0o700, dir_fd=above)
        descriptor = os.open(folder.name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        try:
            give_to_owner(descriptor, above)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.fsync(above)


def give_to_owner(descriptor: int, folder: int) -> None:
    """Make the owner of an open folder the owner of an open file in this folder, if this process is root.

    Otherwise the service, which runs as that owner, could not read the file. A folder that anybody can write to, such
    as /tmp, gives no owner. A file with a second name can belong to anybody, so it is not given away.
    """
    if os.geteuid() != 0:
        return
    around, given = os.fstat(folder), os.fstat(descriptor)
    has_second_name = not stat.S_ISDIR(given.st_mode) and given.st_nlink != 1
    if not around.st_mode & stat.S_IWOTH and not has_second_name:
        # An administrator of a container may lack the permission. Then the file stays theirs.
        with suppress(PermissionError):
            os.fchown(descriptor, around.st_uid, around.st_gid)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to disk, so that a power cut cannot lose them. Raises OSError on failure."""
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opened_by_steps(folder: Path) -> int:
    # The path begins at a folder that this process has open. Its text could name another folder in the meantime, and in
    # a container without real root the link `self` seems to belong to another user.
    is_open = folder.parts[: len(_DESCRIPTORS)] == _DESCRIPTORS and len(folder.parts) > len(_DESCRIPTORS)
    known = len(_DESCRIPTORS) + 1 if is_open else 0
    here = os.open(Path(*folder.parts[:known]) if is_open else folder.anchor or ".", os.O_PATH | _FOLDER)
    steps, links = list(reversed(folder.parts[known:])), 0
    try:
        while steps:
            step = steps.pop()
            there = _step(step, here)
            found = os.fstat(there)
            if not stat.S_ISLNK(found.st_mode):
                os.close(here)
                here = there
                continue
            try:
                # The open link is checked, not its name, because another file could have that name by now.
                target = os.readlink("", dir_fd=there)
            finally:
                os.close(there)
            links += 1
            if links > _MOST_LINKS or os.fstat(here).st_uid != 0 or found.st_uid != 0:
                raise _anothers_link(folder, step)
            steps += reversed(PurePath(target).parts)
        return os.open(".", _FOLDER, dir_fd=here)
    finally:
        os.close(here)


def _step(step: str, here: int) -> int:
    """Open a folder or symbolic link only as a place in the file system, without following the link."""
    with suppress(NotADirectoryError):
        # It is opened as a folder first, so that a folder that is mounted on use is mounted.
        return os.open(step, os.O_PATH | _FOLDER | os.O_NOFOLLOW, dir_fd=here)
    return os.open(step, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)


def _anothers_link(folder: Path, step: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"On the path to {folder}, {step} is a symbolic link that a service's user may have created.",
        consequence="With root's permissions, the program does not follow such links. Nothing was written behind the "
        "link, and no file changed its owner.",
        remedy="Find out who created the link. Replace the link with a real folder, or run the command under that user "
        "account.",
    )


MODELS_RESERVE_BYTES: Final = 8 << 20  # kept free by snapshots, saved states and models


@contextmanager
def on_disk(*, what: str, consequence: str) -> Iterator[None]:
    """If the disk of the state directory fails inside the block, raise an error with three sentences."""
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            what=f"{what}: {cause.strerror}.",
            consequence=consequence,
            remedy="Free space on the disk of the state directory, or correct its permissions, and start again.",
        ) from cause


def unusable_state(cause: OSError, *, what: str, consequence: str, file: str) -> OperatorError:
    """Return the error that the state directory named in a configuration file is full or cannot be written."""
    if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"Set `state` in {file} to a directory in which this user has permission to write."
        return ConfigurationError(what=what, consequence=consequence, remedy=remedy)
    return UnavailableError(
        what=what,
        consequence=consequence,
        remedy="Free space on the disk of the state directory, but delete nothing in this directory. Then start again. "
        "`df -h` shows the free space of each disk, and `df -i` how many more files it can hold.",
    )


def require_room(place: Path | int, wanted_bytes: int, reserve_bytes: int) -> None:
    """Check that the disk of an existing folder or open file has space for this many bytes, besides the reserved space.

    Raises:
        OSError: ENOSPC, whose `strerror` has the numbers, or the operating system's error about the place.
    """
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    if free < wanted_bytes + reserve_bytes:
        needed = f"{(wanted_bytes + reserve_bytes) / 1e6:.1f} MB are needed there"
        raise OSError(errno.ENOSPC, f"its disk has {free / 1e6:.1f} MB free, and {needed}")


@contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """Yield a short path to a file for a socket, because Linux allows 107 characters. The socket file remains.

    Raises:
        OSError: there is no such folder, or this user may not enter it.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{folder}") / path.name
    finally:
        os.close(folder)
