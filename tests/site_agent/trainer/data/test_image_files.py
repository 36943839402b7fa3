"""Images of a table: accepted and refused files, and no error has a path."""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protos.errors import ConfigurationError, DataError, UnavailableError
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data import image_formats
from site_agent.trainer.data.cell_rules import Flaw
from site_agent.trainer.data.columns import ImageColumn
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import prepare_rows, split_rows
from site_agent.trainer.data.image_formats import pixels_of
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import read_table, survey_table
from tests.for_each import for_each

SECRET = "Mrs-Smith-1950"


def contract(target: dict[str, Any] | None = None, **image: Any) -> Contract:
    """A contract with images of 4 by 6 grey pixels in the folder scans."""
    column = {"name": "scan", "role": "image", "folder": "scans", "image": {"height": 4, "width": 6}} | image
    outcome = target or {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
    columns = [{"name": "who", "role": "patient"}, column, outcome]
    return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))


def column(**image: Any) -> ImageColumn:
    """The image column of such a contract."""
    found = contract(**image).image
    assert found is not None
    return found


def drawn(seed: int, *shape: int, dtype: type = np.uint8) -> Any:
    """Random intensities, by default 4 by 6."""
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape or (4, 6)).astype(dtype)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """An image as a file's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def table(folder: Path, names: list[str], files: dict[str, bytes]) -> Path:
    """A table with one row for each name, and a folder with the files."""
    (folder / "scans").mkdir(exist_ok=True)
    for name, content in files.items():
        place = folder / "scans" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    lines = [f"P{number},{name},{number % 2}" for number, name in enumerate(names)]
    (folder / "table.csv").write_text("\n".join(["who,scan,ill", *lines]) + "\n")
    return folder / "table.csv"


@for_each("seed", range(5))
def test_pixels_are_those_of_the_files_in_the_order_of_the_rows(tmp_path: Path, seed: int) -> None:
    """Each row has its own file's intensities over 255, row by row, whatever the files' order."""
    images = [drawn(100 * seed + number) for number in range(30)]
    files = {f"{number:02d}.png": encoded(Image.fromarray(image)) for number, image in enumerate(images)}
    order = np.random.default_rng(seed).permutation(30)

    found = read_table(table(tmp_path, [f"{number:02d}.png" for number in order], files), contract())

    assert found.images is not None
    expected = np.stack([images[number].reshape(-1) for number in order]).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(found.images, expected)
    assert found.contract.encoded_columns[7] == "scan grey row 2 column 2"


@for_each("seed", range(5))
def test_a_colour_image_is_laid_out_channel_by_channel(seed: int) -> None:
    """Red, then green, then blue, each row by row, as a network of images reads them."""
    image = drawn(seed, 4, 6, 3)

    found = pixels_of(encoded(Image.fromarray(image)), column(image={"height": 4, "width": 6, "channels": 3}))

    assert not isinstance(found, Flaw)
    np.testing.assert_array_equal(found, image.transpose(2, 0, 1).reshape(-1).astype(np.float32) / np.float32(255))


@for_each("seed", range(5))
def test_sixteen_bits_are_read_in_full_and_a_window_cuts(seed: int) -> None:
    """Intensities below and above the window are 0 and 1, and those between lie on a line."""
    image = drawn(seed, 4, 6, dtype=np.uint16)

    whole = pixels_of(encoded(Image.fromarray(image)), column(bits=16))
    part = pixels_of(encoded(Image.fromarray(image)), column(bits=16, window=[20_000, 40_000]))

    assert not isinstance(whole, Flaw)
    assert not isinstance(part, Flaw)
    np.testing.assert_allclose(whole, image.reshape(-1) / 65535, atol=1e-6)
    np.testing.assert_allclose(part, np.clip((image.reshape(-1) - 20_000.0) / 20_000, 0, 1), atol=1e-6)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@for_each("orientation", range(1, 9))
def test_the_exif_entry_turns_the_image(orientation: int, form: str) -> None:
    """All eight orientations end upright."""
    upright = Image.fromarray(np.repeat(np.repeat(drawn(3, 2, 3), 8, axis=0), 8, axis=1))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transposition that the entry will take back
    stored, exif = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation])), Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100} if form == "JPEG" else {}
    content = encoded(stored, form, exif=exif, **options)

    turned = pixels_of(content, column(image={"height": 16, "width": 24}))

    assert not isinstance(turned, Flaw)
    np.testing.assert_allclose(turned.reshape(16, 24), np.asarray(upright) / 255, atol=0.02)


@for_each("seed", range(5))
def test_stretching_keeps_the_mean_and_gives_the_declared_size(seed: int) -> None:
    """A file of twice the size becomes the mean of its neighbourhoods; nothing is cut off."""
    image = np.kron(drawn(seed), np.ones((2, 2))).astype(np.uint8)

    found = pixels_of(encoded(Image.fromarray(image)), column(resize="stretch"))

    assert not isinstance(found, Flaw)
    assert found.shape == (24,)
    assert found.mean() == pytest.approx(image.mean() / 255, abs=0.05)


def header(width: int, height: int, depth: int = 8, kind: int = 0) -> bytes:
    """A PNG file that announces a size and has hardly any bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    start = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def several(form: str) -> bytes:
    """A file with two images."""
    mode = "RGB" if form == "MPO" else "L"
    first, second = (Image.new(mode, (6, 4), shade) for shade in (0, 9))
    return encoded(first, form, save_all=True, append_images=[second])


