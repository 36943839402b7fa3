"""Reads the content of one image file (PNG, JPEG, DICOM), and refuses what the contract does not declare.

The rules:

* sizes are checked in the header. Nothing is unpacked beyond the size in the header or the limits;
* a file must match the declaration: kind of pixels, bits, size. Nothing is converted silently;
* only the pixels are stored, in the file's own unit, after its one slope and intercept: no name, no EXIF entry, no tag;
* of a DICOM file only the tags in `_READ` and the pixels are parsed. Tags of the patient are never read;
* an image with burnt-in names according to its own tags is refused. The pixels themselves are not searched.
"""

from __future__ import annotations

import io
import logging
import warnings
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.columns import LARGEST_INTENSITY, DicomFiles, ImageColumn

if TYPE_CHECKING:
    from PIL import Image
    from pydicom import Dataset


LARGEST_FILE_BYTES: Final = 64 << 20
# The limit of pixels in a file; with three channels, such a file needs 0.8 GB for a moment.
LARGEST_FILE_PIXELS: Final = 1 << 25

OUTSIDE: Final = Flaw("a path that leaves the images' folder or follows a link")
NO_FILE: Final = Flaw("no such file in the images' folder")
UNREADABLE: Final = Flaw("a file that this user may not read")
NOT_PLAIN: Final = Flaw("a folder or a device instead of a file")
EMPTY: Final = Flaw("an empty file")
TOO_LONG: Final = Flaw(f"a file of more than {LARGEST_FILE_BYTES >> 20} MiB")
OTHER_FORMAT: Final = Flaw("a file that is neither PNG nor JPEG")
DAMAGED: Final = Flaw("a damaged image file")
SEVERAL: Final = Flaw("a file with several images")
TRANSPARENT: Final = Flaw("an image with transparency (save it without transparency)")
GREY: Final = Flaw("a grey image, and the contract declares channels: 3")
COLOURED: Final = Flaw("an image in colour, and the contract declares channels: 1")
FEW_BITS: Final = Flaw("an image with 2 or 4 bits (save it with 8 bits)")
WIDE: Final = Flaw("an image with 16 bits, and the contract declares bits: 8")
NARROW: Final = Flaw("an image with 8 bits, and the contract declares bits: 16")
OTHER_PIXELS: Final = Flaw("an image with a palette, with black and white only, or for print (save it as grey or RGB)")
TOO_MANY_PIXELS: Final = Flaw(f"an image of more than {LARGEST_FILE_PIXELS} pixels")

NOT_DICOM: Final = Flaw("a file that is not DICOM")
NO_PIXELS: Final = Flaw("a DICOM file without an image")
BURNED_IN: Final = Flaw("an image whose BurnedInAnnotation is YES (remove the text in its pixels)")
NOT_DECLARED_CLEAN: Final = Flaw("an image without BurnedInAnnotation NO, which the contract requires")
PACKED: Final = Flaw("a file with an unsupported compression (decompress it, for example with `gdcmconv --raw`)")
OTHER_MODALITY: Final = Flaw("an image of another modality than the contract declares")
UNSCALED: Final = Flaw("an image with intensities that are not converted by one slope and intercept")
NOT_GREY_OR_RGB: Final = Flaw("an image of another kind than grey or RGB with 8 or 16 bits (export it as grey or RGB)")
NO_SUCH_FRAME: Final = Flaw("a frame that the file does not have")
NO_NUMBERS: Final = Flaw(f"an image with intensities that are not finite or beyond {LARGEST_INTENSITY}")


def of_size(column: ImageColumn, width: int, height: int) -> Flaw | None:
    """Return the flaw of a file whose width and height are not allowed, or None. Its image is not yet turned."""
    if column.resize == "refuse" and sorted((width, height)) != sorted((column.image.width, column.image.height)):
        return other_size(column)
    return TOO_MANY_PIXELS if width * height > LARGEST_FILE_PIXELS else None


def of_channels(column: ImageColumn, channels: int) -> Flaw | None:
    """Return the flaw of a file whose number of channels differs from the contract, or None."""
    if channels == column.image.channels:
        return None
    return GREY if channels == 1 else COLOURED


