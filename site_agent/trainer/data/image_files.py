"""Reads the images that a table names, and refuses everything that the contract does not declare.

The rules:

* a path stays in the declared folder: no absolute path, no "..", no link on the way;
* the file's size and the size in its header are checked before memory is reserved;
* a file has to be what the contract declares: kind of pixels, bits, size. Nothing is converted silently;
* a file that cannot be used is a `Flaw` of its row, in words that hold no part of the path. Nothing here raises
  because of a single file;
* of a file only its pixels are kept: no name, no EXIF entry, no text.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.errors import ConfigurationError, DataError
from site_agent.trainer.data.cell_rules import MISSING, Flaw
from site_agent.trainer.data.image_column import ImageColumn

if TYPE_CHECKING:
    from PIL import Image

Pixels: TypeAlias = npt.NDArray[np.float32]

LARGEST_FILE_BYTES: Final = 64 << 20
LARGEST_FILE_PIXELS: Final = 1 << 25  # of a file that is stretched; some 0.8 GB for a moment with three channels
LARGEST_TABLE_NUMBERS: Final = 1 << 28  # 1 GiB of float32 for all images of a table

OUTSIDE: Final = Flaw("a path that leaves the images' folder or follows a link")
NO_FILE: Final = Flaw("no such file in the images' folder")
UNREADABLE: Final = Flaw("a file that this user may not read")
NOT_PLAIN: Final = Flaw("a folder or a device instead of a file")
EMPTY: Final = Flaw("an empty file")
TOO_LONG: Final = Flaw(f"a file of more than {LARGEST_FILE_BYTES >> 20} MiB")
OTHER_FORMAT: Final = Flaw("a file that is neither PNG nor JPEG")
DAMAGED: Final = Flaw("a damaged image file")
SEVERAL: Final = Flaw("a file with several images")
TRANSPARENT: Final = Flaw("an image with transparency; save it without")
GREY: Final = Flaw("a grey image, and the contract declares channels: 3")
COLOURED: Final = Flaw("an image in colour, and the contract declares channels: 1")
WIDE: Final = Flaw("an image with 16 bits, and the contract declares bits: 8")
NARROW: Final = Flaw("an image with 8 bits, and the contract declares bits: 16")
OTHER_PIXELS: Final = Flaw("an image with a palette, with black and white only, or for print; save it as grey or RGB")
TOO_MANY_PIXELS: Final = Flaw(f"an image of more than {LARGEST_FILE_PIXELS} pixels")

_FORMATS: Final = ("PNG", "JPEG")
_MODES: Final = {"L": (1, 8), "I;16": (1, 16), "RGB": (3, 8)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Taken:
    """Some rows' images.

    Attributes:
        pixels: float32 of shape (rows, numbers of an image) in [0, 1], NaN where flawed.
        flaws: by words, the places of the rows.
    """

    pixels: Pixels
    flaws: Mapping[str, Sequence[int]]


class ImageFolder:
    """The folder of a table's images."""

    def __init__(self, column: ImageColumn, table: Path, markers: Sequence[str]) -> None:
        """`markers` say in the whole table that a cell is missing.

        Raises:
            DataError: the folder cannot be read.
            ConfigurationError: the library for images is not installed.
        """
        self._column, self._root = column, table.parent / column.folder
        self._markers = {"", *markers, *column.missing_markers}
        self._numbers = 0
        if not self._root.is_dir():
            raise DataError(
                what=f"The contract's folder of images, {column.folder}, is not a folder beside the table.",
                consequence="The table was not used and nothing left this site.",
                remedy="Correct the key folder of the column with the role image in the contract.",
            )
        try:
            import PIL.Image  # noqa: F401  # only the sites with images need it
        except ImportError as cause:
            raise ConfigurationError(
                what="The package pillow is not installed, and a table with images needs it.",
                consequence="The table was not used and nothing left this site.",
                remedy='Install the extra: pip install "global-layers[site]".',
            ) from cause

    def read(self, cells: Sequence[str]) -> Taken:
        """The images of some rows.

        Raises:
            DataError: the images of the table need more memory than this program reserves.
        """
        numbers = self._column.image.numbers
        self._reserve(len(cells) * numbers)
        pixels = np.full((len(cells), numbers), np.nan, dtype=np.float32)
        flaws: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            found = MISSING if cell.strip() in self._markers else self._image(cell.strip())
            if isinstance(found, Flaw):
                flaws.setdefault(found.words, []).append(place)
            else:
                pixels[place] = found
        return Taken(pixels=pixels, flaws=flaws)

    def _reserve(self, numbers: int) -> None:
        self._numbers += numbers
        if self._numbers > LARGEST_TABLE_NUMBERS:
            most = LARGEST_TABLE_NUMBERS // self._column.image.numbers
            raise DataError(
                what=f"The table has at least {self._numbers // self._column.image.numbers} images. "
                f"This program reads at most {most} images of the size {self._column.image}.",
                consequence="The table was not used and nothing left this site.",
                remedy="Declare a smaller image size with `resize: stretch` in the contract, or use fewer rows.",
            )

    def _image(self, path: str) -> Pixels | Flaw:
        content = _content(self._root, path)
        return content if isinstance(content, Flaw) else pixels_of(content, self._column)


