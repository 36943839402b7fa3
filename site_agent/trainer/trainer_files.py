"""Writes the trainer's small files completely or not at all, and computes digests of arrays.

One of the files is the site's secret, the source of its private random draws: first values of private layers, the order
of batches and dropout. So a run can be repeated to the bit at its own site, and nobody who has only the plan can
compute these draws. The rules:

* the secret is made once from the operating system's random numbers, with mode 0600, in the trainer's own folder;
* the secret is in the site's backups and in no message, log, report or export;
* a file that others may read, or that has another length, is refused and never replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from host.durable import MODELS_RESERVE_BYTES, make_folder, opened_folder, replace_in, require_room
from protos.errors import ConfigurationError, UnavailableError
from site_agent.trainer.failures import START_AGAIN, unfit

SECRET_BYTES: Final = 32
_NAME: Final = "site.secret"
SUSPICIONS: Final = Path("data") / "suspicions.json"
_LARGEST_SUSPICIONS_BYTES: Final = 1 << 16


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace the file `path` with this content and mode. After a crash, the old or the new file is complete.

    The content is written to a temporary file in the same folder, which is synchronised and renamed. Then the folder's
    entry is synchronised. Temporary files of an earlier crash are removed first. Only one process may write a file.
    Files that the administrator writes belong to the owner of the folder (`give_to_owner`).

    Raises:
        ConfigurationError: root would follow another user's link (`opened_folder`).
        UnavailableError: the disk cannot be written; the old file is unchanged.
    """
    partial = f".{path.name}.partial"
    try:
        make_folder(path.parent)
        with opened_folder(path.parent) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            require_room(path.parent, len(content), MODELS_RESERVE_BYTES)
            replace_in(folder, path.name, content, partial=partial, mode=mode)
    except OSError as cause:
        raise UnavailableError(
            what=f"{path.name} cannot be written: {cause.strerror}.",
            consequence="Earlier saved states are unchanged, and nothing more was sent.",
            remedy=f"Free disk space, or let the trainer's user account write into {path.parent}. {START_AGAIN}",
        ) from cause


def array_digest(subject: str, arrays: Iterable[tuple[str, npt.NDArray[np.generic]]]) -> str:
    """Return the BLAKE3 digest, in hexadecimal, of a subject and of names, types, shapes and bytes, in order."""
    digest = blake3()
    for part in (subject.encode(), *(piece for name, array in arrays for piece in _pieces(name, array))):
        # Each piece is written after its length, so that two different lists never have the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _pieces(name: str, array: npt.NDArray[np.generic]) -> tuple[bytes, bytes, bytes, memoryview]:
    # A view is hashed, because a copy could need too much memory.
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return name.encode(), array.dtype.str.encode(), repr(array.shape).encode(), content


def keep_suspicions(state: Path, run: str, sentences: Sequence[str]) -> None:
    """Write the findings of a run about its columns, and replace those of an earlier run. They stay at this site."""
    write_whole(state / SUSPICIONS, json.dumps({"run": run, "sentences": list(sentences)}).encode())


def find_suspicions(state: Path) -> tuple[str, ...]:
    """Return the newest findings about suspicious columns. Return none if this user account may not read the file."""
    try:
        with (state / SUSPICIONS).open("rb") as file:
            found = json.loads(file.read(_LARGEST_SUSPICIONS_BYTES))
        return tuple(f"In the run {found['run']}, {sentence}" for sentence in found["sentences"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def site_secret(folder: Path) -> bytes:
    """Return this site's secret number of 32 bytes from the trainer's folder. The first call creates the secret.

    Raises:
        ConfigurationError: others may read the file, or the file is not a secret of 32 bytes.
        UnavailableError: the disk cannot be written.
    """
    path = folder / _NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        write_whole(path, secrets.token_bytes(SECRET_BYTES))
        return site_secret(folder)
    except OSError as cause:
        raise _refused(path, f"cannot be read: {cause.strerror}") from cause
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
            raise _refused(path, "can be read by other accounts, or is not a regular file")
        content = file.read(SECRET_BYTES + 1)
    if len(content) != SECRET_BYTES:
        raise _refused(path, f"has another length than {SECRET_BYTES} bytes")
    return content


def _refused(path: Path, because: str) -> ConfigurationError:
    return unfit(
        what=f"The file with this site's secret number, {path}, {because}.",
        remedy=(
            f"If you trust the content of this file, run `chmod 600 {path}`. Otherwise restore the file from the "
            "newest backup."
        ),
    )