def other_size(column: ImageColumn) -> Flaw:
    """Return the flaw of an image whose size differs from the size in the contract."""
    return Flaw(f"an image of another size than {column.image.height} by {column.image.width} pixels")


_FORMATS: Final = ("PNG", "JPEG")


_MODES: Final = {"L": (1, 8), "I;16": (1, 16), "RGB": (3, 8)}


def pixels_of(content: bytes, column: ImageColumn, number: int | None = None) -> Intensities | Flaw:
    """Return one file's image, float32 (numbers,) in [0, 1], or why it is refused. Frames are numbered from 1."""
    if column.files is None:
        return _picture(content, column)
    found = dicom_image(content, column, column.files, number)
    return found if isinstance(found, Flaw) else _fitted(found, column)


def _picture(content: bytes, column: ImageColumn) -> Intensities | Flaw:
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
    except MemoryError:  # the image may be good
        raise
    except Exception:  # the decoders raise many kinds of errors for damaged bytes
        return DAMAGED


def _flaw_before_decoding(image: Image.Image, column: ImageColumn) -> Flaw | None:
    if getattr(image, "n_frames", 1) != 1:
        return SEVERAL
    if (flaw := of_size(column, *image.size)) is not None:
        return flaw
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return TRANSPARENT
    if image.mode not in _MODES:
        return OTHER_PIXELS
    channels, bits = _MODES[image.mode]
    if (flaw := of_channels(column, channels)) is not None:
        return flaw
    stored = " ".join(str(tile) for tile in getattr(image, "tile", ()))
    if ";2" in stored or ";4" in stored:
        return FEW_BITS  # the library would silently stretch them to 8
    if bits == 8 and ";16" in stored:
        bits = 16  # for a colour image the library would drop the lower 8 bits without an error
    if bits != column.bits:
        return WIDE if bits == 16 else NARROW
    return None


def _decoded(image: Image.Image, column: ImageColumn) -> Intensities | Flaw:
    from PIL import ImageOps

    image.load()
    turned = ImageOps.exif_transpose(image) if column.orientation == "exif" else image
    values = np.asarray(turned, dtype=np.float32).reshape(turned.height, turned.width, column.image.channels)
    return _fitted(values, column)


def _fitted(values: Intensities, column: ImageColumn) -> Intensities | Flaw:
    """Convert an upright image, (height, width, channels), to the declared size and window."""
    from PIL import Image as Images

    wanted = column.image
    if column.resize == "refuse" and values.shape[:2] != (wanted.height, wanted.width):
        return other_size(column)
    planes = [values[:, :, channel] for channel in range(wanted.channels)]
    if column.resize == "stretch":
        size = (wanted.width, wanted.height)
        planes = [np.asarray(Images.fromarray(plane).resize(size, Images.Resampling.BILINEAR)) for plane in planes]
    return in_window(np.stack(planes).reshape(-1), column)


