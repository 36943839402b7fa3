"""A model of masks after a run: report, predicted masks, card and export."""

from __future__ import annotations

import csv
import runpy
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from protos.errors import DataError, OperatorError, UsageError
from protos.plan.augmentation import ImageSize
from site_agent.desk import trainer_doctor
from site_agent.desk.applied import AppliedModel
from site_agent.desk.comparison.evaluation import dice_of_images
from site_agent.desk.export.export_folder import export_model
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_lines, report_page
from site_agent.desk.model_card import card_facts, card_markdown
from site_agent.desk.prediction import predict_table, write_masks
from site_agent.desk.use.model_in_use import model_in_use
from site_agent.hospital import Hospital
from tests.chaos.disks import small_disk
from tests.mask_images import put_table
from tests.site_agent.trainer.after_a_run import RUN, site_with_masks

NEW = range(1000, 1040)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real images with masks."""
    return site_with_masks(tmp_path_factory.mktemp("site"))


@pytest.fixture
def new_rows(tmp_path: Path) -> Path:
    """A table of images that no model has seen, with their masks."""
    put_table(tmp_path / "new.csv", tmp_path, list(NEW))
    return tmp_path / "new.csv"


def written_masks(output: Path) -> tuple[list[dict[str, str]], np.ndarray]:
    """The lines of a table of predictions, and the masks that it names: shape (predicted rows, pixels)."""
    lines = [*csv.DictReader(output.read_text().splitlines())]
    masks = [np.asarray(Image.open(output.parent / line["mask"])) for line in lines if line["mask"]]
    return lines, np.stack(masks).reshape(len(masks), -1)


def test_the_report_has_dice_and_only_networks(hospital: Hospital) -> None:
    """The federated U-Net is compared with the one trained alone; no simple model draws masks."""
    facts: dict[str, Any] = site_facts(hospital, None)

    reached = facts["federated"]["metrics"]["dice"]
    low, high = facts["federated"]["intervals"]["dice"]
    assert low < reached < high
    assert reached > 0.85
    assert facts["simple_models"] == {}
    assert facts["gain"]["best_local"] == "siloed"
    page, lines = report_page(facts), "\n".join(report_lines(facts))
    assert "Dice coefficient of every model with its 95% interval" in page
    assert "AUROC of every model" not in page
    assert f"dice on the test rows, with 95% intervals:\n  federated{reached:>30.3f}" in lines.replace("  (", "(")
    card = card_markdown(card_facts(hospital, model_in_use(hospital.state_path, None)))
    assert f"| dice | {reached:.3f} |" in card
    assert "network: u-net" in card


def test_a_full_disk_for_temporary_files_is_no_changed_table(
    hospital: Hospital, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report and doctor say that the images could not be prepared; the report has all figures of the run."""
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        warnings = " ".join(map(str, site_facts(hospital, None)["warnings"]))  # type: ignore[arg-type]
        found = trainer_doctor._table(hospital)

    assert "could not be read now" in warnings
    assert f"The folder {disk} cannot be used" in warnings
    assert "is not the one that this run was tested on" not in warnings
    assert "The table could not be read now." in found.line


def test_new_masks_lie_beside_the_table_and_are_near_the_drawn_ones(
    hospital: Hospital, new_rows: Path, tmp_path: Path
) -> None:
    """Each row names its own mask of 0 and 255, which only the owner may read, by the row's number."""
    output = tmp_path / "out.csv"

    predict_table(hospital, new_rows, output, None)

    lines, masks = written_masks(output)
    drawn = load_digits().images[list(NEW)].reshape(len(NEW), -1) > 8
    kept = [place for place, row in enumerate(NEW) if row % 10]
    assert [line["mask"] for line in lines] == [f"out-masks/{place + 2:06d}.png" for place in range(len(NEW))]
    assert {*np.unique(masks).tolist()} == {0, 255}
    assert dice_of_images(drawn[kept], masks[kept] > 0).mean() > 0.85
    for line, mask in zip(lines, masks, strict=True):
        assert float(line["mask_share"]) == (mask > 0).mean()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out-masks").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "out-masks").stat().st_mode) == 0o700


def test_masks_are_written_in_parts_and_are_the_same(
    hospital: Hospital, new_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of few rows are in memory at a time, whatever their number; no mask and no share changes."""
    predict_table(hospital, new_rows, tmp_path / "whole.csv", None)
    sizes: list[int] = []
    scores_of = AppliedModel.scores

    def counted(model: AppliedModel, features: np.ndarray) -> np.ndarray:
        sizes.append(len(features))
        return scores_of(model, features)

    monkeypatch.setattr(AppliedModel, "scores", counted)
    monkeypatch.setattr(AppliedModel, "rows_at_once", lambda *_: 7)
    predict_table(hospital, new_rows, tmp_path / "parts.csv", None)

    (whole, masks), (parts, same) = (written_masks(tmp_path / name) for name in ("whole.csv", "parts.csv"))
    assert sizes == [7, 7, 7, 7, 7, 5]
    np.testing.assert_array_equal(masks, same)
    assert [line["mask_share"] for line in whole] == [line["mask_share"] for line in parts]


def test_no_mask_is_left_if_a_later_part_fails(
    hospital: Hospital, new_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the table nor the folder of masks nor the unfinished folder is there, and the row is named."""
    scores_of = AppliedModel.scores
    parts = iter(range(9))

    def failing(model: AppliedModel, features: np.ndarray) -> np.ndarray:
        scores = scores_of(model, features)
        return np.full_like(scores, np.nan) if next(parts) == 2 else scores

    monkeypatch.setattr(AppliedModel, "rows_at_once", lambda *_: 7)
    monkeypatch.setattr(AppliedModel, "scores", failing)

    with pytest.raises(DataError, match="no finite number for row 16"):
        predict_table(hospital, new_rows, tmp_path / "out.csv", None)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "masks", "new.csv"]