PLAIN = encoded(Image.fromarray(drawn(0)))
COLOUR = {"image": {"height": 4, "width": 6, "channels": 3}}
WRONG: dict[str, tuple[bytes, dict[str, Any], Flaw | str]] = {
    "no image": (b"who,scan,ill", {}, image_formats.OTHER_FORMAT),
    "half a file": (PLAIN[: len(PLAIN) - 30], {}, image_formats.DAMAGED),
    "two images in PNG": (several("PNG"), {}, image_formats.SEVERAL),
    "two images in JPEG": (several("MPO"), COLOUR, image_formats.SEVERAL),
    "transparency": (encoded(Image.new("RGBA", (6, 4))), COLOUR, image_formats.TRANSPARENT),
    "one transparent colour": (encoded(Image.new("L", (6, 4)), transparency=0), {}, image_formats.TRANSPARENT),
    "palette": (encoded(Image.fromarray(drawn(0)).convert("P")), {}, image_formats.OTHER_PIXELS),
    "for print": (encoded(Image.new("CMYK", (6, 4)), "JPEG"), COLOUR, image_formats.OTHER_PIXELS),
    "colour for grey": (encoded(Image.new("RGB", (6, 4))), {}, image_formats.OTHER_CHANNELS),
    "grey for colour": (PLAIN, COLOUR, image_formats.OTHER_CHANNELS),
    "2 bits": (header(6, 4, depth=2), {}, image_formats.OTHER_PIXELS),
    "16 bits for 8": (encoded(Image.fromarray(drawn(0, 4, 6, dtype=np.uint16))), {}, image_formats.OTHER_DEPTH),
    "16 bits of colour": (header(6, 4, depth=16, kind=2), COLOUR, image_formats.OTHER_DEPTH),
    "8 bits for 16": (PLAIN, {"bits": 16}, image_formats.OTHER_DEPTH),
    "larger": (encoded(Image.new("L", (12, 8))), {}, "an image of another size than 4 by 6 pixels"),
    "a bomb": (header(60_000, 60_000), {"resize": "stretch"}, image_formats.TOO_MANY_PIXELS),
    "a bomb that the library lets pass": (header(8_000, 8_000), {"resize": "stretch"}, image_formats.TOO_MANY_PIXELS),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_the_contract_does_not_declare_has_one_exact_reason(case: str) -> None:
    """Nothing is converted silently, and no pixel is decoded of a file that announces too much."""
    content, changes, expected = WRONG[case]

    tracemalloc.start()
    found = pixels_of(content, column(**changes))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert isinstance(found, Flaw)
    assert found.words == (expected if isinstance(expected, str) else expected.words)
    assert most < 8 << 20


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_damaged_exif_entry_does_not_turn_an_image_by_chance(form: str) -> None:
    """An orientation that cannot be read makes the file a damaged one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(Image.fromarray(drawn(0)), form, exif=exif)
    entries = (b"\x12\x01\x03\x00\x01", b"\x01\x12\x00\x03\x00\x00\x00\x01")
    (entry,) = (one for one in entries if one in content)
    longer = content.replace(entry, entry[:-1] + b"\xff")  # 255 numbers where there is one
    if form == "PNG":
        place = longer.index(b"eXIf")
        end = place + 4 + int.from_bytes(longer[place - 4 : place], "big")
        longer = longer[:end] + struct.pack(">I", zlib.crc32(longer[place:end])) + longer[end + 4 :]

    assert pixels_of(longer, column(image={"height": 6, "width": 4})) == image_formats.DAMAGED


@for_each("seed", range(300))
def test_damaged_bytes_never_raise(seed: int) -> None:
    """For all bytes of a file, the answer is an image of the declared size or a reason."""
    generator, form = np.random.default_rng(seed), ("PNG", "JPEG")[seed % 2]
    exif = Image.Exif()
    exif[0x0112] = 6
    content = bytearray(encoded(Image.fromarray(drawn(seed)), form, exif=exif))
    for place in generator.integers(0, len(content), generator.integers(1, 6)):
        content[place] = generator.integers(0, 256)

    found = pixels_of(bytes(content), column(resize=("refuse", "stretch")[seed % 3 == 0]))

    if not isinstance(found, Flaw):
        assert found.shape == (24,)
        assert ((found >= 0) & (found <= 1)).all()


def test_a_lack_of_memory_is_no_damaged_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with a good image never leaves the study because other programs used the memory."""

    def without_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "load", without_memory)

    with pytest.raises(MemoryError):
        pixels_of(encoded(Image.fromarray(drawn(1))), column())