def in_window(intensities: Intensities, column: ImageColumn) -> Intensities:
    """Convert a file's intensities, of any shape, to numbers in [0, 1]."""
    low, high = column.limits
    scaled: Intensities = np.clip((intensities - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    return scaled


Intensities: TypeAlias = npt.NDArray[np.float32]  # (height, width, channels), or (numbers,) once fitted


_PLAIN: Final = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
_JPEG: Final = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")  # baseline, 2000
_SEVERAL_SCALES: Final = (
    "ModalityLUTSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
_READ: Final = (
    "Modality", "BurnedInAnnotation", "RescaleSlope", "RescaleIntercept", "Rows", "Columns",
    "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "PixelData", *_SEVERAL_SCALES,
)  # fmt: skip


def dicom_image(content: bytes, column: ImageColumn, files: DicomFiles, number: int | None) -> Intensities | Flaw:
    """Return the image of a DICOM file: one frame.

    An image with inverted grey is turned back by the column's window. The frame's number is from 1, or None.
    """
    from PIL import Image

    logging.getLogger("pydicom").disabled = True  # warnings of the library can contain the text of a tag
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            found = _dicom_tags(content)
            if isinstance(found, Flaw):
                return found
            flaw = _dicom_flaw(found, column, files, number)
            return _dicom_pixels(found, column, number or 1) if flaw is None else flaw
    except MemoryError:  # the image may be good
        raise
    except Exception:  # the decoders raise many kinds of errors for damaged bytes
        return DAMAGED


def _dicom_tags(content: bytes) -> Dataset | Flaw:
    import pydicom
    from pydicom.filereader import read_dataset, read_preamble

    if content[128:132] != b"DICM":
        return NOT_DICOM
    file = io.BytesIO(content)
    read_preamble(file, force=False)
    # Group 2 alone names the compression. A deflated file would be unpacked completely before its first tag.
    meta = read_dataset(file, False, True, stop_when=lambda tag, _kind, _length: tag.group != 2)
    if meta.get("TransferSyntaxUID") not in (*_PLAIN, *_JPEG):
        return PACKED
    return pydicom.dcmread(io.BytesIO(content), specific_tags=list(_READ))


def _dicom_flaw(tags: Dataset, column: ImageColumn, files: DicomFiles, number: int | None) -> Flaw | None:
    from pydicom.multival import MultiValue

    burned_in = str(tags.get("BurnedInAnnotation") or "").strip().upper()
    if "YES" in burned_in:  # also one of several values
        return BURNED_IN
    if burned_in != "NO" and files.burned_in == "require-no":
        return NOT_DECLARED_CLEAN
    if files.modality is not None and tags.get("Modality") != files.modality:
        return OTHER_MODALITY
    if "PixelData" not in tags:
        return NO_PIXELS
    if any(name in tags for name in _SEVERAL_SCALES):
        return UNSCALED
    frames = int(tags.get("NumberOfFrames") or 1)
    if not 1 <= (1 if number is None else number) <= frames:
        return NO_SUCH_FRAME
    if number is None and frames != 1:
        return SEVERAL
    if any(isinstance(tags.get(name), MultiValue) for name in ("RescaleSlope", "RescaleIntercept")):
        return UNSCALED  # numpy would compute one image for each value
    height, width = int(tags.Rows), int(tags.Columns)
    if (flaw := of_size(column, width, height)) is not None:
        return flaw
    kind, bits = str(tags.PhotometricInterpretation), int(tags.BitsAllocated)
    channels = 1 if kind.startswith("MONOCHROME") else 3
    if bits not in (8, 16) or kind == "PALETTE COLOR" or int(tags.SamplesPerPixel) != channels:
        return NOT_GREY_OR_RGB
    return of_channels(column, channels)


def _dicom_pixels(tags: Dataset, column: ImageColumn, number: int) -> Intensities | Flaw:
    from PIL import Image
    from pydicom.encaps import get_frame
    from pydicom.pixels.utils import pixel_array

    if tags.file_meta.TransferSyntaxUID in _JPEG:
        frames = int(tags.get("NumberOfFrames") or 1)
        frame = get_frame(tags.PixelData, number - 1, number_of_frames=frames)
        with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as packed:
            if packed.size != (int(tags.Columns), int(tags.Rows)):  # the tags were checked, and pixel_array unpacks
                return DAMAGED
    stored = pixel_array(tags, index=number - 1).astype(np.float32)
    values = stored.reshape(int(tags.Rows), int(tags.Columns), column.image.channels)
    slope, intercept = tags.get("RescaleSlope"), tags.get("RescaleIntercept")
    values = values * np.float32(1 if slope is None else slope) + np.float32(0 if intercept is None else intercept)
    if tags.PhotometricInterpretation == "MONOCHROME1":
        low, high = column.limits  # the lowest value is white, so intensities are inverted
        values = np.float32(low + high) - values
    return _finite(values)


def _finite(values: Intensities) -> Intensities | Flaw:
    found: Intensities = np.ascontiguousarray(values)
    return found if (np.abs(found) <= LARGEST_INTENSITY).all() else NO_NUMBERS