def pixels_of(content: bytes, column: ImageColumn) -> Pixels | Flaw:
    """One file's image: float32 of shape (numbers of an image,) in [0, 1]; or why it cannot be used."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("error", UserWarning)  # a damaged EXIF entry could turn the image wrongly
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                flaw = _flaw_before_decoding(image, column)
                return _decoded(image, column) if flaw is None else flaw
    except UnidentifiedImageError:
        return OTHER_FORMAT
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return TOO_MANY_PIXELS
    except Exception:  # the decoders raise nearly every kind of error for damaged bytes
        return DAMAGED


def _content(root: Path, path: str) -> bytes | Flaw:
    """The bytes of a file in a folder. Each part is opened from the one before, so nothing can be exchanged between."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        return OUTSIDE
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts:
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
        found = os.fstat(descriptors[-1])
        if not stat.S_ISREG(found.st_mode):
            return NOT_PLAIN
        if not found.st_size:
            return EMPTY
        if found.st_size > LARGEST_FILE_BYTES:
            return TOO_LONG
        with os.fdopen(os.dup(descriptors[-1]), "rb") as file:
            return file.read(LARGEST_FILE_BYTES)
    except OSError as error:
        return _flaw_of(error)
    except ValueError:  # half of a character
        return NO_FILE
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _flaw_of(error: OSError) -> Flaw:
    if error.errno == errno.ELOOP:
        return OUTSIDE
    return UNREADABLE if isinstance(error, PermissionError) else NO_FILE


def _flaw_before_decoding(image: Image.Image, column: ImageColumn) -> Flaw | None:
    """What is wrong by the header alone."""
    if getattr(image, "n_frames", 1) != 1:
        return SEVERAL
    width, height = image.size
    wanted = column.image
    if column.resize == "refuse" and sorted((width, height)) != sorted((wanted.width, wanted.height)):
        return _other_size(column)
    if width * height > LARGEST_FILE_PIXELS:
        return TOO_MANY_PIXELS
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return TRANSPARENT
    if image.mode not in _MODES:
        return OTHER_PIXELS
    channels, bits = _MODES[image.mode]
    if channels != wanted.channels:
        return GREY if channels == 1 else COLOURED
    if bits == 8 and any(";16" in str(tile) for tile in getattr(image, "tile", ())):
        bits = 16  # of a colour image the library would drop the lower 8 without a word
    if bits != column.bits:
        return WIDE if bits == 16 else NARROW
    return None


def _decoded(image: Image.Image, column: ImageColumn) -> Pixels | Flaw:
    from PIL import Image as Images
    from PIL import ImageOps

    wanted = column.image
    image.load()
    turned = ImageOps.exif_transpose(image) if column.orientation == "exif" else image
    if column.resize == "refuse" and turned.size != (wanted.width, wanted.height):
        return _other_size(column)
    values = np.asarray(turned, dtype=np.float32).reshape(turned.height, turned.width, wanted.channels)
    planes = [values[:, :, channel] for channel in range(wanted.channels)]
    if column.resize == "stretch":
        size = (wanted.width, wanted.height)
        planes = [np.asarray(Images.fromarray(plane).resize(size, Images.Resampling.BILINEAR)) for plane in planes]
    return in_window(np.stack(planes).reshape(-1), column)


def in_window(intensities: Pixels, column: ImageColumn) -> Pixels:
    """Intensities of any shape as files have them, to numbers in [0, 1] of the same shape."""
    low, high = column.limits
    scaled: Pixels = np.clip((intensities - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    return scaled


def _other_size(column: ImageColumn) -> Flaw:
    return Flaw(f"an image of another size than {column.image.height} by {column.image.width} pixels")