LIMIT = image_formats.LARGEST_FILE_BYTES + 1
# What is put into the folder of images, the path in the table, and the flaw.
PLACES: list[tuple[Callable[[Path], object], str, Flaw]] = [
    (lambda _: None, f"../{SECRET}", image_formats.OUTSIDE),
    (lambda _: None, f"FOLDER/{SECRET}", image_formats.OUTSIDE),
    (lambda scans: (scans / SECRET).symlink_to(f"../{SECRET}"), SECRET, image_formats.OUTSIDE),
    (lambda scans: (scans / "away").symlink_to(".."), f"away/{SECRET}", image_formats.OUTSIDE),
    (lambda _: None, SECRET, image_formats.NO_FILE),
    (lambda _: None, SECRET * 100, image_formats.NO_FILE),
    (lambda scans: (scans / "plain").touch(), f"plain/{SECRET}", image_formats.NO_FILE),
    (lambda scans: os.mkfifo(scans / SECRET), SECRET, image_formats.NOT_PLAIN),
    (lambda scans: (scans / SECRET).mkdir(), SECRET, image_formats.NOT_PLAIN),
    (lambda scans: (scans / SECRET).touch(), SECRET, image_formats.EMPTY),
    (lambda scans: ((scans / SECRET).touch(), os.truncate(scans / SECRET, LIMIT)), SECRET, image_formats.TOO_LONG),
]


@pytest.mark.parametrize(("put", "path", "flaw"), PLACES)
def test_a_path_stays_in_its_folder_and_in_no_message(
    tmp_path: Path, put: Callable[[Path], object], path: str, flaw: Flaw
) -> None:
    """Links, pipes and paths outside the folder are refused by row number, and no error has the path."""
    (tmp_path / "scans").mkdir()
    (tmp_path / SECRET).write_bytes(PLAIN)  # beside the folder
    put(tmp_path / "scans")
    names = ["good.png"] * 11 + [path.replace("FOLDER", str(tmp_path))]

    with pytest.raises(DataError) as caught:
        read_table(table(tmp_path, names, {"good.png": PLAIN}), contract())

    assert f"column scan: {flaw.words} in row 13" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_every_flaw_is_counted_with_its_rows(tmp_path: Path) -> None:
    """A survey names each kind once, with its rows; other rows keep their images, and no flaw stops the reading."""
    files = {"good.png": PLAIN, "empty.png": b"", "half.png": PLAIN[:-30]}
    names = ["good.png", "empty.png", "", "half.png", "empty.png", "none.png", *["good.png"] * 10]

    found = survey_table(table(tmp_path, names, files), contract())

    assert [mistake.line for mistake in found.mistakes] == [
        "column scan: an empty file in rows 3, 6.",
        "column scan: a missing value (the contract refuses it) in row 4.",
        "column scan: a damaged image file in row 5.",
        "column scan: no such file in the images' folder in row 7.",
    ]
    assert found.table.images is not None
    assert np.isnan(found.table.images[1:6]).all()
    assert not np.isnan(found.table.images[6:]).any()


