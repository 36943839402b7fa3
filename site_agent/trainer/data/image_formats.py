"""Reads the content of one image file (PNG, JPEG, DICOM, NIfTI), and refuses what the contract does not declare.

NIfTI states the position of the patient, so a slice is turned to the usual view of its plane: the patient's right at
the left of an axial or coronal image, the face at the left of a sagittal one. The rules:

* sizes are checked in the header. Nothing is unpacked beyond the size in the header or the limits;
* a file must match the declaration: kind of pixels, bits, size. Nothing is converted silently;
* only the pixels are stored, in the file's own unit, after its one slope and intercept: no name, no EXIF entry, no tag;
* of a DICOM file only the tags in `_READ` and the pixels are parsed. Tags of the patient are never read;
* an image with burnt-in names according to its own tags is refused. The pixels themselves are not searched.
"""

from __future__ import annotations

import gzip
import io
import logging
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.columns import LARGEST_INTENSITY, DicomFiles, ImageColumn, NiftiFiles, Plane

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Header
    from PIL import Image
    from pydicom import Dataset


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
SEVERAL: Final = Flaw("a file with several images (of DICOM frames name one: 1001.dcm#3)")
TRANSPARENT: Final = Flaw("an image with transparency (save it without transparency)")
OTHER_CHANNELS: Final = Flaw("a grey image where the contract declares channels: 3, or one in colour for channels: 1")
OTHER_DEPTH: Final = Flaw("an image with 8 bits where the contract declares bits: 16, or with 16 where it declares 8")
OTHER_PIXELS: Final = Flaw("an image with a palette, with 1, 2 or 4 bits, or for print (save it as grey or RGB)")
TOO_MANY_PIXELS: Final = Flaw(f"an image of more than {LARGEST_FILE_PIXELS} pixels")

NOT_DICOM: Final = Flaw("a file that is not DICOM")
NOT_NIFTI: Final = Flaw("a file that is not NIfTI in one part (.nii or .nii.gz)")
NO_PIXELS: Final = Flaw("a DICOM file without an image")
BURNED_IN: Final = Flaw("an image whose BurnedInAnnotation is YES (remove the text in its pixels)")
NOT_DECLARED_CLEAN: Final = Flaw("an image without BurnedInAnnotation NO, which the contract requires")
PACKED: Final = Flaw("a file with an unsupported compression (decompress it, for example with `gdcmconv --raw`)")
OTHER_MODALITY: Final = Flaw("an image of another modality than the contract declares")
OTHER_PLANE: Final = Flaw("an image in another plane than the contract declares, or without its orientation")
UNSCALED: Final = Flaw("an image with intensities that are not converted by one slope and intercept")
NOT_GREY_OR_RGB: Final = Flaw("an image of another kind than grey or RGB with 8 or 16 bits (export it as grey or RGB)")
OTHER_BITS: Final = Flaw("an image with bits outside BitsStored, or with a HighBit that is not BitsStored - 1")
TWO_VIEWS: Final = Flaw("a volume whose orientations qform and sform contradict each other (correct the wrong one)")
IN_HEADER: Final = Flaw("a volume whose voxels would begin inside its header (vox_offset)")
COMPANION: Final = Flaw("a file that macOS or Windows writes beside the images (delete its row)")
NO_SUCH_SLICE: Final = Flaw("a slice or frame that the file does not have")
TOO_LARGE_VOLUME: Final = Flaw(f"a volume of more than {LARGEST_VOLUME_BYTES >> 20} MiB without its compression")
NO_NUMBERS: Final = Flaw(f"an image with intensities that are not finite or beyond {LARGEST_INTENSITY}")


def of_size(column: ImageColumn, width: int, height: int) -> Flaw | None:
    """Return the flaw of a file whose width and height are not allowed, or None. Its image is not yet turned."""
    if column.resize == "refuse" and sorted((width, height)) != sorted((column.image.width, column.image.height)):
        return other_size(column)
    return TOO_MANY_PIXELS if width * height > LARGEST_FILE_PIXELS else None


def other_size(column: ImageColumn) -> Flaw:
    """Return the flaw of an image whose size differs from the size in the contract."""
    return Flaw(f"an image of another size than {column.image.height} by {column.image.width} pixels")


_MODES: Final = {"L": (1, 8), "I;16": (1, 16), "RGB": (3, 8)}


