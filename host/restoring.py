"""Restores whole directories from a backup, and never replaces a newer directory.

Journals and audit logs only grow, so they show which state is newer. A backup is refused if one of them has lines here
that the backup lacks. The replaced directories are kept under another name until a person removes them.

A state that is restored to an empty directory may be older than what other programs have received. This program cannot
detect that. `mark` records the restoration in the restored state, and the others detect it by rounds, attempts and log
checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import Final

from host.backup_archive import Catalogue, digest_of_beginning, extract, give_back
from host.durable import MODELS_RESERVE_BYTES, by_descriptor, make_folder, opened_folder, require_room
from protos.errors import ConfigurationError, UnavailableError

_MOUNTS: Final = Path("/proc/self/mountinfo")
# Files that only grow, by their path in a backup.
GROWING: Final = (
    "state/audit.log",
    "state/audit.log.??????????",
    "state/gate/audit.log",
    "state/gate/audit.log.??????????",
    "state/runs/*/journal.jsonl",
)


def restore(
    path: Path,
    catalogue: Catalogue,
    roots: Mapping[str, Path],
    *,
    stamp: str,
    mark: Callable[[Mapping[str, Path]], None],
) -> list[Path]:
    """Restore directories from a checked backup. Return new paths of the earlier ones, which end in `stamp`.

    The caller has reserved the places. `mark` records the restoration in the restored directories before their use.

    Raises:
        ConfigurationError: the current state is newer, or is a mount point, or the backup lacks a directory.
        UnavailableError: the disk cannot be written; the earlier directories are unchanged, or under their new names.
    """
    for name, root in roots.items():
        if name not in catalogue.entries:
            raise _refused(f"The backup has no directory {name}", "Use a backup of this program.")
        _refuse_mount_point(name, root)
        refuse_if_newer(path, catalogue, name, root)
    staged = {name: root.with_name(f"{root.name}.restoring-{stamp}") for name, root in roots.items()}
    before, size = [], sum(entry.size for entry in catalogue.entries.values())
    try:
        with ExitStack() as stack:
            opened = {}
            for name, place in staged.items():
                make_folder(place.parent)
                require_room(place.parent, size, MODELS_RESERVE_BYTES)
                opened[name] = stack.enter_context(_new_folder(place))
                extract(path, catalogue, name, opened[name])
            mark({name: by_descriptor(folder) for name, folder in opened.items()})
            for name, folder in opened.items():
                give_back(catalogue, name, folder)
        for name, root in roots.items():
            before += _put_in_place(staged[name], root, root.with_name(f"{root.name}.before-restore-{stamp}"))
    except OSError as cause:
        raise UnavailableError(
            what=f"The backup cannot be restored: {cause.strerror}.",
            consequence="Nothing was started. The earlier state is unchanged, or it is now in a folder whose name "
            f"ends with .before-restore-{stamp}.",
            remedy="Free space on the disk or correct the permissions. Remove only the folders whose name ends with "
            f".restoring-{stamp}. Then try again.",
        ) from cause
    return before


def _refuse_mount_point(name: str, root: Path) -> None:
    if root.is_mount() or str(root.resolve()) in _mount_points():
        raise _refused(
            f"{root} is the mount point of a disk, so `restore` cannot rename it",
            f"Set `{name}` in the configuration to a folder on this disk, such as {root / name}. Move the present "
            "files into this folder. Then run `restore` again.",
        )


def _mount_points() -> set[str]:
    """Return all mount points, also those of a folder on the same disk (bind mounts, such as a container's volume).

    A line of the file: 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw. Its fifth part is the place. A
    place with a space has the octal number of this character instead.
    """
    with suppress(OSError):  # the kernel has no such file
        return {line.split()[4].replace("\\040", " ") for line in _MOUNTS.read_text().splitlines()}
    return set()


def refuse_if_newer(path: Path, catalogue: Catalogue, name: str, root: Path) -> None:
    """Raise ConfigurationError if this directory has a record that was written after the backup."""
    if not root.exists():
        return
    for place in sorted(found for found in root.rglob("*") if found.is_file()):
        at = f"{name}/{place.relative_to(root).as_posix()}"
        entry = catalogue.entries.get(at)
        if not any(fnmatch(at, pattern) for pattern in GROWING):
            continue
        size = place.stat().st_size
        if entry is None or size > entry.size or digest_of_beginning(path, at, size) != _digest(place):
            raise _refused(
                f"{place} has records that the backup does not have. The backup is older, or is of another federation",
                "Use the newest backup. To use this backup, first move the present directory away.",
            )


def refuse_unfinished(root: Path) -> None:
    """Check that no interrupted restore left an empty state, because a program would then create new keys.

    A directory that has only folders is empty too, because systemd makes these folders when the computer starts.

    Raises:
        ConfigurationError: a restore is unfinished, and the directory is missing or empty.
    """
    if any(place.is_file() and place.name != ".lock" for place in root.rglob("*")):
        return
    unfinished = sorted(root.parent.glob(f"{escape(root.name)}.restoring-*"))
    if unfinished:
        raise ConfigurationError(
            what=f"A restore of {root} was interrupted. The folder is empty, and its unfinished copy "
            f"{unfinished[-1]} is next to it.",
            consequence="Nothing was started, and no new keys were made.",
            remedy="Run `restore` again with the same backup. After the restore, remove the files with `restoring` "
            "in their names.",
        )


def _put_in_place(staged: Path, root: Path, before: Path) -> list[Path]:
    """Rename the restored directory to its final name. Return the new name of the earlier directory, if any."""
    with opened_folder(root.parent) as around:
        try:
            os.rename(root.name, before.name, src_dir_fd=around, dst_dir_fd=around)
            moved = [before]
        except FileNotFoundError:
            moved = []
        os.rename(staged.name, root.name, src_dir_fd=around, dst_dir_fd=around)
        os.fsync(around)
    return moved


@contextmanager
def _new_folder(folder: Path) -> Iterator[int]:
    """Open a new folder. The descriptor stays correct even if the owner of the folder above renames it."""
    with opened_folder(folder.parent) as above:
        os.mkdir(folder.name, 0o700, dir_fd=above)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder.name, flags, dir_fd=above)
    try:
        # Before the folder was opened, the owner of the folder above may have exchanged it for one with links.
        if os.geteuid() == 0 and os.fstat(descriptor).st_uid != 0:
            raise _refused(f"Another user replaced the folder {folder}", "Find out who did that before anything else.")
        yield descriptor
    finally:
        os.close(descriptor)


def _digest(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what=f"{what}.", consequence="Nothing was changed.", remedy=remedy)
