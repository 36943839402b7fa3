"""Lists the reasons for which an image is not used, and the size limits of files. No reason contains a path."""

from __future__ import annotations

from typing import Final

from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.image_column import LARGEST_INTENSITY, ImageColumn

LARGEST_FILE_BYTES: Final = 64 << 20
# The limit of pixels in a file; with three channels, such a file needs 0.8 GB for a moment.
LARGEST_FILE_PIXELS: Final = 1 << 25
LARGEST_VOLUME_BYTES: Final = 1 << 28  # for a NIfTI volume without its compression

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

MASK_NOT_PNG: Final = Flaw("a mask that is not a PNG file")
NOT_A_MASK: Final = Flaw("a mask with other intensities than 0 and 255")

NOT_DICOM: Final = Flaw("a file that is not DICOM")
NOT_NIFTI: Final = Flaw("a file that is not NIfTI in one part (.nii or .nii.gz)")
NO_PIXELS: Final = Flaw("a DICOM file without an image")
BURNED_IN: Final = Flaw("an image whose BurnedInAnnotation is YES (remove the text in its pixels)")
NOT_DECLARED_CLEAN: Final = Flaw("an image without BurnedInAnnotation NO, which the contract requires")
WITH_PATIENT: Final = Flaw("a file with tags of the patient, which the contract refuses (remove these tags)")
PACKED: Final = Flaw("a file with an unsupported compression (decompress it, for example with `gdcmconv --raw`)")
OTHER_MODALITY: Final = Flaw("an image of another modality than the contract declares")
OTHER_PLANE: Final = Flaw("an image in another plane than the contract declares, or without its orientation")
UNSCALED: Final = Flaw("an image with intensities that are not converted by one slope and intercept")
NOT_GREY_OR_RGB: Final = Flaw("an image of another kind than grey or RGB with 8 or 16 bits (export it as grey or RGB)")
NO_SUCH_SLICE: Final = Flaw("a slice or frame that the file does not have")
TOO_LARGE_VOLUME: Final = Flaw(f"a volume of more than {LARGEST_VOLUME_BYTES >> 20} MiB without its compression")
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