def pixels_of(content: bytes, column: ImageColumn, number: int | None = None) -> Intensities | Flaw:
    """Return one file's image, float32 (numbers,) in [0, 1], or why it is refused. Frames are numbered from 1."""
    try:
        match column.files:
            case DicomFiles():
                found = _dicom_image(content, column, column.files, number)
            case NiftiFiles():
                found = _nifti_slice(content, column.files, number)
            case None:
                found = _picture(content, column)
            case _:
                assert_never(column.files)
        return found if isinstance(found, Flaw) else _fitted(found, column)
    except MemoryError:  # the image may be good
        raise
    except Exception:  # the decoders raise many kinds of errors for damaged bytes
        return DAMAGED


def _picture(content: bytes, column: ImageColumn) -> Intensities | Flaw:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("error", UserWarning)  # a damaged EXIF entry could turn the image wrongly
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                flaw = _flaw_before_decoding(image, column)
                return _decoded(image, column) if flaw is None else flaw
    except UnidentifiedImageError:
        return OTHER_FORMAT
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return TOO_MANY_PIXELS


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
    if channels != column.image.channels:
        return OTHER_CHANNELS
    stored = " ".join(str(tile) for tile in getattr(image, "tile", ()))
    if ";2" in stored or ";4" in stored:
        return OTHER_PIXELS  # the library would silently stretch them to 8
    if bits == 8 and ";16" in stored:
        bits = 16  # for a colour image the library would drop the lower 8 bits without an error
    return None if bits == column.bits else OTHER_DEPTH


def _decoded(image: Image.Image, column: ImageColumn) -> Intensities:
    from PIL import ImageOps

    image.load()
    turned = ImageOps.exif_transpose(image)
    return np.asarray(turned, dtype=np.float32).reshape(turned.height, turned.width, column.image.channels)


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
Direction: TypeAlias = tuple[int, int]  # the patient's axis (left, back, head) and its sign

# The directions down, right and across in the usual view of a plane, in DICOM's axes: 0 leads to the patient's left, 1
# to the back, 2 to the head.
_VIEWS: Final[dict[Plane, tuple[Direction, Direction, Direction]]] = {
    "axial": ((1, 1), (0, 1), (2, 1)),
    "coronal": ((2, -1), (0, 1), (1, 1)),
    "sagittal": ((2, -1), (1, 1), (0, 1)),
}
# The smallest cosine of the angle between an image's edge and the patient's axis; about 37 degrees.
_STRAIGHT: Final = 0.8

_PLAIN: Final = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
_JPEG: Final = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")  # baseline, 2000
_SEVERAL_SCALES: Final = (
    "ModalityLUTSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
_READ: Final = (
    "Modality", "BurnedInAnnotation", "RescaleSlope", "RescaleIntercept", "Rows", "Columns",
    "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit",
    "PixelData", *_SEVERAL_SCALES,
)  # fmt: skip
_ROUNDED: Final = 1e-5  # by how much the square of a rotation's quaternion can differ from one
_HEADER_BYTES: Final = {348: "nifti1", 540: "nifti2"}


def _dicom_image(content: bytes, column: ImageColumn, files: DicomFiles, number: int | None) -> Intensities | Flaw:
    """Return the image of a DICOM file: one frame.

    An image with inverted grey is turned back by the column's window. The frame's number is from 1, or None.
    """
    from PIL import Image

    logging.getLogger("pydicom").disabled = True  # warnings of the library can contain the text of a tag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        found = _dicom_tags(content)
        if isinstance(found, Flaw):
            return found
        flaw = _dicom_flaw(found, column, files, number)
        return _dicom_pixels(found, column, number or 1) if flaw is None else flaw


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
        return NO_SUCH_SLICE
    if number is None and frames != 1:
        return SEVERAL
    if any(isinstance(tags.get(name), MultiValue) for name in ("RescaleSlope", "RescaleIntercept")):
        return UNSCALED  # numpy would compute one image for each value
    height, width = int(tags.Rows), int(tags.Columns)
    if (flaw := of_size(column, width, height)) is not None:
        return flaw
    kind, bits = str(tags.PhotometricInterpretation), int(tags.BitsAllocated)
    channels = 1 if kind.startswith("MONOCHROME") else 3
    if not 1 <= int(tags.BitsStored) <= bits or int(tags.HighBit) != int(tags.BitsStored) - 1:
        return OTHER_BITS
    if bits not in (8, 16) or kind == "PALETTE COLOR" or int(tags.SamplesPerPixel) != channels:
        return NOT_GREY_OR_RGB
    return None if channels == column.image.channels else OTHER_CHANNELS


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
    is_plain = tags.file_meta.TransferSyntaxUID in _PLAIN
    stored = pixel_array(tags, index=number - 1, correct_unused_bits=not is_plain).astype(np.int32)
    if is_plain:
        # The library would drop bits above HighBit: old overlays, or parts of the value if BitsStored is wrong.
        sign = 1 << int(tags.HighBit) if tags.PixelRepresentation else 0
        plain = stored & ((2 << int(tags.HighBit)) - 1)
        if ((plain != stored) & ((plain ^ sign) - sign != stored)).any():
            return OTHER_BITS
        stored = (plain ^ sign) - sign
    values = stored.astype(np.float32).reshape(int(tags.Rows), int(tags.Columns), column.image.channels)
    slope, intercept = tags.get("RescaleSlope"), tags.get("RescaleIntercept")
    values = values * np.float32(1 if slope is None else slope) + np.float32(0 if intercept is None else intercept)
    low, high = column.limits
    if tags.PhotometricInterpretation == "MONOCHROME1":
        values = np.float32(low + high) - values  # the lowest value is white, so intensities are inverted
    end, half = tags.get("PixelPaddingRangeLimit"), 0x8000 * tags.PixelRepresentation
    written = (*np.ravel(tags.get("PixelPaddingValue")), end)
    padding = [((one & 0xFFFF) ^ half) - half for one in written if one is not None]  # 63536 can be -2000
    is_padding = np.isin(stored, padding) if end is None else (min(padding) <= stored) & (stored <= max(padding))
    values[is_padding.reshape(values.shape)] = low  # no part of the image: black
    return _finite(values)


def _nifti_slice(content: bytes, files: NiftiFiles, number: int | None) -> Intensities | Flaw:
    """Return one slice of a NIfTI volume, also compressed by gzip, in the usual view of the declared plane.

    `number` is the slice's number, from 1; None uses the declared slice.
    """
    packed = content[:2] == b"\x1f\x8b"
    with gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content) as file:
        start = file.read(max(_HEADER_BYTES))
        header = _nifti_header(start)
        if isinstance(header, Flaw):
            return header
        if (flaw := _nifti_flaw(header, start)) is not None:
            return flaw
        kind, shape = header.get_data_dtype(), header.get_data_shape()[:3]
        end = header.get_data_offset() + kind.itemsize * int(np.prod(shape))
        volume = (start + file.read(max(0, end - len(start))))[header.get_data_offset() : end]
    values = np.frombuffer(volume, dtype=kind).reshape((*shape, *[1] * (3 - len(shape))), order="F")
    return _nifti_plane(values, header, files, number)


