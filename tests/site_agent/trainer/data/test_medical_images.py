"""DICOM and NIfTI images of a table: how they are read, slices turned, and the words of each refusal."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate

from protos.errors import DataError
from site_agent.trainer.data import image_formats
from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.columns import ImageColumn
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.image_formats import pixels_of
from site_agent.trainer.data.tables import read_table, survey_table
from tests.for_each import for_each

DICOM_FILES = Path(pydicom.__file__).parent / "data" / "test_files"
EXPLICIT, JPEG = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.4.50"
SECRET = "Lestrade^Greg"
ILL = {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
AXIAL = {"kind": "nifti", "plane": "axial"}


def column(height: int = 4, width: int = 6, channels: int = 1, **changes: Any) -> ImageColumn:
    """A column of DICOM files of 4 by 6 pixels; any key may be changed."""
    size = {"height": height, "width": width, "channels": channels}
    content = {"name": "scan", "role": "image", "folder": "scans", "image": size, "window": [0, 1000]}
    return ImageColumn.model_validate_json(json.dumps(content | {"files": {"kind": "dicom"}} | changes))


def drawn(seed: int, *shape: int) -> npt.NDArray[np.uint16]:
    """Random intensities up to 1000, by default 4 by 6."""
    return np.random.default_rng(seed).integers(0, 1001, shape or (4, 6)).astype(np.uint16)


def dicom(pixels: npt.NDArray[Any], syntax: str = EXPLICIT, **tags: Any) -> bytes:
    """A DICOM file with these pixels, (rows, columns) or (frames, rows, columns); None removes a tag."""
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = syntax
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.4"
    made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = "2.25.12345678987654321"
    made.PatientName, made.Modality = SECRET, "MR"
    made.Rows, made.Columns = pixels.shape[-2:]
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated = made.BitsStored = 8 * pixels.dtype.itemsize
    made.HighBit = made.BitsStored - 1
    if pixels.ndim == 3:
        made.NumberOfFrames = len(pixels)
    made.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(made, name, value)
    made["PixelData"].VR = "OB" if pixels.dtype.itemsize == 1 else "OW"
    made["PixelData"].is_undefined_length = syntax == JPEG
    file = io.BytesIO()
    pydicom.dcmwrite(file, made, enforce_file_format=True)
    return file.getvalue()


def nifti(volume: npt.NDArray[Any], affine: npt.NDArray[np.float64], kind: type = nibabel.Nifti1Image) -> bytes:
    """A NIfTI file with this volume."""
    found: bytes = kind(volume, affine).to_bytes()
    return found


def read(content: bytes, declared: ImageColumn, number: int | None = None) -> npt.NDArray[np.float32]:
    """The pixels of a file that is used."""
    found = pixels_of(content, declared, number)
    assert not isinstance(found, Flaw), found.words
    return found


def test_a_ct_image_of_pydicom_is_read_in_hounsfield_units() -> None:
    """Stored numbers, slope and intercept, then the window: by hand from the last bytes of the file."""
    content = (DICOM_FILES / "CT_small.dcm").read_bytes()
    units = np.frombuffer(pydicom.dcmread(io.BytesIO(content)).PixelData, dtype="<i2").astype(np.float64) - 1024

    found = read(content, column(128, 128, window=[-1000, 400], files={"kind": "dicom", "modality": "CT"}))

    np.testing.assert_allclose(found, np.clip((units + 1000) / 1400, 0, 1), atol=1e-6)
    assert 0.1 < found.mean() < 0.9


@pytest.mark.parametrize("name", ["bigendian", "expb", "implicit", "jp2klossless", "padded"])
def test_the_same_image_is_the_same_however_it_is_stored(name: str) -> None:
    """Byte order, implicit kinds, lossless JPEG 2000 and padding change no bit."""
    declared = column(64, 64, window=[0, 4000])

    plain = read((DICOM_FILES / "MR_small.dcm").read_bytes(), declared)
    found = read((DICOM_FILES / f"MR_small_{name}.dcm").read_bytes(), declared)

    np.testing.assert_array_equal(found, plain)


COLOURS = ["SC_rgb_jpeg_dcmtk.dcm", "SC_ybr_full_422_uncompressed.dcm", "SC_rgb_gdcm_KY.dcm", "SC_rgb_dcmtk_+eb+cr.dcm"]


@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_red_green_and_blue_however_they_are_stored(name: str) -> None:
    """Pydicom's stripes of colour begin with red: RGB, luminance with colour differences, and JPEG agree."""
    found = read((DICOM_FILES / name).read_bytes(), column(100, 100, 3, window=[0, 255]))

    np.testing.assert_allclose(found.reshape(3, 100, 100)[:, 5, 50], [1, 0, 0], atol=0.05)


