"""Reads and writes key files and locks state directories: modes, owners, atomic replacement.

The rules:

* a secret has mode 0600 from the moment its file exists; a private directory has 0700;
* a file appears or is replaced as a whole, and is on disk when the call returns;
* a secret that another account owns or could read is not used.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from host.durable import give_to_owner, make_folder, opened_folder, replace_in
from protos.errors import ConfigurationError, OperatorError, UnavailableError

LARGEST_BYTES = 256 * 1024

_SECRET_MODE: Final = 0o600
_PUBLIC_MODE: Final = 0o644


class _HasDirectory(Protocol):
    @property
    def directory(self) -> Path: ...


class FileIn:
    """An attribute of an object with a `directory`: the path of the file with this name in that directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: _HasDirectory, _: object) -> Path:
        return owner.directory / self._name


def write_secret(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file that only its owner may read. If `replace` is false, an existing file is an error."""
    _write(path, data, mode=_SECRET_MODE, replace=replace)


def write_public(path: Path, data: bytes) -> None:
    """Write or replace a file that everybody may read, such as a certificate."""
    _write(path, data, mode=_PUBLIC_MODE, replace=True)


def read_secret(path: Path) -> bytes:
    """Read a secret after checking that only its owner could read it.

    Raises:
        ConfigurationError: the file is missing, too large, owned by another account, or open to others.
    """
    # The call does not wait, because the file may be a pipe that nobody writes to.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with explained(path, "read"), os.fdopen(os.open(path, flags), "rb") as file:
        # The open file is checked, not the path, because the path could be exchanged in between.
        state = os.fstat(file.fileno())
        check_secret(path, state)
        return _at_most(file.read(LARGEST_BYTES + 1), path)


def read_public(path: Path) -> bytes:
    """Read a file of at most 256 KiB that is not secret."""
    with explained(path, "read"), path.open("rb") as file:
        return _at_most(file.read(LARGEST_BYTES + 1), path)


def check_secret(path: Path, state: os.stat_result) -> None:
    """Refuse a secret file that another user account owns, or that other user accounts may read or write."""
    if not stat.S_ISREG(state.st_mode):
        raise _unsafe(path, "is not a regular file", "Put the file itself there.")
    # systemd gives a service its credentials in a folder of its own. From version 254 on root's group may read them.
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    is_given = given is not None and path.parent == Path(given) and state.st_uid == 0
    if state.st_mode & (0o037 if is_given else 0o077):
        raise _unsafe(
            path,
            f"can be used by other accounts of this computer (mode {stat.S_IMODE(state.st_mode):04o})",
            f"If nobody else had access, run `chmod 600 {path}`; otherwise make a new key.",
        )
    # The administrator can manage a service's secrets, and give secrets to a service.
    if os.geteuid() != 0 and state.st_uid not in (0, os.geteuid()):
        raise _unsafe(path, "belongs to another account", "Run this as the account that owns the file.")


def make_private_directory(path: Path) -> None:
    """Create a directory with mode 0700. If the directory exists, check that other user accounts cannot write to it."""
    with explained(path, "made"):
        if path.exists() and not path.is_dir():
            raise _unsafe(path, "is not a directory", "Give the path of a directory.")
        make_folder(path)
        with opened_folder(path) as folder:
            state = os.fstat(folder)
    if state.st_mode & 0o022:
        raise _unsafe(path, "can be written by other accounts", f"Run `chmod go-w {path}`, then try again.")


def hold_directory(directory: Path, program: str) -> int:
    """Lock a state directory until the process ends, because two programs would damage it. Return the descriptor.

    Raises:
        ConfigurationError: another process has the lock, or the directory cannot be written.
        UnavailableError: the disk cannot be written.
    """
    with explained(directory, "held"), opened_folder(directory) as folder:
        # The call does not wait, because a service's user may have put a pipe there that nobody reads.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(".lock", flags, 0o600, dir_fd=folder)
        give_to_owner(descriptor, folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        os.close(descriptor)
        raise ConfigurationError(
            what=f"Another {program} already runs with the state directory {directory}.",
            consequence="This program did not start. The other program continues.",
            remedy="Stop the other program first (`fuser .lock` there shows its number), or give each program its own "
            "state directory.",
            code="E031",
        ) from cause
    return descriptor


def not_answering(program: str, start: str) -> UnavailableError:
    """Return the error that no running program of this name answered a command of this computer."""
    return UnavailableError(
        what=f"No {program} answers with this configuration: none is running, or your user account may not ask it.",
        consequence="Nothing was changed.",
        remedy=f"Run the command under the program's user account. Start the program with {start}. If it runs and does "
        "not answer, restart its service.",
        code="E030",
    )


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Convert the operating system's errors about a path to errors with three sentences."""
    try:
        yield
    except OperatorError:
        raise
    except FileExistsError as cause:
        raise ConfigurationError(
            what=f"{path} exists already.",
            consequence="The existing file is unchanged.",
            remedy="Choose another path, or move the existing file away.",
        ) from cause
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as cause:
        raise ConfigurationError(
            what=f"{path} could not be {verb}: {cause.strerror or 'it does not exist'}.",
            consequence="Nothing was sent and no file was changed.",
            remedy="Check the path, its owner and its permissions, then try again.",
        ) from cause
    except OSError as cause:
        if cause.errno == errno.ELOOP:
            raise _unsafe(path, "is, or holds, a symbolic link", "Put the file itself in the link's place.") from cause
        raise UnavailableError(
            what=f"{path} could not be {verb}: {cause.strerror or type(cause).__name__}.",
            consequence="Nothing was sent, and no existing file was changed.",
            remedy="Check that the disk is connected and has free space, then try again.",
        ) from cause


def _write(path: Path, data: bytes, *, mode: int, replace: bool) -> None:
    partial = f".{path.name}.{secrets.token_hex(8)}.incomplete"
    with explained(path, "written"), opened_folder(path.parent) as folder:
        replace_in(folder, path.name, data, partial=partial, mode=mode, is_new=not replace)


def _at_most(data: bytes, path: Path) -> bytes:
    if len(data) > LARGEST_BYTES:
        raise _unsafe(path, f"has more than {LARGEST_BYTES} bytes", "Give the file that was meant.")
    return data


def _unsafe(path: Path, reason: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"{path} {reason}.", consequence="The file was not used, and nothing was sent.", remedy=remedy, code="E032"
    )
