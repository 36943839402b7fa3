"""Reads one image of a DICOM file or one slice of a NIfTI volume, and refuses what the contract does not allow.

Both formats state the position of the patient, so an image is turned to the usual view of its plane: the patient's
right at the left of an axial or coronal image, the face at the left of a sagittal one. The rules:

* sizes are checked in the header. Nothing is unpacked beyond the size in the header or the limits;
* intensities are in the file's own unit, after its one slope and intercept;
* of a DICOM file only the tags in `_READ` and the pixels are parsed. If the contract refuses tags of a patient, every
  sequence is searched for them. No tag leaves this module;
* an image with burnt-in names according to its own tags is refused. The pixels themselves are not searched.
"""

from __future__ import annotations

import gzip
import io
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data import image_flaws
from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.image_column import LARGEST_INTENSITY, DicomFiles, ImageColumn, NiftiFiles, Plane

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Header
    from pydicom import DataElement, Dataset

Intensities: TypeAlias = npt.NDArray[np.float32]  # (height, width, channels)
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
_PATIENT: Final = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientAddress", "PatientTelephoneNumbers", "OtherPatientNames",
    "OtherPatientIDs", "PatientMotherBirthName", "PatientBirthName", "OtherPatientIDsSequence",
    "PatientTelecomInformation", "MedicalRecordLocator",
)  # fmt: skip
_SEVERAL_SCALES: Final = (
    "ModalityLUTSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
_READ: Final = (
    "Modality", "BurnedInAnnotation", "ImageOrientationPatient", "RescaleSlope", "RescaleIntercept", "Rows", "Columns",
    "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "PixelData", *_PATIENT, *_SEVERAL_SCALES,
)  # fmt: skip
_FIRST_ITEM: Final = b"\xfe\xff\x00\xe0"  # a sequence begins with these bytes
_MOST_UNKNOWN: Final = 8  # levels of nested sequences; each level needs a copy of the bytes inside
_HEADER_BYTES: Final = {348: "nifti1", 540: "nifti2"}


def dicom_image(content: bytes, column: ImageColumn, files: DicomFiles, number: int | None) -> Intensities | Flaw:
    """Return the image of a DICOM file: one frame, in the usual view if the contract names a plane.

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
            if files.patient_tags == "refuse" and _names_patient(content):
                return image_flaws.WITH_PATIENT
            flaw = _dicom_flaw(found, column, files, number)
            return _dicom_pixels(found, column, files, number or 1) if flaw is None else flaw
    except MemoryError:  # the image may be good
        raise
    except Exception:  # the decoders raise many kinds of errors for damaged bytes
        return image_flaws.DAMAGED


def _dicom_tags(content: bytes) -> Dataset | Flaw:
    import pydicom
    from pydicom.filereader import read_dataset, read_preamble

    if content[128:132] != b"DICM":
        return image_flaws.NOT_DICOM
    file = io.BytesIO(content)
    read_preamble(file, force=False)
    # Group 2 alone names the compression. A deflated file would be unpacked completely before its first tag.
    meta = read_dataset(file, False, True, stop_when=lambda tag, _kind, _length: tag.group != 2)
    if meta.get("TransferSyntaxUID") not in (*_PLAIN, *_JPEG):
        return image_flaws.PACKED
    return pydicom.dcmread(io.BytesIO(content), specific_tags=list(_READ))


def _names_patient(content: bytes) -> bool:
    """Return whether a tag about the patient has a value, in the main part of the file or in any nested sequence."""
    import pydicom

    tags = _all_tags(pydicom.dcmread(io.BytesIO(content)), _MOST_UNKNOWN)
    return any(tag.keyword in _PATIENT and str(tag.value or "").strip(" ^=") for tag in tags)


def _all_tags(tags: Dataset, depth: int) -> Iterator[DataElement]:
    """Yield every tag, also in up to `depth` nested sequences without a declared type. More are a ValueError."""
    from pydicom.filereader import read_sequence

    for tag in tags.iterall():
        yield tag
        if tag.VR == "UN" and isinstance(tag.value, bytes) and tag.value.startswith(_FIRST_ITEM):
            if not depth:
                raise ValueError("too many sequences in one another")
            # A tag without a type uses the implicit transfer syntax: DICOM PS3.5, section 6.2.2.
            inner = read_sequence(io.BytesIO(tag.value), True, True, len(tag.value), "iso8859")
            for item in inner:
                yield from _all_tags(item, depth - 1)


def _dicom_flaw(tags: Dataset, column: ImageColumn, files: DicomFiles, number: int | None) -> Flaw | None:
    from pydicom.multival import MultiValue

    burned_in = str(tags.get("BurnedInAnnotation") or "").strip().upper()
    if "YES" in burned_in:  # also one of several values
        return image_flaws.BURNED_IN
    if burned_in != "NO" and files.burned_in == "require-no":
        return image_flaws.NOT_DECLARED_CLEAN
    if files.modality is not None and tags.get("Modality") != files.modality:
        return image_flaws.OTHER_MODALITY
    if "PixelData" not in tags:
        return image_flaws.NO_PIXELS
    if any(name in tags for name in _SEVERAL_SCALES):
        return image_flaws.UNSCALED
    frames = int(tags.get("NumberOfFrames") or 1)
    if not 1 <= (1 if number is None else number) <= frames:
        return image_flaws.NO_SUCH_SLICE
    if number is None and frames != 1:
        return image_flaws.SEVERAL
    if any(isinstance(tags.get(name), MultiValue) for name in ("RescaleSlope", "RescaleIntercept")):
        return image_flaws.UNSCALED  # numpy would compute one image for each value
    height, width = int(tags.Rows), int(tags.Columns)
    if (flaw := image_flaws.of_size(column, width, height)) is not None:
        return flaw
    kind, bits = str(tags.PhotometricInterpretation), int(tags.BitsAllocated)
    channels = 1 if kind.startswith("MONOCHROME") else 3
    if bits not in (8, 16) or kind == "PALETTE COLOR" or int(tags.SamplesPerPixel) != channels:
        return image_flaws.NOT_GREY_OR_RGB
    return image_flaws.of_channels(column, channels)


def _dicom_pixels(tags: Dataset, column: ImageColumn, files: DicomFiles, number: int) -> Intensities | Flaw:
    from PIL import Image
    from pydicom.encaps import get_frame
    from pydicom.pixels.utils import pixel_array

    if tags.file_meta.TransferSyntaxUID in _JPEG:
        frames = int(tags.get("NumberOfFrames") or 1)
        frame = get_frame(tags.PixelData, number - 1, number_of_frames=frames)
        with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as packed:
            if packed.size != (int(tags.Columns), int(tags.Rows)):  # the tags were checked, and pixel_array unpacks
                return image_flaws.DAMAGED
    stored = pixel_array(tags, index=number - 1).astype(np.float32)
    values = stored.reshape(int(tags.Rows), int(tags.Columns), column.image.channels)
    slope, intercept = tags.get("RescaleSlope"), tags.get("RescaleIntercept")
    values = values * np.float32(1 if slope is None else slope) + np.float32(0 if intercept is None else intercept)
    if tags.PhotometricInterpretation == "MONOCHROME1":
        low, high = column.limits  # the lowest value is white, so intensities are inverted
        values = np.float32(low + high) - values
    if files.plane is None:
        return _finite(values)
    towards = np.array([float(part) for part in tags.get("ImageOrientationPatient") or ()])
    if towards.shape != (6,):
        return image_flaws.OTHER_PLANE
    return _upright(values, (_nearest(towards[3:]), _nearest(towards[:3])), files.plane)


def nifti_slice(content: bytes, files: NiftiFiles, number: int | None) -> Intensities | Flaw:
    """Return one slice of a NIfTI volume, also compressed by gzip, in the usual view of the declared plane.

    `number` is the slice's number, from 1; None uses the declared slice.
    """
    try:
        packed = content[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content) as file:
            start = file.read(max(_HEADER_BYTES))
            header = _nifti_header(start)
            if isinstance(header, Flaw):
                return header
            if (flaw := _nifti_flaw(header)) is not None:
                return flaw
            kind, shape = header.get_data_dtype(), header.get_data_shape()[:3]
            end = header.get_data_offset() + kind.itemsize * int(np.prod(shape))
            volume = (start + file.read(max(0, end - len(start))))[header.get_data_offset() : end]
        values = np.frombuffer(volume, dtype=kind).reshape((*shape, *[1] * (3 - len(shape))), order="F")
        return _nifti_plane(values, header, files, number)
    except MemoryError:  # the image may be good
        raise
    except Exception:  # see dicom_image
        return image_flaws.DAMAGED


def _nifti_header(start: bytes) -> Nifti1Header | Flaw:
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    sizes = int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")
    size = next((size for size in _HEADER_BYTES if size in sizes), 0)
    if not size or len(start) < size or b"n+" not in (start[4:6], start[344:346]):
        return image_flaws.NOT_NIFTI
    kind = Nifti1Header if _HEADER_BYTES[size] == "nifti1" else Nifti2Header
    return kind(start[:size], check=False)  # type: ignore[no-untyped-call]  # the check would write to the screen


def _nifti_flaw(header: Nifti1Header) -> Flaw | None:
    shape, kind = header.get_data_shape(), header.get_data_dtype()
    if len(shape) < 2 or min(shape) < 1:
        return image_flaws.DAMAGED
    if int(np.prod(shape[3:], dtype=object)) != 1:
        return image_flaws.SEVERAL
    if kind.kind not in "iuf":
        return image_flaws.NOT_GREY_OR_RGB
    size = header.get_data_offset() + kind.itemsize * int(np.prod(shape, dtype=object))
    if not 0 <= header.get_data_offset() < size <= image_flaws.LARGEST_VOLUME_BYTES:
        return image_flaws.TOO_LARGE_VOLUME
    if not (header["sform_code"] or header["qform_code"]):
        return image_flaws.OTHER_PLANE  # left and right could be exchanged
    return None


def _nifti_plane(
    volume: npt.NDArray[np.generic], header: Nifti1Header, files: NiftiFiles, number: int | None
) -> Intensities | Flaw:
    # NIfTI's axes lead to the right, the front and the head. DICOM's axes lead to the left, the back and the head.
    axes = np.array([[-1.0], [-1.0], [1.0]]) * header.get_best_affine()[:3, :3]
    directions = [_nearest(axes[:, place]) for place in range(3)]
    across, sign = _VIEWS[files.plane][2]
    places = [place for place, direction in enumerate(directions) if direction is not None and direction[0] == across]
    if len(places) != 1:
        return image_flaws.OTHER_PLANE
    (place,), count = places, volume.shape[places[0]]
    # Halves are rounded down, so that the middle slice of four slices is the second slice.
    index = number - 1 if number is not None else int(np.ceil(files.at * (count - 1) - 0.5))
    if not 0 <= index < count:
        return image_flaws.NO_SUCH_SLICE
    if volume.size // count > image_flaws.LARGEST_FILE_PIXELS:
        return image_flaws.TOO_MANY_PIXELS
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
    length = float(np.sqrt(np.square(vector).sum()))
    axis = int(np.argmax(np.abs(vector)))
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
        return image_flaws.OTHER_PLANE
    if down[0] != wanted[0][0]:
        values, down, right = values.transpose(1, 0, 2), right, down
    values = values[:: 1 if down == wanted[0] else -1, :: 1 if right == wanted[1] else -1]
    return _finite(values)


def _finite(values: Intensities) -> Intensities | Flaw:
    found: Intensities = np.ascontiguousarray(values)
    return found if (np.abs(found) <= LARGEST_INTENSITY).all() else image_flaws.NO_NUMBERS
