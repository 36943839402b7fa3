"""Reads the images of a table from their folder, and stores their pixels in a temporary file. The rules:

* a path stays in the declared folder: no absolute path, no "..", no link on the way;
* the file's size is checked before memory is reserved, and the disk's free space before pixels are written;
* an unusable file is a `Flaw` of its row, whose words have no part of the path. A single file never raises an error;
* the temporary file has no name, and only its user may open it. Its disk space is free again when its last array is
  deleted, also after a crash. No backup contains it. A table without images opens no file;
* a command that a person types uses the folder for temporary files, because this person may not be allowed to write to
  the state folder.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from host.durable import MODELS_RESERVE_BYTES, make_folder, require_room
from protos.errors import UnavailableError
from site_agent.trainer.data import image_formats
from site_agent.trainer.data.cell_rules import MISSING, Flaw
from site_agent.trainer.data.columns import DicomFiles, ImageColumn, NiftiFiles
from site_agent.trainer.data.mistakes import not_installed, unusable

Pixels: TypeAlias = npt.NDArray[np.float32]

_BYTES: Final = 4
_ROWS_BYTES: Final = 1 << 24  # size of the rows that are computed at once


class GrowingPixels:
    """Collects rows of pixels in a file until the last row was read.

    Every function raises UnavailableError if the disk cannot be written or has too little space. The error has the
    space needed and the free space.
    """

    def __init__(self, folder: Path, numbers: int) -> None:
        """Create the file in `folder`. A row has this many numbers."""
        self._folder, self._numbers = folder, numbers
        with _disk(folder):
            self._rows = _file(folder)

    def reserve(self, rows: int) -> None:
        """Check that the disk has enough space for the pixels of this number of further rows."""
        with _disk(self._folder):
            require_room(self._folder, rows * self._numbers * _BYTES, MODELS_RESERVE_BYTES)

    def add(self, pixels: Pixels) -> None:
        """Add the pixels of one row of the table, shape (numbers,)."""
        with _disk(self._folder):
            self._rows.write(np.ascontiguousarray(pixels, dtype=np.float32).data)

    def finished(self) -> Pixels:
        """Return the pixels of all rows, float32 of shape (rows, numbers), read-only."""
        with _disk(self._folder):
            self._rows.flush()
            os.fsync(self._rows.fileno())  # without this, a disk that becomes full later would end the process
            buffer = _mapped(self._rows.fileno())
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
    with _disk(folder), _file(folder) as file:
        require_room(folder, rows * numbers * _BYTES, MODELS_RESERVE_BYTES)
        # If the file had a gap, the process would end when the disk becomes full.
        os.posix_fallocate(file.fileno(), 0, rows * numbers * _BYTES)
        buffer = _mapped(file.fileno())
    return np.frombuffer(buffer, np.float32).reshape(rows, numbers)


def chosen_images(images: Pixels, places: npt.NDArray[np.int64], folder: Path) -> Pixels:
    """Return the images at these places, float32 (places, numbers), read-only, in a file in `folder`."""
    chosen = reserved(folder, len(places), images.shape[1])
    for some in blocks(len(places), images.shape[1]):
        chosen[some] = images[places[some]]
    chosen.flags.writeable = False
    return chosen


def blocks(rows: int, numbers: int) -> list[slice]:
    """Return slices that together cover all rows, in order. Each has at most 16 MiB, or only one row."""
    step = max(1, _ROWS_BYTES // max(1, numbers * _BYTES))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _file(folder: Path) -> io.BufferedRandom:
    make_folder(folder)
    return tempfile.TemporaryFile(dir=folder)


def _mapped(descriptor: int) -> mmap.mmap | bytes:
    return mmap.mmap(descriptor, 0) if os.fstat(descriptor).st_size else b""


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise UnavailableError(
            what=f"The folder {folder} cannot be used to prepare the images of the table: {cause.strerror}.",
            consequence="Nothing was trained or predicted, and nothing was sent.",
            remedy="Free disk space, declare a smaller image size with `resize: stretch` in the contract, or let this "
            "user write to this folder. For a command that you type, set the environment variable TMPDIR to another "
            "folder. Then start again.",
        ) from cause


_COMPANION: Final = re.compile(r"\._.*|\.DS_Store|Thumbs\.db|desktop\.ini", re.IGNORECASE)
_NO_FILE: Final = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EILSEQ,
        errno.ENXIO,
        errno.ENODEV,
    )
)


class ImageFolder:
    """The folder of a table's images, and the pixels that were read from its files."""

    def __init__(self, column: ImageColumn, table: Path, markers: Sequence[str], scratch: Path) -> None:
        """Check that the images' folder exists and that the needed libraries are installed.

        `markers` mean a missing value in the whole table. `scratch` is the folder of the file with the pixels.

        Raises:
            DataError: the folder is a file.
            ConfigurationError: the library for images is not installed.
            UnavailableError: the folder is not there yet, or the file with the pixels cannot be created.
        """
        self._column, self._root = column, table.parent / column.folder
        self._markers = {"", *markers, *column.missing_markers}
        self.scales: Counter[str] = Counter()
        self._pixels = GrowingPixels(scratch, column.image.numbers)
        if not self._root.is_dir():
            what = f"The contract names the folder of images {column.folder}. This is not a folder beside the table."
            remedy = f"Correct the key folder of the column {column.name} in the contract."
            if self._root.exists():
                raise unusable(what=what, remedy=remedy)
            raise UnavailableError(  # a disk or a network drive may be there later
                what=what,
                consequence="The table was not used and nothing was sent.",
                remedy=f"A service tries again by itself. If the folder will not be there: {remedy}",
            )
        _require_libraries(column)

    def read(self, cells: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Return for each flaw of the next images its rows, from 0. Raise UnavailableError if the disk is full."""
        self._pixels.reserve(len(cells))
        nothing = np.full(self._column.image.numbers, np.nan, dtype=np.float32)
        flaws: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            found = MISSING if cell.strip() in self._markers else self._image(cell.strip())
            if isinstance(found, Flaw):
                flaws.setdefault(found.words, []).append(place)
            self._pixels.add(nothing if isinstance(found, Flaw) else found)
        return flaws

    def images(self) -> Pixels:
        """Return the images, read-only: float32 (rows, numbers for one image) in [0, 1]. Images with a flaw are NaN."""
        return self._pixels.finished()

    def _image(self, cell: str) -> Pixels | Flaw:
        path, number = cell, None
        if self._column.files is not None and (found := re.fullmatch(r"(.+)#([0-9]{1,6})", cell)):
            path, number = found[1], int(found[2])
        if _COMPANION.fullmatch(PurePosixPath(path).name):
            return image_formats.COMPANION
        content = _content(self._root, path)
        if isinstance(content, Flaw):
            return content
        pixels = image_formats.pixels_of(content, self._column, number)
        if isinstance(self._column.files, DicomFiles) and not isinstance(pixels, Flaw):
            self.scales[image_formats.scale_of(content)] += 1
        return pixels


def _require_libraries(column: ImageColumn) -> None:
    package, extra = "pillow", "site"
    try:
        import PIL.Image  # noqa: F401

        match column.files:
            case DicomFiles():
                package, extra = "pydicom", "site,imaging"
                import pydicom  # noqa: F401
            case NiftiFiles():
                package, extra = "nibabel", "site,imaging"
                import nibabel  # noqa: F401
            case None:
                pass
            case _:
                assert_never(column.files)
    except ImportError as cause:
        raise not_installed(package, extra) from cause


def _content(root: Path, path: str) -> bytes | Flaw:
    """Return a file's bytes. Each folder on its path is opened in turn, so that nobody can swap a folder meanwhile."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        return image_formats.OUTSIDE
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
        found = os.fstat(descriptors[-1])
        if not stat.S_ISREG(found.st_mode):
            return image_formats.NOT_PLAIN
        if not found.st_size:
            return image_formats.EMPTY
        if found.st_size > image_formats.LARGEST_FILE_BYTES:
            return image_formats.TOO_LONG
        with os.fdopen(os.dup(descriptors[-1]), "rb") as file:
            return file.read(found.st_size)
    except OSError as error:
        return _flaw_of(error)
    except ValueError:  # the path has half of a character
        return image_formats.NO_FILE
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _flaw_of(error: OSError) -> Flaw:
    """Convert an error of opening a file to a flaw of the image. Raise an error if disk or process failed."""
    if error.errno == errno.ELOOP:
        return image_formats.OUTSIDE
    if isinstance(error, PermissionError):
        return image_formats.UNREADABLE
    if error.errno in _NO_FILE:
        return image_formats.NO_FILE
    raise UnavailableError(
        what=f"The images of the table cannot be read now: {error.strerror}.",
        consequence="The table was not used and nothing was sent.",
        remedy=(
            "Check the disk or network share that has the images, and the limit of open files of this user account. "
            "Then start again."
        ),
    ) from error