def _nifti_header(start: bytes) -> Nifti1Header | Flaw:
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    sizes = int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")
    size = next((size for size in _HEADER_BYTES if size in sizes), 0)
    if not size or len(start) < size or b"n+" not in (start[4:6], start[344:346]):
        return NOT_NIFTI
    kind = Nifti1Header if _HEADER_BYTES[size] == "nifti1" else Nifti2Header
    return kind(start[:size], check=False)  # type: ignore[no-untyped-call]  # the check would write to the screen


def _nifti_flaw(header: Nifti1Header, start: bytes) -> Flaw | None:
    shape, kind = header.get_data_shape(), header.get_data_dtype()
    if len(shape) < 2 or min(shape) < 1:
        return DAMAGED
    if int(np.prod(shape[3:], dtype=object)) != 1:
        return SEVERAL
    if kind.kind not in "iuf":
        return OTHER_CHANNELS if kind.kind == "V" else NOT_GREY_OR_RGB
    size = header.get_data_offset() + kind.itemsize * int(np.prod(shape, dtype=object))
    if not 0 <= header.get_data_offset() < size <= LARGEST_VOLUME_BYTES:
        return TOO_LARGE_VOLUME
    # Behind the header are four bytes, of which the first says whether extensions follow, each with its length.
    first = int(header["sizeof_hdr"]) + 4
    extended = first + (8 if start[first - 4 : first - 3].strip(b"\0") else 0)
    if float(header["vox_offset"]) % 1 or header.get_data_offset() < extended:
        return IN_HEADER
    # Without an orientation, left and right could be exchanged.
    if not (header["sform_code"] or header["qform_code"]):
        return OTHER_PLANE
    header.quaternion_threshold = _ROUNDED  # type: ignore[assignment]  # of quaternions that were written with six digits
    if header["pixdim"][0] == 0:
        header["pixdim"][0] = 1  # as the standard says
    is_both = header["sform_code"] and header["qform_code"]
    return TWO_VIEWS if is_both and _axes(header.get_sform()) != _axes(header.get_qform()) else None


def _axes(affine: npt.NDArray[np.float64]) -> list[Direction | None]:
    # NIfTI's axes lead to the right, the front and the head. DICOM's axes lead to the left, the back and the head.
    axes = np.array([[-1.0], [-1.0], [1.0]]) * affine[:3, :3]
    return [_nearest(axes[:, place]) for place in range(3)]


