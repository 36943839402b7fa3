"""Reads the images that a table names, and refuses everything that the contract does not declare.

The rules:

* a path stays in the declared folder: no absolute path, no "..", no link on the way;
* the file's size and the size in its header are checked before memory is reserved;
* a file must match the declaration: kind of pixels, bits, size. Nothing is converted silently;
* an unusable file is a `Flaw` of its row, whose words have no part of the path. A single file never raises an error;
* only the pixels of a file are stored: no name, no EXIF entry, no text.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np

from protos.errors import ConfigurationError, UnavailableError, to_install
from site_agent.trainer.data import image_flaws
from site_agent.trainer.data.cell_rules import MISSING, Flaw
from site_agent.trainer.data.image_column import DicomFiles, ImageColumn, NiftiFiles
from site_agent.trainer.data.medical_images import dicom_image, nifti_slice
from site_agent.trainer.data.mistakes import unusable
from site_agent.trainer.data.pixel_store import GrowingPixels, Pixels

if TYPE_CHECKING:
    from PIL import Image

LARGEST_TABLE_NUMBERS: Final = 1 << 28  # 1 GiB of float32 for all images of a table that is read into memory

_NUMBERED: Final = re.compile(r"(.+)#([0-9]{1,6})")
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
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_FORMATS: Final = ("PNG", "JPEG")
_MODES: Final = {"L": (1, 8), "I;16": (1, 16), "RGB": (3, 8)}


class ImageFolder:
    """The folder of a table's images, and the pixels that were read from its files."""

    def __init__(
        self,
        column: ImageColumn,
        table: Path,
        markers: Sequence[str],
        *,
        has_masks: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """Check that the images' folder exists and that the needed libraries are installed.

        `markers` mean a missing value in the whole table. With `has_masks` every intensity must be 0 or 1. `scratch` is
        the folder of the file with the pixels; None keeps them in memory.

        Raises:
            DataError: the folder cannot be read.
            ConfigurationError: the library for images is not installed.
            UnavailableError: the file with the pixels cannot be created.
        """
        self._column, self._root = column, table.parent / column.folder
        self._markers = {"", *markers, *column.missing_markers}
        self._has_masks, self._is_in_memory = has_masks, scratch is None
        self._read, self._pixels = 0, GrowingPixels(scratch, column.image.numbers)
        if not self._root.is_dir():
            raise unusable(
                what=f"The contract names the folder of images {column.folder}. This is not a folder beside the table.",
                remedy=f"Correct the key folder of the column {column.name} in the contract.",
            )
        _require_libraries(column)

    def read(self, cells: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Read the images of the next rows. Return for each flaw, as text, the numbers of its rows, from 0.

        Raises:
            OperatorError: the images need more memory than this program reserves, or more space than the disk has.
        """
        self._reserve(len(cells))
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

    def _reserve(self, rows: int) -> None:
        self._read += rows
        self._pixels.reserve(rows)
        most = LARGEST_TABLE_NUMBERS // self._column.image.numbers
        if self._is_in_memory and self._read > most:
            raise unusable(
                what=f"The table has at least {self._read} images. "
                f"For the size {self._column.image}, this program reads at most {most} images.",
                remedy="Declare a smaller image size with `resize: stretch` in the contract, or use fewer rows.",
            )

    def _image(self, cell: str) -> Pixels | Flaw:
        path, number = cell, None
        if self._column.files is not None and (found := _NUMBERED.fullmatch(cell)):
            path, number = found[1], int(found[2])
        content = _content(self._root, path)
        if self._has_masks and not isinstance(content, Flaw) and not content.startswith(_PNG):
            return image_flaws.MASK_NOT_PNG
        image = content if isinstance(content, Flaw) else pixels_of(content, self._column, number)
        if self._has_masks and not isinstance(image, Flaw) and not np.isin(image, (0.0, 1.0)).all():
            return image_flaws.NOT_A_MASK
        return image


def _require_libraries(column: ImageColumn) -> None:
    """Raise ConfigurationError if a library that the declared type of files needs is not installed."""
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
        raise ConfigurationError(
            what=f"The package {package} is not installed, but it is needed to read the images of this table.",
            consequence="The table was not used and nothing was sent.",
            remedy=to_install(extra),
        ) from cause


def pixels_of(content: bytes, column: ImageColumn, number: int | None = None) -> Pixels | Flaw:
    """Return one file's image, float32 (numbers,) in [0, 1], or why it is refused. Frames are numbered from 1."""
    match column.files:
        case DicomFiles():
            found = dicom_image(content, column, column.files, number)
        case NiftiFiles():
            found = nifti_slice(content, column.files, number)
        case None:
            return _picture(content, column)
        case _:
            assert_never(column.files)
    return found if isinstance(found, Flaw) else _fitted(found, column)


def _picture(content: bytes, column: ImageColumn) -> Pixels | Flaw:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("error", UserWarning)  # a damaged EXIF entry could turn the image wrongly
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                flaw = _flaw_before_decoding(image, column)
                return _decoded(image, column) if flaw is None else flaw
    except UnidentifiedImageError:
        return image_flaws.OTHER_FORMAT
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return image_flaws.TOO_MANY_PIXELS
    except MemoryError:  # the image may be good
        raise
    except Exception:  # the decoders raise many kinds of errors for damaged bytes
        return image_flaws.DAMAGED


def _content(root: Path, path: str) -> bytes | Flaw:
    """Return a file's bytes. Each folder on its path is opened in turn, so that nobody can swap a folder meanwhile."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        return image_flaws.OUTSIDE
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
        found = os.fstat(descriptors[-1])
        if not stat.S_ISREG(found.st_mode):
            return image_flaws.NOT_PLAIN
        if not found.st_size:
            return image_flaws.EMPTY
        if found.st_size > image_flaws.LARGEST_FILE_BYTES:
            return image_flaws.TOO_LONG
        with os.fdopen(os.dup(descriptors[-1]), "rb") as file:
            return file.read(found.st_size)
    except OSError as error:
        return _flaw_of(error)
    except ValueError:  # the path has half of a character
        return image_flaws.NO_FILE
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _flaw_of(error: OSError) -> Flaw:
    """Convert an error of opening a file to a flaw of the image. Raise an error if disk or process failed."""
    if error.errno == errno.ELOOP:
        return image_flaws.OUTSIDE
    if isinstance(error, PermissionError):
        return image_flaws.UNREADABLE
    if error.errno in _NO_FILE:
        return image_flaws.NO_FILE
    raise UnavailableError(
        what=f"The images of the table cannot be read now: {error.strerror}.",
        consequence="The table was not used and nothing was sent.",
        remedy=(
            "Check the disk or network share that has the images, and the limit of open files of this user account. "
            "Then start again."
        ),
    ) from error


def _flaw_before_decoding(image: Image.Image, column: ImageColumn) -> Flaw | None:
    if getattr(image, "n_frames", 1) != 1:
        return image_flaws.SEVERAL
    if (flaw := image_flaws.of_size(column, *image.size)) is not None:
        return flaw
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return image_flaws.TRANSPARENT
    if image.mode not in _MODES:
        return image_flaws.OTHER_PIXELS
    channels, bits = _MODES[image.mode]
    if (flaw := image_flaws.of_channels(column, channels)) is not None:
        return flaw
    stored = " ".join(str(tile) for tile in getattr(image, "tile", ()))
    if ";2" in stored or ";4" in stored:
        return image_flaws.FEW_BITS  # the library would silently stretch them to 8
    if bits == 8 and ";16" in stored:
        bits = 16  # for a colour image the library would drop the lower 8 bits without an error
    if bits != column.bits:
        return image_flaws.WIDE if bits == 16 else image_flaws.NARROW
    return None


def _decoded(image: Image.Image, column: ImageColumn) -> Pixels | Flaw:
    from PIL import ImageOps

    image.load()
    turned = ImageOps.exif_transpose(image) if column.orientation == "exif" else image
    values = np.asarray(turned, dtype=np.float32).reshape(turned.height, turned.width, column.image.channels)
    return _fitted(values, column)


def _fitted(values: Pixels, column: ImageColumn) -> Pixels | Flaw:
    """Convert an upright image, (height, width, channels), to the declared size and window."""
    from PIL import Image as Images

    wanted = column.image
    if column.resize == "refuse" and values.shape[:2] != (wanted.height, wanted.width):
        return image_flaws.other_size(column)
    planes = [values[:, :, channel] for channel in range(wanted.channels)]
    if column.resize == "stretch":
        size = (wanted.width, wanted.height)
        planes = [np.asarray(Images.fromarray(plane).resize(size, Images.Resampling.BILINEAR)) for plane in planes]
    return in_window(np.stack(planes).reshape(-1), column)


def in_window(intensities: Pixels, column: ImageColumn) -> Pixels:
    """Convert a file's intensities, of any shape, to numbers in [0, 1]."""
    low, high = column.limits
    scaled: Pixels = np.clip((intensities - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    return scaled