WORDS: dict[str, Flaw] = {
    "MR_small_RLE.dcm": image_formats.PACKED, "JPEG-lossy.dcm": image_formats.PACKED,
    "image_dfl.dcm": image_formats.PACKED, "MR_truncated.dcm": image_formats.DAMAGED,
    "rtdose.dcm": image_formats.SEVERAL, "badVR.dcm": image_formats.DAMAGED, "no_meta.dcm": image_formats.NOT_DICOM,
    "zipMR.gz": image_formats.NOT_DICOM, "reportsi.dcm": image_formats.NO_PIXELS,
    "waveform_ecg.dcm": image_formats.NO_PIXELS, "liver_1frame.dcm": image_formats.UNSCALED,
    "rtdose_1frame.dcm": image_formats.NOT_GREY_OR_RGB, "examples_palette.dcm": image_formats.NOT_GREY_OR_RGB,
    "examples_rgb_color.dcm": image_formats.OTHER_CHANNELS,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.name for path in DICOM_FILES.iterdir() if path.is_file()))
def test_every_test_file_of_pydicom_is_an_image_or_has_a_reason(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """Nothing raises, and nothing is written anywhere, because a warning could have the text of a tag."""
    declared = column(32, 32, resize="stretch", window=[-1000, 400])

    with caplog.at_level(logging.DEBUG):
        found = pixels_of((DICOM_FILES / name).read_bytes(), declared)

    assert isinstance(found, Flaw) or (found.shape == (1024,) and (abs(found - 0.5) <= 0.5).all())
    assert not isinstance(found, Flaw) or found == WORDS.get(name, found)
    assert name not in WORDS or isinstance(found, Flaw)
    assert (caplog.text, *capfd.readouterr(), [*recwarn]) == ("", "", "", [])


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
@for_each("seed", range(200))
def test_damaged_bytes_never_raise(kind: str, seed: int) -> None:
    """For all bytes of a medical file, the answer is an image of the declared size or a reason."""
    generator = np.random.default_rng(seed)
    content = bytearray(dicom(drawn(seed)) if kind == "dicom" else nifti(drawn(seed, 6, 4, 3), np.diag([-1, -1, 1, 1])))
    head = 400 if seed % 2 else len(content)
    for place in generator.integers(0, head, generator.integers(1, 6)):
        content[place] = generator.integers(0, 256)

    found = pixels_of(bytes(content), column(files=AXIAL if kind == "nifti" else {"kind": "dicom"}))

    assert isinstance(found, Flaw) or (found.shape == (24,) and (abs(found - 0.5) <= 0.5).all())


@pytest.mark.parametrize("seed", range(5))
def test_inverted_grey_is_turned_over(seed: int) -> None:
    """MONOCHROME1 says that the lowest number is white; both kinds of one image are equal."""
    image = drawn(seed)
    image[0, 5] = 1000  # no part of the image

    plain = read(dicom(image, PixelPaddingValue=1000), column())
    inverted = read(dicom(1000 - image, PhotometricInterpretation="MONOCHROME1", PixelPaddingValue=0), column())
    assert plain[5] == 0

    np.testing.assert_allclose(inverted, plain, atol=1e-6)


def test_each_padding_value_is_black_however_it_is_written() -> None:
    """Several values, -2000 of signed pixels as an unsigned number, and an empty tag."""
    image = drawn(0).astype(np.int16)
    image[0, 4:] = 5, -2000
    written = [dicom(image, PixelRepresentation=1, PixelPaddingValue=one) for one in ([5, -2000], None, -2000)]
    written.append(written[2].replace(b"\x28\x00\x20\x01SS", b"\x28\x00\x20\x01US"))
    black = [[*(read(one, column(window=[-3000, 1000]))[4:6] == 0)] for one in written]
    assert black == [[True, True], [False, False], [False, True], [False, True]]
    assert written[3] != written[2]
    image[0, 3:] = 6, 0, -2000
    for one, end in ((-2000, 5), (5, -2001)):
        padded = dicom(image, PixelRepresentation=1, PixelPaddingValue=one, PixelPaddingRangeLimit=end)
        assert [*(read(padded, column(window=[-3000, 1000]))[3:6] == 0)] == [False, True, True]


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("plane", ["axial", "coronal", "sagittal"])
def test_a_nifti_slice_is_turned_to_the_usual_view(
    plane: str, order: tuple[int, int, int], packed: bool, kind: type
) -> None:
    """All orders and directions of a volume's axes give the same slice, counted from the same end."""
    to_left_back_head = drawn(11, 5, 6, 7)  # axes 0 to the left, 1 to the back, 2 to the head
    expected = {
        "axial": to_left_back_head[:, :, 2].T,
        "coronal": to_left_back_head[:, 2, ::-1].T,
        "sagittal": to_left_back_head[2, :, ::-1].T,
    }[plane]
    for signs in itertools.product((1, -1), repeat=3):
        affine = np.zeros((4, 4))
        affine[3, 3] = 1
        for place, (axis, sign) in enumerate(zip(order, signs, strict=True)):
            affine[axis, place] = sign * (1 if axis == 2 else -1) * 1.5  # NIfTI leads to right, front and head
        stored = to_left_back_head.transpose(order)[tuple(slice(None, None, sign) for sign in signs)]
        content = nifti(stored, affine, kind)
        height, width = expected.shape
        declared = column(height, width, files={"kind": "nifti", "plane": plane})

        found = read(gzip.compress(content) if packed else content, declared, number=3)

        np.testing.assert_allclose(found.reshape(height, width), expected / 1000, atol=1e-6)


def packed(height: int, width: int) -> bytes:
    """A black JPEG image of this size, as the pixels of a DICOM file."""
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "JPEG")
    found: bytes = encapsulate([file.getvalue()])
    return found