def _nifti_plane(
    volume: npt.NDArray[np.generic], header: Nifti1Header, files: NiftiFiles, number: int | None
) -> Intensities | Flaw:
    directions = _axes(header.get_best_affine())
    across, sign = _VIEWS[files.plane][2]
    places = [place for place, direction in enumerate(directions) if direction is not None and direction[0] == across]
    if len(places) != 1:
        return OTHER_PLANE
    (place,), count = places, volume.shape[places[0]]
    # Halves are rounded down, so that the middle slice of four slices is the second slice.
    index = number - 1 if number is not None else int(np.ceil(files.at * (count - 1) - 0.5))
    if not 0 <= index < count:
        return NO_SUCH_SLICE
    if volume.size // count > LARGEST_FILE_PIXELS:
        return TOO_MANY_PIXELS
    found = directions[place]
    assert found is not None
    chosen = np.moveaxis(volume, place, 0)[index if found[1] == sign else count - 1 - index]
    slope, intercept = header.get_slope_inter()
    values = chosen.astype(np.float64)  # changed in place, because a slice can have 256 MiB
    values *= 1.0 if slope is None else slope
    values += intercept or 0.0
    is_kept = (values >= -LARGEST_INTENSITY) & (values <= LARGEST_INTENSITY)
    values[~is_kept] = np.inf  # refused below, because float32 may not represent them
    image = values.astype(np.float32)[:, :, None]
    del values
    down, right = (direction for other, direction in enumerate(directions) if other != place)
    return _upright(image, (down, right), files.plane)


def _nearest(vector: npt.NDArray[np.float64]) -> Direction | None:
    """Return the patient's axis along which a vector leads, or None if the vector is too oblique."""
    length, axis = float(np.sqrt(np.square(vector).sum())), int(np.argmax(np.abs(vector)))
    if not np.isfinite(length) or not length or abs(vector[axis]) < _STRAIGHT * length:
        return None
    return axis, 1 if vector[axis] > 0 else -1


def _upright(
    values: Intensities, directions: tuple[Direction | None, Direction | None], plane: Plane
) -> Intensities | Flaw:
    """Turn an image (rows, columns, channels) to the usual view, from the directions of its rows and columns."""
    down, right = directions
    wanted = _VIEWS[plane][:2]
    if down is None or right is None or {down[0], right[0]} != {axis for axis, _ in wanted}:
        return OTHER_PLANE
    if down[0] != wanted[0][0]:
        values, down, right = values.transpose(1, 0, 2), right, down
    values = values[:: 1 if down == wanted[0] else -1, :: 1 if right == wanted[1] else -1]
    return _finite(values)


def _finite(values: Intensities) -> Intensities | Flaw:
    found: Intensities = np.ascontiguousarray(values)
    return found if (np.abs(found) <= LARGEST_INTENSITY).all() else NO_NUMBERS


# The units that the standard defines for PET (PS3.3 C.8.9.1.1.3). Any other text could name a patient.
_UNITS: Final = frozenset(
    (
        *("CNTS", "NONE", "CM2", "CM2ML", "PCNT", "CPS", "BQML", "MGMINML", "UMOLMINML", "MLMING", "MLG", "1CM"),
        *("UMOLML", "PROPCNTS", "PROPCPS", "MLMINML", "MLML", "GML", "STDDEV"),
    )
)
_SCALE_TAGS: Final = ["Modality", "Units", "RescaleType", "RescaleSlope", "RescaleIntercept"]


def scale_of(content: bytes) -> str:
    """Return the scale of a DICOM image that was read before, in words without a text of the file."""
    import pydicom

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tags = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=_SCALE_TAGS)
        modality, slope, intercept = tags.get("Modality"), tags.get("RescaleSlope"), tags.get("RescaleIntercept")
        if modality == "PT":
            units = str(tags.get("Units"))
            return f"the unit {units}" if units in _UNITS else "no usual unit"
        if modality == "CT" and (slope is None or intercept is None):
            return "no RescaleSlope or RescaleIntercept"
        if modality == "CT":
            return "Hounsfield units" if tags.get("RescaleType", "HU") == "HU" else "another unit than Hounsfield's"
        return f"slope {float(1 if slope is None else slope):g}, intercept {float(intercept or 0):g}"


def difference(scales: Counter[str]) -> str | None:
    """Return what to ask about images of several scales, or None."""
    if len(scales) < 2:
        return None
    shown = ", ".join(f"{count} have {scale}" for scale, count in scales.most_common(4))
    more = f" and {len(scales) - 4} other scales are there" if len(scales) > 4 else ""
    return f"intensities differ in their scale: {shown}{more}; does the window mean the same in each image?"
