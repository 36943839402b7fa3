"""Writing a file whole or not at all, and digests of arrays; what the trainer's small files share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.disk_space import MODELS_RESERVE_BYTES, require_room
from protos.durable import give_to_owner, make_folder, sync_folder
from protos.errors import UnavailableError


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` by `content` with mode 0600: after a crash the old or the new file is there.

    The content goes to a file beside it, which is synchronised and renamed; then the folder's entry
    is synchronised. What an earlier crash left beside it is removed first. One writer per file.
    What the administrator writes belongs to the owner of the folder (`give_to_owner`).

    Raises:
        UnavailableError: the disk does not take it; the old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        make_folder(path.parent)
        partial.unlink(missing_ok=True)
        require_room(path.parent, len(content), MODELS_RESERVE_BYTES)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            give_to_owner(file.fileno(), path.parent)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as cause:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UnavailableError(
            what=f"{path.name} cannot be written: {cause.strerror}.",
            consequence="What was saved before is unchanged and nothing left this site.",
            remedy="Make room, or give the trainer's user the right to write its state folder, and start again.",
        ) from cause


def array_digest(subject: str, arrays: Iterable[tuple[str, npt.NDArray[np.generic]]]) -> str:
    """BLAKE3 over names, types, shapes and bytes, in the given order, in hexadecimal.

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
