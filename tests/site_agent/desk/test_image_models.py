"""A model of images after a run: predictions of new images, and no written file has a pixel or a patient's tag."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from protos.errors import OperatorError, UnavailableError
from site_agent.desk.examination.examine import examined
from site_agent.desk.export.export_folder import export_model, run_onnx
from site_agent.desk.export.scoring_module import ScoringModule
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.data import image_formats
from site_agent.trainer.data.image_formats import pixels_of
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.run_table import table_for_run
from tests.site_agent.trainer.data.test_medical_images import SECRET, dicom
from tests.site_agent.trainer.sites import RUN, at_the_end, make_plan, make_site, prepare, run_rounds

SIZE = {"height": 6, "width": 8, "channels": 1}
SECRETS = (SECRET, "Baker-Street-221b", "1.2.826.0.1.3680043.8.498.77")
TAGS = {"PatientAddress": SECRETS[1], "StudyInstanceUID": SECRETS[2], "RescaleSlope": "2", "RescaleIntercept": "-1000"}
ROWS = 60


def drawn(seed: int, is_ill: bool) -> npt.NDArray[np.uint16]:
    """An image of 6 by 8; that of an ill patient is brighter on the left."""
    image = np.random.default_rng(seed).integers(0, 600, (6, 8))
    image[:, :4] += 300 * is_ill
    return image.astype(np.uint16)


def put_images(folder: Path, first: int, with_outcome: bool) -> Path:
    """A table with DICOM images beside it."""
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    lines = ["who,scan" + ",ill" * with_outcome]
    for number in range(first, first + ROWS):
        (folder / "scans" / f"{number}.dcm").write_bytes(dicom(drawn(number, bool(number % 2)), **TAGS))
        lines.append(f"P{number:04d},{number}.dcm" + f",{number % 2}" * with_outcome)
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospital, Preprocessing]:
    """A site after a run on DICOM images whose tags name a patient."""
    config = make_site(tmp_path_factory.mktemp("site"), siloed_baseline=False)
    put_images(config.parent, 0, with_outcome=True)
    files = {"kind": "dicom", "modality": "MR"}
    scan = {"name": "scan", "role": "image", "folder": "scans", "image": SIZE, "files": files, "window": [-1000, 800]}
    outcome = {"name": "ill", "role": "target", "task": "binary", "positive": [1], "negative": [0]}
    columns = [{"name": "who", "role": "patient"}, scan, outcome]
    (config.parent / "contract.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
    network = {"name": "convolutional", "image": SIZE, "blocks": [4], "hidden": []}
    schedule = {"aggregate": "every-epoch", "epochs": 20, "batches_per_epoch": 4}
    plan = make_plan(method={"name": "fedavg"}, architecture=network, outputs=1, schedule=schedule)
    hospital, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, RUN)
    return read_hospital(config), preprocessing


def test_new_images_are_predicted_and_one_that_is_refused_is_named(
    trained: tuple[Hospital, Preprocessing], tmp_path: Path
) -> None:
    """Most new patients are recognised; a burnt-in name is a reason to abstain, and no other row changes."""
    new = put_images(tmp_path, 1000, with_outcome=False)

    predict_table(trained[0], new, tmp_path / "out.csv", None)
    (tmp_path / "scans" / "1003.dcm").write_bytes(dicom(drawn(1003, True), BurnedInAnnotation="YES", **TAGS))
    (tmp_path / "scans" / "1005.dcm").unlink()
    predicted = predict_table(trained[0], new, tmp_path / "again.csv", None)

    rows, again = ([*csv.reader((tmp_path / name).read_text().splitlines())][1:] for name in ("out.csv", "again.csv"))
    right = [(float(row[1]) > 0.5) == (place % 2 == 1) for place, row in enumerate(rows)]
    assert np.mean(right) > 0.9
    assert (predicted.rows, predicted.abstained) == (ROWS, 2)
    assert "BurnedInAnnotation is YES" in again[3][2]
    assert "no such file" in again[5][2]
    for place in set(range(ROWS)) - {3, 5}:
        assert float(again[place][1]) == pytest.approx(float(rows[place][1]), abs=1e-6)


def test_commands_of_a_person_decode_no_image_into_the_state(
    trained: tuple[Hospital, Preprocessing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They work where nothing can be written to `saves`, and leave no file, also after an error."""
    hospital = trained[0].model_copy(update={"state": str(tmp_path / "state")})
    shutil.copytree(trained[0].state_path, hospital.state_path)
    shutil.rmtree(hospital.scratch_path, ignore_errors=True)
    hospital.scratch_path.write_text("no folder, so nothing can be written into it")
    new, temporary = put_images(tmp_path, 1000, with_outcome=False), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    seen: list[Path] = []
    decode = image_formats.pixels_of

    def decoded(*given: Any) -> Any:
        seen.extend(temporary.iterdir())
        return decode(*given)

    monkeypatch.setattr(image_formats, "pixels_of", decoded)
    examination = examined(hospital)
    predict_table(hospital, new, tmp_path / "out.csv", None)
    monkeypatch.setattr(image_formats, "pixels_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict_table(hospital, new, tmp_path / "again.csv", None)

    assert not examination.errors
    assert len((tmp_path / "out.csv").read_text().splitlines()) == ROWS + 1
    assert not [*seen, *temporary.iterdir()]
    with pytest.raises(UnavailableError, match=r"The folder .*saves.* cannot be used to prepare the images"):
        table_for_run(hospital)


def test_a_graph_with_another_intercept_is_refused(
    trained: tuple[Hospital, Preprocessing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tolerance allows rounding, and not a logit that is larger by 0.01."""
    honest = ScoringModule.forward
    monkeypatch.setattr(ScoringModule, "forward", lambda *given: (honest(*given).logit() + 0.01).sigmoid())

    with pytest.raises(OperatorError):
        export_model(trained[0], tmp_path / "exported", None)

    assert not (tmp_path / "exported").exists()


def test_an_export_answers_from_intensities_and_nothing_written_has_an_image_or_a_tag(
    trained: tuple[Hospital, Preprocessing], tmp_path: Path
) -> None:
    """Model, export, report and scores have no tag of a patient, and no image as stored or as it is read."""
    pytest.importorskip("onnxruntime")
    hospital, preprocessing = trained

    made = export_model(hospital, tmp_path / "exported", None)
    facts = site_facts(hospital.state_path, None)
    (tmp_path / "report.html").write_text(report_page(facts) + json.dumps(facts, default=str))
    predict_table(hospital, put_images(tmp_path / "new", 1000, with_outcome=False), tmp_path / "out.csv", None)

    images = [drawn(number, bool(number % 2)) * 2.0 - 1000 for number in range(1000, 1000 + ROWS)]
    intensities = np.array([image.ravel() for image in images])
    wanted = [float(row[1]) for row in [*csv.reader((tmp_path / "out.csv").read_text().splitlines())][1:]]
    assert made.difference <= made.tolerance <= 1e-3
    found = run_onnx((tmp_path / "exported" / "model.onnx").read_bytes(), intensities)
    assert found[:, 0] == pytest.approx(wanted, abs=made.tolerance)

    column = preprocessing.contract.image
    assert column is not None
    forbidden = [secret.encode() for secret in SECRETS]
    for number in range(ROWS):
        image = drawn(number, bool(number % 2))
        pixels = pixels_of(dicom(image, **TAGS), column)
        assert isinstance(pixels, np.ndarray)
        scale = preprocessing.pixel_scales[0]
        read = (pixels - np.float32(scale.mean)) / np.float32(scale.deviation)
        forbidden += [image[1].tobytes(), pixels[8:16].tobytes(), read[8:16].tobytes()]
    (tmp_path / "new" / "table.csv").unlink()
    written = [*hospital.state_path.rglob("*"), *(tmp_path / "exported").rglob("*"), *tmp_path.glob("*.*")]
    files = [path for path in written if path.is_file()]
    assert {"report.html", "out.csv", "model.onnx", "model.safetensors"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not any(one in content for one in forbidden), path.name
