"""One walkthrough: from a raw table to a printed report, a prediction and monitoring, word for word from the page."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sklearn.datasets import load_breast_cancer

from site_agent.config import read_hospital
from site_agent.trainer.report import make_report
from tests.deploy.test_documentation import ROOT, fenced
from tests.site_agent.trainer.sites import at_the_end, make_plan, make_site, prepare, run_rounds

PAGE = ROOT / "docs" / "clinician.md"
FEATURES = ("mean_radius", "mean_texture")
PROGRAM = "from site_agent.cli import main; main()"


def run(folder: Path, *words: str) -> str:
    """A command as it is typed in the hospital's folder; what it says."""
    command = [sys.executable, "-c", PROGRAM, *words]
    paths = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def raw_table(path: Path) -> None:
    """The breast cancer patients of scikit-learn as a hospital would export them: two columns and the outcome."""
    bunch = load_breast_cancer()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", *FEATURES, "outcome"])
        for number, (row, label) in enumerate(zip(bunch.data, bunch.target, strict=True)):
            writer.writerow([f"P{number:04d}", row[0], row[1], "benign" if label else "malignant"])


def persons_contract() -> str:
    """The draft as the data manager leaves it."""
    measured = [{"name": name, "role": "feature", "type": "numeric", "range": [0, 100]} for name in FEATURES]
    target = {"name": "outcome", "role": "target", "task": "binary", "positive": ["malignant"], "negative": ["benign"]}
    columns = [{"name": "who", "role": "patient", "one_row_per_patient": True}, *measured, target]
    return yaml.safe_dump({"format": {"header": True}, "columns": columns}, sort_keys=False)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_a_raw_table_to_a_report_and_a_prediction(tmp_path: Path) -> None:
    """Describe, correct, check and train, then every command of the page in its order, and its lines of Python."""
    config = make_site(tmp_path)
    raw_table(tmp_path / "table.csv")
    (tmp_path / "contract.yaml").unlink()
    run(tmp_path, "data", "describe", "table.csv", "--output", "contract.yaml")
    assert "mean_radius" in (tmp_path / "contract.yaml").read_text()
    (tmp_path / "contract.yaml").write_text(persons_contract())
    run(tmp_path, "data", "check", "--config", config.name)
    plan = make_plan()
    hospital, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, "walkthrough-1")
    (tmp_path / "new.csv").write_bytes((tmp_path / "table.csv").read_bytes())

    said = {}
    for block in fenced(PAGE, "console"):
        for line in block.splitlines():
            words = shlex.split(line)
            assert words[0] == "site-agent"
            said[words[1]] = run(tmp_path, *words[1:])
    (lines,) = fenced(PAGE, "python")
    loaded = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path / "exported-model", capture_output=True, text=True, check=True
    )

    assert list(said) == ["report", "predict", "recalibrate", "export", "card", "monitor"]
    assert "federated" in said["report"]
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert "569 rows predicted" in said["predict"]
    assert "is recalibrated (platt)" in said["recalibrate"]
    assert re.search(r"loader differs from the model by at most \d\.\de-(0[6-9]|1\d)", said["export"])
    assert (tmp_path / "card.md").read_text().startswith("# Model card")
    assert "auroc" in said["monitor"]
    (probability,) = yaml.safe_load(loaded.stdout)
    assert 0.0 < probability < 1.0
    assert read_hospital(config).site == "ahus"