def _with_header(content: bytes, **fields: Any) -> bytes:
    header = nibabel.Nifti1Header(content[:348])
    for name, value in fields.items():
        header[name] = value
    return header.binaryblock + content[348:]


VOLUME = nifti(drawn(0, 6, 4, 3), np.diag([-1, -1, 1, 1]))
BETWEEN = np.array([[-1, 0, 0, 0], [0, -0.7, 0.7, 0], [0, 0.7, 0.7, 0], [0, 0, 0, 1]])
CLEAN = {"kind": "dicom", "burned_in": "require-no"}
WRONG: dict[str, tuple[bytes, dict[str, Any], int | None, Flaw | str]] = {
    "burnt-in names": (dicom(drawn(0), BurnedInAnnotation="YES"), {}, None, image_formats.BURNED_IN),
    "burnt-in names, among other values": (dicom(drawn(0), BurnedInAnnotation=["YES", ""]), {}, None,
                                           image_formats.BURNED_IN),
    "not said to be clean": (dicom(drawn(0)), {"files": CLEAN}, None, image_formats.NOT_DECLARED_CLEAN),
    "another modality": (dicom(drawn(0)), {"files": {"kind": "dicom", "modality": "CT"}}, None,
                         image_formats.OTHER_MODALITY),
    "several frames": (dicom(drawn(0, 3, 4, 6)), {}, None, image_formats.SEVERAL),
    "a fourth frame of three": (dicom(drawn(0, 3, 4, 6)), {}, 4, image_formats.NO_SUCH_SLICE),
    "frame 0": (dicom(drawn(0, 3, 4, 6)), {}, 0, image_formats.NO_SUCH_SLICE),
    "another size": (dicom(drawn(0, 8, 12)), {}, None, "an image of another size than 4 by 6 pixels"),
    "announces too much": (dicom(drawn(0), Rows=60_000, Columns=60_000), {"resize": "stretch"}, None,
                           image_formats.TOO_MANY_PIXELS),
    "announces more than is there": (dicom(drawn(0), Rows=5_000, Columns=5_000), {"resize": "stretch"}, None,
                                     image_formats.DAMAGED),
    "packed pixels that announce more than the tags": (
        dicom(drawn(0).astype(np.uint8), syntax=JPEG, PixelData=packed(4000, 4000)), {}, None, image_formats.DAMAGED),
    "a slope that is no number": (dicom(drawn(0), RescaleSlope="1e30", RescaleIntercept="0"), {}, None,
                                  image_formats.NO_NUMBERS),
    "many slopes": (dicom(drawn(0, 512, 512), RescaleSlope=["1"] * 500, RescaleIntercept="0"),
                    {"image": {"height": 512, "width": 512}}, None, image_formats.UNSCALED),
    "another high bit": (dicom(drawn(0), BitsStored=12, HighBit=15), {}, None, image_formats.OTHER_BITS),
    "an overlay in the pixels": (dicom(drawn(0) | 0x4000, BitsStored=12, HighBit=11), {}, None,
                                 image_formats.OTHER_BITS),
    "mirrored orientations": (_with_header(VOLUME, qform_code=1, quatern_b=0, quatern_c=0, quatern_d=0),
                              {"files": AXIAL}, None, image_formats.TWO_VIEWS),
    "voxels in the header": (_with_header(VOLUME, vox_offset=0), {"files": AXIAL}, None, image_formats.IN_HEADER),
    "voxels in an extension": (VOLUME[:348] + b"\1" + VOLUME[349:], {"files": AXIAL}, None, image_formats.IN_HEADER),
    "deflated": (dicom(drawn(0), syntax="1.2.840.10008.1.2.1.99"), {}, None, image_formats.PACKED),
    "grey for colour": (dicom(drawn(0)), {"image": {"height": 4, "width": 6, "channels": 3}}, None,
                        image_formats.OTHER_CHANNELS),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(200), {}, None, image_formats.NOT_DICOM),
    "DICOM for NIfTI": (dicom(drawn(0)), {"files": AXIAL}, None, image_formats.NOT_NIFTI),
    "nothing for NIfTI": (b"\x5c\x01", {"files": AXIAL}, None, image_formats.NOT_NIFTI),
    "gzip of nothing": (gzip.compress(b""), {"files": AXIAL}, None, image_formats.NOT_NIFTI),
    "half a gzip": (gzip.compress(VOLUME)[:-80], {"files": AXIAL}, None, image_formats.DAMAGED),
    "half a volume": (VOLUME[:-9], {"files": AXIAL}, None, image_formats.DAMAGED),
    "volumes over time": (nifti(drawn(0, 6, 4, 3, 2), np.eye(4)), {"files": AXIAL}, None, image_formats.SEVERAL),
    "a fourth slice of three": (VOLUME, {"files": AXIAL}, 4, image_formats.NO_SUCH_SLICE),
    "complex numbers": (nifti(np.ones((6, 4, 3), np.complex64), np.eye(4)), {"files": AXIAL}, None,
                        image_formats.NOT_GREY_OR_RGB),
    "a volume in colour": (nifti(np.zeros((6, 4, 3), np.dtype([(one, "u1") for one in "RGB"])), np.eye(4)),
                           {"files": AXIAL}, None, image_formats.OTHER_CHANNELS),
    "no numbers": (nifti(np.full((6, 4, 3), np.nan, np.float32), np.eye(4)), {"files": AXIAL}, None,
                   image_formats.NO_NUMBERS),
    "no orientation in NIfTI": (_with_header(VOLUME, sform_code=0, qform_code=0), {"files": AXIAL}, None,
                                image_formats.OTHER_PLANE),
    "between two planes": (nifti(drawn(0, 6, 4, 3), BETWEEN), {"files": AXIAL}, None, image_formats.OTHER_PLANE),
    "a volume that announces too much": (_with_header(VOLUME, dim=[3, 30000, 30000, 30000, 1, 1, 1, 1]),
                                         {"files": AXIAL}, None, image_formats.TOO_LARGE_VOLUME),
    "a packed volume that announces too much": (
        gzip.compress(_with_header(VOLUME, dim=[3, 30000, 30000, 30000, 1, 1, 1, 1]) + bytes(1 << 24)),
        {"files": AXIAL}, None, image_formats.TOO_LARGE_VOLUME),
    "extensions without end": (gzip.compress(_with_header(VOLUME, vox_offset=1e12) + bytes(1 << 24)), {"files": AXIAL},
                               None, image_formats.TOO_LARGE_VOLUME),
}  # fmt: skip


