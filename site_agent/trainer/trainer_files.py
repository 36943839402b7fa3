"""Writes files completely or not at all, and computes digests of arrays, for the trainer's small files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from host.disk_space import MODELS_RESERVE_BYTES, require_room
from host.durable import make_folder, opened_folder, replace_in
from protos.errors import UnavailableError


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `content` with this mode. After a crash the old or the new file is complete.

    The content goes to a file beside it, which is synchronised and renamed; then the folder's entry
    is synchronised. What an earlier crash left beside it is removed first. One writer per file.
    What the administrator writes belongs to the owner of the folder (`give_to_owner`).

    Raises:
        ConfigurationError: root would follow another user's link (`opened_folder`).
        UnavailableError: the disk does not take it; the old file is unchanged.
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
            consequence="Earlier saved states are unchanged and nothing left this site.",
            remedy="Free disk space, or let the trainer's user write to its state folder, and start again.",
        ) from cause


def array_digest(subject: str, arrays: Iterable[tuple[str, npt.NDArray[np.generic]]]) -> str:
    """Return the BLAKE3 of names, types, shapes and bytes, in the given order, in hexadecimal.

    `subject` keeps digests of different things apart, even where their arrays are equal.
    """
    digest = blake3()
    for part in (subject.encode(), *(piece for name, array in arrays for piece in _pieces(name, array))):
        # Each piece comes after its length, so that no two lists of pieces read the same.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _pieces(name: str, array: npt.NDArray[np.generic]) -> tuple[bytes, bytes, bytes, bytes]:
    return name.encode(), array.dtype.str.encode(), repr(array.shape).encode(), array.tobytes()
