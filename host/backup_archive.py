"""Writes and reads backups: one tar file of whole directories, each file with its checksum.

The archive has mode 0600 from its first byte, because it has private keys. Its last member, `backup.json`, lists every
file with size, SHA-256, mode and owner, and has a checksum of its own. So a flipped bit, a lost file and a cut end are
detected. The list is sealed with a key that is in no backup (backup_key.py), so a forged archive is detected too. No
restored file is writable by others or runs as its owner. Links are refused, because their targets would not be in the
backup. Sockets, locks and incomplete files are omitted.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import hmac
import io
import json
import os
import pwd
import secrets
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from host.backup_key import NAME as KEY_NAME
from host.durable import MODELS_RESERVE_BYTES, by_descriptor, opened_folder, require_room, sync_folder
from host.secret_files import LAYOUT, other_layout
from protos.errors import ConfigurationError, UnavailableError

CATALOGUE: Final = "backup.json"
_FORMAT: Final = 1
_BLOCK: Final = 1 << 20
_LARGEST_CATALOGUE: Final = 256 << 20
_LEFT_OUT: Final = (".partial", ".incomplete", ".lock", ".sqlite-shm", f"/{KEY_NAME}")
_MODES: Final = 0o755  # no set-user, set-group or sticky bit, and no permission to write for group or others


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file or folder in a backup. A folder has no digest.

    Owner and group are stored by name, because numbers may change.
    """

    mode: int
    owner: str
    group: str
    size: int = 0
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The list of contents inside a backup: the program, the time (UTC), and every file by its path."""

    program: str
    name: str
    made: str
    software: str
    state_format: int
    entries: Mapping[str, Entry]


def write_backup(
    path: Path, roots: Mapping[str, Path], *, program: str, name: str, made: str, software: str, key: bytes
) -> Catalogue:
    """Write whole directories into a new backup file. The caller prevents changes to these directories.

    Args:
        name: the program's name in the federation, such as the site's name; empty for the coordinator.
        made: the time, UTC.
        key: seals the archive, 32 bytes.

    Raises:
        ConfigurationError: the file exists, or a directory contains a link.
        UnavailableError: the disk cannot be written; no part of the file remains.
    """
    try:
        if os.path.lexists(path):
            raise _refused(f"{path} exists already", "Name another file; an older backup is not replaced.")
        found = {name: list(_walk(root, PurePosixPath(name))) for name, root in roots.items()}
        size = sum(place.stat().st_size for places in found.values() for _, place in places if place.is_file())
        with _new_file(path) as file:
            require_room(path.parent, size + size // 64, MODELS_RESERVE_BYTES)
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                entries = {str(at): _add(archive, at, place) for places in found.values() for at, place in places}
                catalogue = Catalogue(
                    program=program, name=name, made=made, software=software, state_format=LAYOUT, entries=entries
                )
                content, member = _to_json(catalogue, key), tarfile.TarInfo(CATALOGUE)
                member.size, member.mode = len(content), 0o600
                archive.addfile(member, io.BytesIO(content))
    except OSError as cause:
        raise UnavailableError(
            what=f"The backup cannot be written: {cause.strerror}.",
            consequence="No backup was made. The state is unchanged.",
            remedy="Free space on the disk of the backup, or correct the permissions, and try again.",
        ) from cause
    return catalogue


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file, mode 0600. It gets its name when the block ends, and is removed after an error.

    This also works on disks without links.

    Raises:
        ConfigurationError: root would follow another user's link (`opened_folder`).
        OSError: the name is taken, or the disk refuses it.
    """
    partial, name = f".{path.name}.{secrets.token_hex(8)}.incomplete", path.name
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened_folder(path.parent) as folder:
        try:
            with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.close(os.open(name, flags, 0o600, dir_fd=folder))
            try:
                os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(name, dir_fd=folder)
                raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
        os.fsync(folder)


def require_readable(path: Path) -> None:
    """Check that a backup file can be opened, before a person looks for its key. Raises ConfigurationError."""
    try:
        path.open("rb").close()
    except OSError as cause:
        raise _refused(f"{path} cannot be read: {cause.strerror}", "Check the path and its permissions.") from cause