def test_negative_numbers_of_twelve_bits_are_negative() -> None:
    """Whether their sign fills the unused bits or not."""
    pixels = drawn(3).astype(np.int16) - 500
    tags: dict[str, Any] = {"PixelRepresentation": 1, "BitsStored": 12, "HighBit": 11}
    declared = column(window=[-600, 600])
    for stored in (pixels, (pixels & 0xFFF).astype(np.uint16)):
        np.testing.assert_allclose(read(dicom(stored, **tags), declared), (pixels.ravel() + 600) / 1200, atol=1e-6)


def test_a_quaternion_of_six_digits_and_no_factor_are_read() -> None:
    """Half a turn about an oblique axis, rounded so that its length is above one; a factor of 0 means 1."""
    volume = drawn(6, 6, 4, 3)
    rounded = {"quatern_b": 0.0, "quatern_c": 0.04, "quatern_d": 0.999201, "pixdim": [0, 1, 1, 1, 1, 1, 1, 1]}
    assert rounded["quatern_c"] ** 2 + rounded["quatern_d"] ** 2 > 1 + 1e-6  # type: ignore[operator]
    content = _with_header(nifti(volume, np.diag([-1, -1, 1, 1])), sform_code=0, qform_code=1, **rounded)

    found = read(content, column(4, 6, files=AXIAL), number=2)

    np.testing.assert_allclose(found.reshape(4, 6), volume[:, :, 1].T / 1000, atol=1e-6)


