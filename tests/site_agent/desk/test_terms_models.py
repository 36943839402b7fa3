"""A model of lists and notes after a run: predictions, exports and pages, none of which has a word of a note."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from site_agent.desk.examination.examination_page import examination_page
from site_agent.desk.examination.examine import examine
from site_agent.desk.export.export_folder import export_model, run_onnx
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.prediction import predict_table
from site_agent.desk.results.run_report import make_report
from site_agent.hospital import Hospital, Split, read_hospital
from site_agent.trainer.data.cell_rules import LONGEST_CELL
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.tables import survey_table
from tests.site_agent.trainer.after_a_run import RUN
from tests.site_agent.trainer.sites import at_the_end, make_plan, make_site, prepare, run_rounds

ROWS = 160
CODES = ("I10", "E11.9", "N18.5")
DECLARED = {"name": "diagnoses", "role": "feature", "type": "codes", "codes": list(CODES), "missing": "empty"}
HASHED = {"name": "drugs", "role": "feature", "type": "codes", "separator": "|", "buckets": 32} | {"missing": "empty"}
NOTE = {"name": "note", "role": "feature", "type": "text", "buckets": 64}
AGE = {"name": "age", "role": "feature", "type": "numeric", "range": [0, 120]}
FEATURES: list[dict[str, Any]] = [AGE, DECLARED, HASHED, NOTE]


def patient(number: int) -> dict[str, Any]:
    """One patient of the table; the note of each has a name of its own, and N18.5 and a drug go with the outcome."""
    generator = np.random.default_rng(number)
    is_ill = number % 2 == 1
    likely = 0.1 + 0.7 * is_ill
    diagnoses = [code for code in CODES[:2] if generator.random() < 0.4]
    diagnoses += [CODES[2]] * (generator.random() < likely)
    drugs = [f"Zz{place}drug" for place in generator.integers(0, 30, 3)]
    drugs += ["erythropoietin"] * (generator.random() < likely)
    note = f"Seen with surname{number}x. {'Tired and pale' if generator.random() < likely else 'Well'}."
    age = int(generator.integers(40, 90))
    return {"age": age, "diagnoses": ";".join(diagnoses), "drugs": "|".join(drugs), "note": note, "ill": int(is_ill)}


def put_table(path: Path, first: int, *, without: str = "") -> Path:
    """A table of patients from this number on."""
    rows = [patient(number) for number in range(first, first + ROWS)]
    names = ["who", *(name for name in rows[0] if name != without)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for number, row in enumerate(rows, first):
            writer.writerow([f"P{number:04d}", *(row[name] for name in names[1:])])
    return path


def trained(folder: Path, features: list[dict[str, Any]]) -> Hospital:
    """A site after a run on these features."""
    config = make_site(folder, siloed_baseline=False)
    put_table(config.parent / "table.csv", 0)
    outcome = {"name": "ill", "role": "target", "task": "binary", "positive": [1], "negative": [0]}
    names = [one["name"] for one in features]
    ignored = [{"name": one["name"], "role": "ignore"} for one in FEATURES if one["name"] not in names]
    columns = [{"name": "who", "role": "patient"}, *features, *ignored, outcome]
    (config.parent / "contract.yaml").write_text(yaml.safe_dump({"format": {"header": True}, "columns": columns}))
    listed = list(read_contract(config.parent / "contract.yaml").encoded_columns)
    plan = make_plan(
        method={"name": "fedavg"},
        architecture={"name": "dense", "hidden": [8]},
        columns=listed,
        outputs=1,
        schedule={"aggregate": "every-epoch", "epochs": 15, "batches_per_epoch": 4},
        optimiser={"name": "adamw", "learning_rate": 0.01},
    )
    _, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(read_hospital(config), study, preprocessing, RUN)
    return read_hospital(config)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on a number, lists and notes."""
    found = trained(tmp_path_factory.mktemp("site"), FEATURES)
    encoded = read_contract(Path(found.data.contract)).encoded_columns
    assert encoded[:5] == ("age", *(f"diagnoses={code}" for code in (*CODES, "unknown")))
    return found


def scores(path: Path) -> list[str]:
    """The probabilities in a file of predictions."""
    return [row["probability"] for row in csv.DictReader(path.read_text().splitlines())]


def test_new_patients_are_predicted_and_a_cell_that_is_too_long_is_not_shown(
    hospital: Hospital, tmp_path: Path
) -> None:
    """Most new patients are recognised; the reason of a refused note has no word of it."""
    new = put_table(tmp_path / "new.csv", 1000, without="ill")

    predict_table(hospital, new, tmp_path / "out.csv", None)
    new.write_text(new.read_text().replace("surname1003x", "surname1003x " * (LONGEST_CELL // 12)))
    predicted = predict_table(hospital, new, tmp_path / "again.csv", None)

    right = [(float(score) > 0.5) == (place % 2 == 1) for place, score in enumerate(scores(tmp_path / "out.csv"))]
    assert np.mean(right) > 0.75
    assert predicted.abstained == 1
    (reason,) = [line for line in (tmp_path / "again.csv").read_text().splitlines() if "100,000" in line]
    assert "column note: more than 100,000 characters" in reason
    assert "surname1003x" not in (tmp_path / "again.csv").read_text()


def test_an_export_is_made_and_nothing_written_has_a_word(hospital: Hospital, tmp_path: Path) -> None:
    """ONNX agrees with the model; export, report and examination have no word and no hashed code."""
    pytest.importorskip("onnxruntime")
    new = put_table(tmp_path / "new.csv", 1000, without="ill")

    made = export_model(hospital, tmp_path / "exported", None)
    facts = site_facts(hospital.state_path, None)
    (tmp_path / "report.html").write_text(report_page(facts) + json.dumps(facts, default=str))
    survey = survey_table(Path(hospital.data.table), read_contract(Path(hospital.data.contract)))
    page = examination_page(examine(survey, Split(seed=3)), site="ahus", accepted_by=None, warnings_stop=True)
    (tmp_path / "check.html").write_text(page)
    predict_table(hospital, new, tmp_path / "out.csv", None)

    assert made.difference <= made.tolerance
    told = json.loads((tmp_path / "exported" / "model.json").read_text())
    onnx = (tmp_path / "exported" / "model.onnx").read_bytes()
    assert np.isfinite(run_onnx(onnx, np.zeros((1, len(told["inputs"]))))).all()

    new.unlink()
    written = [*hospital.state_path.rglob("*"), *(tmp_path / "exported").rglob("*"), *tmp_path.glob("*.*")]
    files = [path for path in written if path.is_file()]
    assert {"report.html", "check.html", "out.csv", "model.onnx", "model.json"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes().lower()
        assert not any(word in content for word in (b"surname", b"erythropoietin", b"zz1drug", b"tired")), path.name