def read_catalogue(path: Path, key: bytes | None) -> Catalogue:
    """Check all bytes of a backup and return its catalogue. `key` is None only if a person accepts it without proof.

    Raises:
        ConfigurationError: the file cannot be read, was changed, cut or forged, or is of a later version.
    """
    found: dict[str, Entry | None] = {}
    catalogue = None
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if catalogue is not None or member.name in found or not (member.isreg() or member.isdir()):
                    raise ValueError("a member that no backup has")
                if member.name == CATALOGUE:
                    catalogue = _from_json(_content(archive, member, _LARGEST_CATALOGUE), key)
                else:
                    found[member.name] = None if member.isdir() else _measured(archive, member)
        if catalogue is None:
            raise ValueError("its end is missing")
        _compare(catalogue.entries, found)
    except OSError as cause:
        raise _refused(f"{path} cannot be read: {cause.strerror}", "Check the path and its permissions.") from cause
    except _NotSealed as cause:
        raise _refused(
            f"{path} is not sealed with this backup key. Somebody forged it, or another installation or an older "
            "program made it",
            "Use another backup, or give the key from this backup's own paper with --key-file. If you know who made "
            "the file, and that nobody could change it since, add --unauthenticated.",
        ) from cause
    except (tarfile.TarError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise _refused(f"{path} is damaged, or is not a backup", "Use another backup.") from cause
    if catalogue.state_format != LAYOUT:
        raise other_layout(f"{path} is a backup of another layout.")
    return catalogue


def extract(path: Path, catalogue: Catalogue, root: str, folder: int) -> None:
    """Copy one directory of a checked backup into an empty folder, and check each file again. Sync the files to disk.

    The files belong to no other user before `give_back`.

    Raises:
        ConfigurationError: the file changed after the check.
        OSError: the disk cannot be written.
    """
    wanted, target = _below(catalogue, root), by_descriptor(folder)
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            entry = wanted.get(member.name)
            if entry is None:
                continue
            place = _place(target, member.name)
            if entry.sha256 is None:
                place.mkdir(mode=0o700, exist_ok=member.name == root)
            else:
                _extract_file(archive, member, entry, place)
    for at in (at for at, entry in wanted.items() if entry.sha256 is None):
        sync_folder(_place(target, at))


def give_back(catalogue: Catalogue, root: str, folder: int) -> None:
    """Restore the file modes of extracted files. If root runs the restore, also restore their owners.

    Files that are not in the backup get the owner of their folder. The folders come last: while the outer folders
    belong to root, only root can put a link among the files.

    Raises:
        OSError: this computer has no such user, or the disk cannot be written.
    """
    wanted, target = _below(catalogue, root), by_descriptor(folder)
    entries = {_place(target, at): entry for at, entry in wanted.items() if at != root}
    for place in sorted(target.rglob("*"), reverse=True):
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            around = entries.get(place.parent, wanted[root])
            _own(descriptor, entries.get(place) or replace(around, mode=mode))
        finally:
            os.close(descriptor)
    _own(folder, wanted[root])


def _below(catalogue: Catalogue, root: str) -> dict[str, Entry]:
    return {at: entry for at, entry in catalogue.entries.items() if PurePosixPath(at).parts[0] == root}


def _place(target: Path, at: str) -> Path:
    return target.joinpath(*PurePosixPath(at).parts[1:])


def digest_of_beginning(path: Path, at: str, size: int) -> str:
    """Return the SHA-256 of the first bytes of one file in a backup that was checked before."""
    digest, left = hashlib.sha256(), size
    with tarfile.open(path, mode="r:") as archive:
        for block in _blocks(archive, archive.getmember(at)):
            digest.update(block[:left])
            left -= len(block[:left])
    return digest.hexdigest()


def _walk(folder: Path, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, Path]]:
    yield at, folder
    for place in sorted(folder.iterdir()):
        state = place.lstat()
        if f"/{place.name}".endswith(_LEFT_OUT) or stat.S_ISSOCK(state.st_mode):
            continue
        if stat.S_ISDIR(state.st_mode):
            yield from _walk(place, at / place.name)
        elif stat.S_ISREG(state.st_mode):
            yield at / place.name, place
        else:
            raise _refused(f"{place} is a link or a device", "Put the file itself there, then try again.")


