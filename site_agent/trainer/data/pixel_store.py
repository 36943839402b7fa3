"""Stores the pixels of a table's images, in memory or in a temporary file on disk.

A mapped file gives the same arrays as memory, to the bit. The system reads a batch's pages when the batch is drawn, and
can free them afterwards. The rules:

* a file has no name after it was opened, and only its user may open it. Its disk space is free again when its last
  array is deleted, also after an error or a crash. No backup contains it;
* the trainer's files are in its own folder. A command that a person types uses the folder for temporary files,
  because this person may not be allowed to write to the state folder;
* the disk's free space is checked before pixels are written, and all of it is reserved before a file is mapped;
* these files have only images and masks. A table without them opens no file.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from host.durable import MODELS_RESERVE_BYTES, make_folder, require_room
from protos.errors import UnavailableError

Pixels: TypeAlias = npt.NDArray[np.float32]

_BYTES: Final = 4
_ROWS_BYTES: Final = 1 << 24  # size of the rows that are computed at once


class GrowingPixels:
    """Collects rows of pixels until the last row was read.

    Every function raises UnavailableError if the disk cannot be written or has too little space. The error has the
    space needed and the free space.
    """

    def __init__(self, folder: Path | None, numbers: int) -> None:
        """Create an empty store of pixels: a new file in `folder`, or memory if `folder` is None."""
        self._folder, self._numbers = folder, numbers
        try:
            self._rows = io.BytesIO() if folder is None else _file(folder)
        except OSError as cause:
            raise _unavailable(folder, cause) from cause

    def reserve(self, rows: int) -> None:
        """Check that the disk has enough space for the pixels of this number of further rows."""
        if self._folder is not None:
            _require(self._folder, rows * self._numbers)

    def add(self, pixels: Pixels) -> None:
        """Add the pixels of one row of the table, shape (numbers,)."""
        try:
            self._rows.write(np.ascontiguousarray(pixels, dtype=np.float32).data)
        except OSError as cause:
            raise _unavailable(self._folder, cause) from cause

    def finished(self) -> Pixels:
        """Return the pixels of all rows, float32 of shape (rows, numbers), read-only."""
        try:
            self._rows.flush()
            if not isinstance(self._rows, io.BytesIO):
                os.fsync(self._rows.fileno())  # without this, a disk that becomes full later would end the process
            buffer = self._rows.getbuffer() if isinstance(self._rows, io.BytesIO) else _mapped(self._rows.fileno())
        except OSError as cause:
            raise _unavailable(self._folder, cause) from cause
        pixels = np.frombuffer(buffer, np.float32).reshape(-1, self._numbers)
        pixels.flags.writeable = False
        return pixels


def temporary_folder() -> Path:
    """Return the folder for temporary files: TMPDIR, else /var/tmp, because /tmp may be a part of the memory."""
    folder = Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108  # files there have no name
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


def reserved(folder: Path | None, rows: int, numbers: int) -> Pixels:
    """Return an uninitialised array, float32 (rows, numbers), in memory or in a file. Errors as for GrowingPixels."""
    if folder is None or not rows * numbers:
        return np.empty((rows, numbers), dtype=np.float32)
    _require(folder, rows * numbers)
    try:
        with _file(folder) as file:
            # If the file had a gap, the process would end when the disk becomes full.
            os.posix_fallocate(file.fileno(), 0, rows * numbers * _BYTES)
            return np.frombuffer(_mapped(file.fileno()), np.float32).reshape(rows, numbers)
    except OSError as cause:
        raise _unavailable(folder, cause) from cause


def blocks(rows: int, numbers: int) -> list[slice]:
    """Return slices that together cover all rows, in order. Each has at most 16 MiB, or only one row."""
    step = max(1, _ROWS_BYTES // max(1, numbers * _BYTES))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _file(folder: Path) -> io.BufferedRandom:
    make_folder(folder)
    return tempfile.TemporaryFile(dir=folder)


def _mapped(descriptor: int) -> mmap.mmap | bytes:
    return mmap.mmap(descriptor, 0) if os.fstat(descriptor).st_size else b""


def _require(folder: Path, numbers: int) -> None:
    try:
        require_room(folder, numbers * _BYTES, MODELS_RESERVE_BYTES)
    except OSError as cause:
        raise _unavailable(folder, cause) from cause


def _unavailable(folder: Path | None, cause: OSError) -> UnavailableError:
    return UnavailableError(
        what=f"The folder {folder} cannot be used to prepare the images of the table: {cause.strerror}.",
        consequence="Nothing was trained or predicted, and nothing was sent.",
        remedy="Free disk space, declare a smaller image size with `resize: stretch` in the contract, or let this user "
        "write to this folder. For a command that you type, set the environment variable TMPDIR to another folder. "
        "Then start again.",
    )