def test_a_table_that_cannot_be_written_leaves_no_masks(
    hospital: Hospital, new_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes a folder of the table's name while the masks are computed. Later the same command works."""
    output, scores_of = tmp_path / "out.csv", AppliedModel.scores

    def in_the_meantime(model: AppliedModel, features: np.ndarray) -> np.ndarray:
        output.mkdir()
        return scores_of(model, features)

    with monkeypatch.context() as patch:
        patch.setattr(AppliedModel, "scores", in_the_meantime)
        with pytest.raises(OperatorError):
            predict_table(hospital, new_rows, output, None)
    output.rmdir()

    predict_table(hospital, new_rows, output, None)

    assert len(written_masks(output)[0]) == len(NEW)


def test_no_earlier_folder_of_masks_is_changed(hospital: Hospital, new_rows: Path, tmp_path: Path) -> None:
    """A folder of this name is refused before anything is computed, even an empty one or a link."""
    output, folder = tmp_path / "out.csv", tmp_path / "out-masks"
    for make in (folder.mkdir, lambda: folder.symlink_to(tmp_path / "images")):
        make()

        with pytest.raises(UsageError, match="out-masks, which already exists"):
            predict_table(hospital, new_rows, output, None)

        assert not output.exists()
        folder.unlink() if folder.is_symlink() else folder.rmdir()


def test_masks_do_not_follow_a_link_to_another_folder(tmp_path: Path) -> None:
    """Somebody may have put a link where the unfinished folder is made. An earlier unfinished folder is replaced."""
    size, rows, masks = ImageSize(height=2, width=2), np.arange(1, 2), np.ones((1, 4), bool)
    partial, elsewhere = tmp_path / ".out-masks.partial", tmp_path / "elsewhere"
    elsewhere.mkdir()
    partial.symlink_to(elsewhere)

    with pytest.raises(UsageError, match="cannot be removed"):
        write_masks(tmp_path / "out.csv", size, rows, [masks])

    assert not [*elsewhere.iterdir()]
    partial.unlink()
    partial.mkdir(mode=0o755)
    (partial / "000009.png").write_bytes(b"")
    assert [*write_masks(tmp_path / "out.csv", size, rows, [masks])] == [["out-masks/000001.png", 1.0]]
    assert [path.name for path in (tmp_path / "out-masks").iterdir()] == ["000001.png"]


def test_nothing_is_written_if_no_row_can_be_predicted(hospital: Hospital, new_rows: Path, tmp_path: Path) -> None:
    """The table has the reasons, and there is no folder of masks."""
    for image in (tmp_path / "images").iterdir():
        image.unlink()

    predicted = predict_table(hospital, new_rows, tmp_path / "out.csv", None)

    assert predicted.abstained == len(NEW)
    assert not [path for path in tmp_path.iterdir() if "out-masks" in path.name]


def test_an_export_draws_the_same_masks(hospital: Hospital, new_rows: Path, tmp_path: Path) -> None:
    """Loader and ONNX agree with the program for each pixel, and the loader answers from a file's intensities."""
    pytest.importorskip("onnxruntime")
    predict_table(hospital, new_rows, tmp_path / "out.csv", None)
    masks = written_masks(tmp_path / "out.csv")[1]

    made = export_model(hospital, tmp_path / "exported", None)
    loaded = runpy.run_path(str(tmp_path / "exported" / "loader.py"))["load"](tmp_path / "exported")
    images = [np.asarray(Image.open(path)).tolist() for path in sorted((tmp_path / "images").iterdir())]
    answers = np.array(loaded.predict([{"scan": image} for image in images]))

    assert made.difference <= made.tolerance
    assert answers.shape == masks.shape
    clear = np.abs(answers - 0.5) > made.tolerance
    np.testing.assert_array_equal((answers >= 0.5)[clear], (masks > 0)[clear])


def test_nothing_that_is_kept_has_a_mask_or_an_image(hospital: Hospital) -> None:
    """State and reports have one figure for each image, and no image or mask as bytes or numbers."""
    images = [image for place, image in enumerate(load_digits().images[:200]) if place % 10]
    stored = [(image * 15).astype(np.uint8).tobytes() for image in images]
    stored += [(image > 8).astype(np.float32).tobytes() for image in images]
    stored += [(image > 8).astype(np.float64).tobytes() for image in images]
    stored += [np.where(image > 8, 255, 0).astype(np.uint8).tobytes() for image in images]

    files = [path for path in hospital.state_path.rglob("*") if path.is_file()]

    assert {"rows.safetensors", f"{RUN}.json"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not any(one in content for one in stored), path.name