@contextmanager
def files_open_at_most(further: int) -> Iterator[None]:
    """While the block runs, this process can open only this many further files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + further, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_failure_to_open_files_is_no_missing_image(tmp_path: Path) -> None:
    """Folder and image are open, and the process may open no further file: no row has a flaw."""
    place = table(tmp_path, ["good.png"] * 12, {"good.png": PLAIN})
    survey_table(place, contract())  # what is loaded for the first time also opens files

    with files_open_at_most(4), pytest.raises(UnavailableError, match="cannot be read now: Too many open files"):
        survey_table(place, contract())

    assert not survey_table(place, contract()).mistakes


def test_a_folder_that_is_not_there_yet_is_unavailable(tmp_path: Path) -> None:
    """Not one flaw for each row. A drive may be mounted later; a file in its place is a mistake."""
    place = table(tmp_path, ["good.png"] * 12, {})
    (tmp_path / "scans").rmdir()

    with pytest.raises(UnavailableError):
        read_table(place, contract())
    (tmp_path / "scans").touch()
    with pytest.raises(DataError):
        read_table(place, contract())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"folder": "../scans"}, "without"),
        ({"folder": "/scans"}, "without"),
        ({"window": [10, 10]}, "between 0 and 255"),
        ({"window": [0, 256]}, "between 0 and 255"),
        ({"bits": 16, "image": {"height": 4, "width": 6, "channels": 3}}, "for grey images"),
        ({"image": {"height": 1024, "width": 1024}}, "at most 262144"),
        ({"image": {"height": 4, "width": 6, "channels": 2}}, "1"),
    ],
)
def test_a_contract_that_cannot_be_met_is_refused(changes: dict[str, Any], words: str) -> None:
    """Each with its reason, before a file is opened."""
    with pytest.raises(ValueError, match=words):
        contract(**changes)


def test_a_contract_reads_images_or_columns() -> None:
    """Beside images there are no features, and there is one column of images at most."""
    plain, feature = json.loads(contract().model_dump_json()), {"name": "age", "role": "feature", "type": "numeric"}

    for more, words in ((feature, "role group or ignore"), (plain["columns"][1] | {"name": "b"}, "role image")):
        with pytest.raises(ValueError, match=words):
            Contract.model_validate_json(json.dumps(plain | {"columns": [*plain["columns"], more]}))


def test_equal_images_are_found_where_they_give_the_test_away(tmp_path: Path) -> None:
    """The same image of two patients is a warning, also under other names; its rows are numbered."""
    files = {f"{number:02d}.png": encoded(Image.fromarray(drawn(number))) for number in range(30)}
    files["again.png"] = files["03.png"]
    files["blank.png"] = encoded(Image.new("L", (6, 4), 7))
    found = examine(survey_table(table(tmp_path, [*sorted(files)], files), contract()), Split(seed=0))

    words = {finding.words: finding.rows for finding in found.findings}
    assert words["column scan: 2 images are equal to the image of another patient"] == (5, 32)
    assert words["column scan: 1 image without any difference between pixels, maybe empty"] == (33,)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_channel_is_standardised_by_the_training_rows_alone(tmp_path: Path, channels: int) -> None:
    """Over all pixels of the training rows each channel has mean 0 and deviation 1; test rows do not count."""
    shape = (4, 6) if channels == 1 else (4, 6, 3)
    files = {f"{number:02d}.png": encoded(Image.fromarray(drawn(number, *shape))) for number in range(40)}
    place = table(tmp_path, sorted(files), files)
    found = read_table(place, contract(image={"height": 4, "width": 6, "channels": channels}))

    dataset, preprocessing = prepare_rows(found, split_rows(found, Split(seed=0)))

    planes = dataset.training.features.reshape(len(dataset.training), channels, 24).astype(np.float64)
    np.testing.assert_allclose(planes.mean(axis=(0, 2)), 0.0, atol=1e-6)
    np.testing.assert_allclose(planes.std(axis=(0, 2)), 1.0, atol=1e-6)
    assert abs(dataset.test.features.mean()) > 1e-6
    assert Preprocessing.model_validate_json(preprocessing.model_dump_json(indent=2)) == preprocessing
    assert dataset.image is not None
    assert len(preprocessing.columns) == dataset.image.numbers


MISSING_LIBRARIES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("PIL", r"pillow is not installed.*constraints\.txt '\.\[site\]'", None),
    ("pydicom", r"pydicom is not installed.*constraints\.txt '\.\[site,imaging\]'", {"kind": "dicom"}),
    (
        "nibabel",
        r"nibabel is not installed.*constraints\.txt '\.\[site,imaging\]'",
        {"kind": "nifti", "plane": "axial"},
    ),
]


@pytest.mark.parametrize(("library", "words", "files"), MISSING_LIBRARIES)
def test_the_library_is_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, words: str, files: dict[str, Any] | None
) -> None:
    """A site with such images and without the package reads how to install it."""
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigurationError, match=words):
        read_table(table(tmp_path, ["good.png"] * 12, {"good.png": PLAIN}), contract(files=files, window=[0, 1]))
