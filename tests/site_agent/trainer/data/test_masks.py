"""Masks of a table: accepted ones, and every kind of refused mask, by its row and without its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protos.errors import DataError
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data import image_folder
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import prepare_rows, split_rows
from site_agent.trainer.data.tables import read_table, survey_table
from tests.for_each import for_each
from tests.site_agent.trainer.data.test_image_files import encoded, header

SECRET = "Mrs-Smith-1950"
ROWS = 24


def declared(target: dict[str, Any] | None = None, **image: Any) -> dict[str, Any]:
    """Images of 4 by 8 grey pixels in scans, masks in masks."""
    scan = {"name": "scan", "role": "image", "folder": "scans", "image": {"height": 4, "width": 8}} | image
    mask = {"name": "lesion", "role": "target", "task": "segmentation", "folder": "masks"} | (target or {})
    return {"format": {"header": True}, "columns": [{"name": "who", "role": "patient"}, scan, mask]}


def contract(target: dict[str, Any] | None = None, **image: Any) -> Contract:
    """The same, checked."""
    return Contract.model_validate_json(json.dumps(declared(target, **image)))


def drawn(seed: int, share: float = 0.3) -> np.ndarray:
    """A mask of 4 by 8: 0 and 255."""
    return np.where(np.random.default_rng(seed).random((4, 8)) < share, 255, 0).astype(np.uint8)


def put(folder: Path, masks: list[np.ndarray]) -> Path:
    """A table of these masks, each with an image."""
    for name in ("scans", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = ["who,scan,lesion"]
    for number, mask in enumerate(masks):
        image = np.random.default_rng(1000 + number).integers(0, 256, (4, 8)).astype(np.uint8)
        (folder / "scans" / f"{number}.png").write_bytes(encoded(Image.fromarray(image)))
        (folder / "masks" / f"{number}.png").write_bytes(encoded(Image.fromarray(mask)))
        lines.append(f"P{number},{number}.png,{number}.png")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


@for_each("seed", range(5))
def test_each_row_has_the_mask_of_its_own_file(tmp_path: Path, seed: int) -> None:
    """Masks are the pixels of 255, row by row, in training, validation and test; the outcome is the share covered."""
    masks = [drawn(100 * seed + number, number / ROWS) for number in range(ROWS)]
    table = read_table(put(tmp_path, masks), contract())
    parts = split_rows(table, Split(seed=seed))

    dataset, _ = prepare_rows(table, parts)

    expected = np.stack([mask.reshape(-1) == 255 for mask in masks])
    for part, rows in (("training", parts.training), ("validation", parts.validation), ("test", parts.test)):
        np.testing.assert_array_equal(getattr(dataset, part).targets, expected[rows])
    np.testing.assert_allclose(table.target, expected.mean(axis=1))
    assert (dataset.task, dataset.outputs, dataset.classes) == ("segmentation", 32, ())


HOSTILE: dict[str, tuple[bytes, str]] = {
    "wrong size": (encoded(Image.fromarray(np.zeros((8, 4), np.uint8))), "another size than 4 by 8 pixels"),
    "larger": (encoded(Image.fromarray(np.zeros((8, 16), np.uint8))), "another size than 4 by 8 pixels"),
    "colour": (encoded(Image.fromarray(np.zeros((4, 8, 3), np.uint8))), "an image in colour"),
    "palette": (encoded(Image.fromarray(drawn(0)).convert("P")), "a palette"),
    "black and white": (encoded(Image.fromarray(drawn(0)).convert("1")), "black and white only"),
    "16 bits": (encoded(Image.fromarray(np.zeros((4, 8), np.uint16))), "16 bits"),
    "transparent": (encoded(Image.fromarray(np.zeros((4, 8, 4), np.uint8), "RGBA")), "transparency"),
    "labels": (encoded(Image.fromarray((drawn(0) // 255).astype(np.uint8))), "other intensities than 0 and 255"),
    "soft edge": (encoded(Image.fromarray(np.full((4, 8), 128, np.uint8))), "other intensities than 0 and 255"),
    "text": (b"lesion", "not a PNG file"),
    "JPEG": (encoded(Image.fromarray(np.zeros((4, 8), np.uint8)), "JPEG"), "not a PNG file"),
    "enormous": (header(100_000, 100_000), "an image of more than"),
    "empty file": (b"", "an empty file"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_no_mask_is_refused_by_its_row(tmp_path: Path, kind: str) -> None:
    """All other rows are read; the finding has the row's number and no part of the path."""
    content, words = HOSTILE[kind]
    table = put(tmp_path, [drawn(number) for number in range(ROWS)])
    (tmp_path / "masks" / "5.png").write_bytes(content)

    survey = survey_table(table, contract())

    assert [(one.column, one.rows) for one in survey.mistakes] == [("lesion", (7,))]
    assert words in survey.mistakes[0].words
    assert survey.table.masks is not None
    assert np.isnan(survey.table.masks).all(axis=1).tolist() == [number == 5 for number in range(ROWS)]
    assert examine(survey, Split(seed=0)).errors


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (f"{SECRET}.png", "no such file"),
        (f"../{SECRET}.png", "leaves the images' folder"),
        (f"../scans/{SECRET}.png", "leaves the images' folder"),
        (f"/tmp/{SECRET}.png", "leaves the images' folder"),
        (f"link-{SECRET}.png", "leaves the images' folder"),
        (f"folder-{SECRET}", "a folder or a device"),
        ("", "missing"),
    ],
)
def test_a_path_out_of_the_folder_of_masks_is_refused(tmp_path: Path, cell: str, words: str) -> None:
    """Also where the file is there and would be a mask. No finding repeats the path."""
    table = put(tmp_path, [drawn(number) for number in range(ROWS)])
    for name in (tmp_path / f"{SECRET}.png", tmp_path / "scans" / f"{SECRET}.png"):
        name.write_bytes(encoded(Image.fromarray(drawn(0))))
    (tmp_path / "masks" / f"link-{SECRET}.png").symlink_to(tmp_path / f"{SECRET}.png")
    (tmp_path / "masks" / f"folder-{SECRET}").mkdir()
    lines = table.read_text().splitlines()
    lines[6] = f"P5,5.png,{cell}"
    table.write_text("\n".join(lines) + "\n")

    with pytest.raises(DataError) as refused:
        read_table(table, contract())

    assert words in str(refused.value)
    assert "row 7" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "missing: drop" not in str(refused.value)