def test_images_of_two_scales_are_asked_about_and_companions_named(tmp_path: Path) -> None:
    """Units of PET and slopes of MR; CT has one unit whatever its slope is, if it has one. A companion is no image."""
    (tmp_path / "scans").mkdir()
    contract = Contract.model_validate_json(
        json.dumps({"format": {"header": True}, "columns": [json.loads(column().model_dump_json()), ILL]})
    )
    for modality, doubts in (("PT", 1), ("MR", 1), ("CT", 0), ("CT", 1)):
        for row in range(12):
            scale = {"Units": ("BQML", "CNTS")[row % 2], "RescaleSlope": 1 + row % 2, "RescaleIntercept": 0}
            if modality == "CT" and doubts and row % 2:
                scale = {}  # stored values without a scale
            (tmp_path / "scans" / f"{row}.dcm").write_bytes(dicom(drawn(row), Modality=modality, **scale))
        lines = ["scan,ill", *(f"{row}.dcm,{row % 2}" for row in range(12)), "._0.dcm,1", "Thumbs.db,0"]
        (tmp_path / "table.csv").write_text("\n".join(lines))

        survey = survey_table(tmp_path / "table.csv", contract)

        assert len(survey.doubts) == doubts
        assert [(one.flaw, one.count) for one in survey.mistakes] == [(image_formats.COMPANION.words, 2)]


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_the_contract_does_not_allow_has_one_exact_reason(case: str) -> None:
    """The header decides before memory is reserved for pixels."""
    content, changes, number, expected = WRONG[case]
    declared = column(**changes)
    pixels_of(b"", declared)  # the library is loaded before memory is measured

    tracemalloc.start()
    found = pixels_of(content, declared, number)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(found, Flaw)
    assert found.words == (expected if isinstance(expected, str) else expected.words)
    assert most < 4 << 20


def test_a_slice_with_too_many_pixels_is_refused_before_it_is_converted() -> None:
    """A packed file of 36 kB may hold one slice that would need gigabytes as numbers."""
    content = gzip.compress(nifti(np.zeros((6000, 6000, 1), np.uint8), np.diag([-1, -1, 1, 1])))
    assert image_formats.LARGEST_FILE_PIXELS < 6000 * 6000

    tracemalloc.start()
    found = pixels_of(content, column(files=AXIAL, resize="stretch"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == image_formats.TOO_MANY_PIXELS
    assert most < 5 * 6000 * 6000


def test_one_frame_or_slice_is_named_behind_the_path(tmp_path: Path) -> None:
    """Twelve rows may read twelve frames of one file; a wrong number is reported with its row."""
    frames = drawn(5, 12, 4, 6)
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "run.dcm").write_bytes(dicom(frames))
    columns = [{"name": "who", "role": "patient"}, json.loads(column().model_dump_json()), ILL]
    contract = Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))
    lines = [f"P{number},run.dcm#{number},{number % 2}" for number in range(1, 13)]
    (tmp_path / "table.csv").write_text("\n".join(["who,scan,ill", *lines]) + "\n")

    found = read_table(tmp_path / "table.csv", contract)

    assert found.images is not None
    np.testing.assert_allclose(found.images.reshape(12, 4, 6), frames / 1000, atol=1e-6)
    lines[3] = "P4,run.dcm#13,0"
    (tmp_path / "table.csv").write_text("\n".join(["who,scan,ill", *lines]) + "\n")
    with pytest.raises(DataError, match=r"column scan: a slice or frame that the file does not have in row 5"):
        read_table(tmp_path / "table.csv", contract)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": None}, "need a window"), ({"bits": 16}, "bits are for PNG and JPEG"),
        ({"window": [5, 5]}, "lowest and the highest"), ({"window": [0, 1e9]}, "between -16777216 and 16777216"),
        ({"files": {"kind": "nifti"}}, "plane"), ({"files": AXIAL | {"at": 1.5}}, "less than or equal to 1"),
        ({"files": AXIAL, "channels": 3}, "is grey"), ({"files": {"kind": "dicom", "modality": "ct"}}, "pattern"),
    ],
)  # fmt: skip
def test_a_contract_that_cannot_be_met_is_refused(changes: dict[str, Any], words: str) -> None:
    """Each with its reason, before a file is opened."""
    with pytest.raises(ValueError, match=words):
        column(**changes)
