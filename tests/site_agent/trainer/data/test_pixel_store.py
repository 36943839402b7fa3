"""Pixels of a table in a file of the trainer's folder: the same bits as in memory, and little memory. No file
remains."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from protos.errors import UnavailableError
from site_agent.hospital import Split
from site_agent.trainer.data import image_folder
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import prepare_rows, split_rows
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from tests.for_each import for_each
from tests.site_agent.trainer.sites import make_plan, prepared, run_rounds

ROWS = 40
SIZE = {"height": 8, "width": 8, "channels": 1}
NETWORK = {"name": "convolutional", "image": SIZE, "blocks": [4], "hidden": []}
SPLIT = Split(seed=5)


def declared(**changes: Any) -> Contract:
    """Real images of 8 by 8 pixels: even digits and odd ones."""
    scan = {"name": "scan", "role": "image", "folder": "images", "image": SIZE} | changes
    ill = {"name": "ill", "role": "target", "task": "binary", "positive": ["1"], "negative": ["0"]}
    columns = [{"name": "who", "role": "patient"}, scan, ill]
    return Contract.model_validate_json(json.dumps({"format": {"header": True}, "columns": columns}))


def _put_table(folder: Path, rows: Iterable[int]) -> None:
    digits = load_digits()
    (folder / "images").mkdir()
    lines = ["who,scan,ill"]
    for row in rows:
        Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(folder / "images" / f"{row}.png")
        lines.append(f"P{row},{row}.png,{digits.target[row] % 2}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


@for_each("seed", range(3))
def test_blocks_of_any_size_give_the_same_bits(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, scales, all three parts and the model after two epochs are equal."""
    _put_table(tmp_path, range(100 * seed, 100 * seed + ROWS))
    found = []
    for size in (1 << 24, 700):
        monkeypatch.setattr(image_folder, "_ROWS_BYTES", size)
        dataset, preprocessing = prepared(tmp_path / "table.csv", declared(), SPLIT)
        found.append((dataset, preprocessing.pixel_scales[0]))

    schedule = {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 4}
    plan = make_plan(method={"name": "fedavg"}, architecture=NETWORK, outputs=1, schedule=schedule)
    trained = []
    for dataset, scale in found:
        trained.append(run_rounds(plan, [Study(plan, dataset, seeds=Seeds.published(1, "ahus"))]).tobytes())
        assert dataset.digest == found[0][0].digest
        np.testing.assert_allclose(scale.deviation, found[0][1].deviation, rtol=1e-12)

    assert len({*trained}) == 1


def test_the_file_has_no_name_and_goes_with_its_last_array(tmp_path: Path) -> None:
    """The folder is empty as soon as the table is read. Its pixels can still be read and drawn into batches."""
    _put_table(tmp_path, range(ROWS))
    scratch = tmp_path / "saves"

    table = read_table(tmp_path / "table.csv", declared(), scratch=scratch)
    dataset, _ = prepare_rows(table, split_rows(table, SPLIT))

    assert not [*scratch.iterdir()]
    assert table.images is not None
    with pytest.raises(ValueError, match="read-only"):
        table.images[0, 0] = 1.0
    batch = torch.from_numpy(dataset.training.features)[torch.tensor([3, 1])].numpy()
    np.testing.assert_array_equal(batch, dataset.training.features[[3, 1]])


def test_little_memory_is_needed_whatever_the_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 600 images, memory holds less than half of what the pixels need."""
    monkeypatch.setattr(image_folder, "_ROWS_BYTES", 1 << 14)
    large = {"resize": "stretch", "image": {"height": 64, "width": 64, "channels": 1}}
    _put_table(tmp_path, range(600))
    contract = declared(**large)
    prepared(tmp_path / "table.csv", contract, SPLIT)  # what is loaded for the first time is not counted

    tracemalloc.start()
    prepared(tmp_path / "table.csv", contract, SPLIT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 600 * 64 * 64 * 4 / 2


def test_a_full_disk_is_refused_before_the_first_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has both figures, and no image was opened."""
    _put_table(tmp_path, range(ROWS))
    monkeypatch.setattr(image_folder, "MODELS_RESERVE_BYTES", 1 << 60)
    monkeypatch.setattr(image_folder, "_content", lambda *_: pytest.fail("an image was opened"))

    both = r"images of the table: its disk has [0-9.]+ MB free, and 1152921504606\.9 MB are needed there"
    with pytest.raises(UnavailableError, match=both):
        read_table(tmp_path / "table.csv", declared(), scratch=tmp_path / "saves")