def test_masks_have_the_limit_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many masks as images are read, counted apart from them, and no more."""
    table = put(tmp_path, [drawn(number) for number in range(ROWS)])
    monkeypatch.setattr(image_folder, "LARGEST_TABLE_NUMBERS", ROWS * 32)
    assert read_table(table, contract()).rows == ROWS
    monkeypatch.setattr(image_folder, "LARGEST_TABLE_NUMBERS", ROWS * 32 - 1)
    folder = image_folder.ImageFolder(contract().mask or pytest.fail("no mask"), table, (), has_masks=True)

    with pytest.raises(DataError, match=f"at least {ROWS} images"):
        folder.read([f"{number}.png" for number in range(ROWS)])


def test_masks_that_are_all_empty_teach_nothing(tmp_path: Path) -> None:
    """A single pixel in the table is enough to train, none is an error."""
    empty = [np.zeros((4, 8), np.uint8)] * ROWS
    with pytest.raises(DataError, match="all masks are empty"):
        read_table(put(tmp_path, empty), contract())

    assert read_table(put(tmp_path, [drawn(0), *empty[1:]]), contract()).rows == ROWS


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (declared({"folder": "../masks"}), "without"),
        (declared({"missing": "drop"}), "missing"),
        (declared({"positive": [1]}), "positive"),
        (declared(files={"kind": "nifti", "plane": "axial"}, window=[0, 1]), "other images are turned"),
        (declared(files={"kind": "dicom", "plane": "axial"}, window=[0, 1]), "other images are turned"),
        (
            {"format": {"header": True}, "columns": [
                {"name": "age", "role": "feature", "type": "numeric"}, declared()["columns"][2],
            ]},
            "needs a column with the role image",
        ),
    ],
)  # fmt: skip
def test_a_contract_whose_masks_could_not_lie_on_their_images_is_refused(changed: dict[str, Any], words: str) -> None:
    """Images that the reader turns to a plane, no image, a folder elsewhere, or keys of other targets."""
    with pytest.raises(ValueError, match=words):
        Contract.model_validate_json(json.dumps(changed))


@pytest.mark.parametrize(("orientation", "is_turned"), [("exif", True), ("stored", False)])
def test_an_entry_turns_masks_only_where_it_turns_images(tmp_path: Path, orientation: str, is_turned: bool) -> None:
    """A turned mask on an image as stored would teach the wrong place."""
    masks, exif = [drawn(number) for number in range(ROWS)], Image.Exif()
    exif[0x0112] = 3  # by 180 degrees
    table = put(tmp_path, masks)
    (tmp_path / "masks" / "3.png").write_bytes(encoded(Image.fromarray(masks[3]), exif=exif))

    found = read_table(table, contract(orientation=orientation)).masks

    assert found is not None
    expected = masks[3][::-1, ::-1] if is_turned else masks[3]
    assert found[3].tolist() == (expected / 255).ravel().tolist()
    turned = contract(files={"kind": "dicom"}, window=[0, 100]).mask
    assert turned is not None
    assert turned.orientation == "stored"