def _add(archive: tarfile.TarFile, at: PurePosixPath, place: Path) -> Entry:
    if place.is_dir():
        archive.addfile(archive.gettarinfo(str(place), str(at)))
        return Entry(**_facts(place.stat()))
    # The open folder is used and links are not followed. Otherwise a service's user could make root read any file.
    with opened_folder(place.parent) as folder:
        descriptor = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise _refused(f"{place} is a link or a device", "Put the file itself there, then try again.")
        member = archive.gettarinfo(arcname=str(at), fileobj=file)
        member.type = tarfile.REGTYPE  # also if the file has a second name
        member.size = state.st_size
        reader = _Hashing(file)
        archive.addfile(member, reader)
    return Entry(**_facts(state), size=member.size, sha256=reader.digest.hexdigest())


def _facts(state: os.stat_result) -> dict[str, Any]:
    return {
        "mode": stat.S_IMODE(state.st_mode),
        "owner": _name_of(state.st_uid, "user"),
        "group": _name_of(state.st_gid, "group"),
    }


class _Hashing:
    """Computes the SHA-256 of a file while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.digest.update(content)
        return content


def _measured(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    digest, size = hashlib.sha256(), 0
    for block in _blocks(archive, member):
        digest.update(block)
        size += len(block)
    return Entry(mode=0, owner="", group="", size=size, sha256=digest.hexdigest())


def _blocks(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(member)
    if file is None:
        raise ValueError("a member without content")
    while block := file.read(_BLOCK):
        yield block


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, largest: int) -> bytes:
    if member.size > largest:
        raise ValueError("larger than any catalogue")
    return b"".join(_blocks(archive, member))


def _compare(listed: Mapping[str, Entry], found: Mapping[str, Entry | None]) -> None:
    if set(listed) != set(found):
        raise ValueError("other files than it lists")
    for at, entry in listed.items():
        path, here = PurePosixPath(at), found[at]
        if path.is_absolute() or ".." in path.parts or str(path) != at:
            raise ValueError("a path that leads elsewhere")
        measured = (None, 0) if here is None else (here.sha256, here.size)
        if measured != (entry.sha256, entry.size):
            raise ValueError("a file that was changed")


def _extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, place: Path) -> None:
    digest = hashlib.sha256()
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for block in _blocks(archive, member):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise _refused("The backup was changed while it was read", "Try again with another copy.")


def _own(descriptor: int, entry: Entry) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, _number_of(entry.owner, "user"), _number_of(entry.group, "group"))
    os.fchmod(descriptor, entry.mode & _MODES)


def _name_of(number: int, kind: str) -> str:
    try:
        return pwd.getpwuid(number).pw_name if kind == "user" else grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _number_of(name: str, kind: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError as cause:
        if name.isdecimal():
            return int(name)
        raise OSError(errno.EINVAL, f"this computer has no {kind} {name}") from cause


class _NotSealed(Exception):
    """Raised if the list of files in a backup has no seal, or was sealed with another key."""


def _to_json(catalogue: Catalogue, key: bytes) -> bytes:
    content = asdict(catalogue) | {"format": _FORMAT}
    marks = {"check": _check(content), "seal": _seal(content, key)}
    return json.dumps(content | marks, sort_keys=True, indent=1).encode()


def _from_json(raw: bytes, key: bytes | None) -> Catalogue:
    content = json.loads(raw)
    given, seal = content.pop("check"), content.pop("seal", "")
    if content["format"] != _FORMAT or given != _check(content):
        raise ValueError("another version, or another list than was written")
    if key is not None and not hmac.compare_digest(str(seal).encode(), _seal(content, key).encode()):
        raise _NotSealed
    del content["format"]
    entries = {at: Entry(**entry) for at, entry in content.pop("entries").items()}
    if not all(type(entry.mode) is int for entry in entries.values()):
        raise ValueError("a mode that is no number")
    return Catalogue(**content, entries=entries)


def _check(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(content)).hexdigest()


def _seal(content: Mapping[str, Any], key: bytes) -> str:
    return hmac.digest(key, _text(content), "sha256").hex()


def _text(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"global-layers backup {_FORMAT} {text}".encode()


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what=f"{what}.", consequence="Nothing was written or changed.", remedy=remedy)
