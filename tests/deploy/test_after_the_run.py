"""One walkthrough: from a raw table to a printed report, a prediction and an export, exactly as on two pages. The pages
data-manager.md and after-the-run.md are one path over one table, the clinic's `patients.csv`: what the first page
leaves is what the second begins with. Between them lies a run, here of the trainer alone; the whole federation around
it is typed in test_first_study.py."""

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

from site_agent.desk.results.run_report import make_report
from tests.deploy.test_documentation import ROOT, fenced
from tests.site_agent.desk.test_data_commands import write_hospital, write_patients
from tests.site_agent.trainer.sites import at_the_end, make_plan, prepare, run_rounds

BEFORE, AFTER = ROOT / "docs" / "data-manager.md", ROOT / "docs" / "after-the-run.md"
SITES = [
    {"name": name, "identity": "-".join(["aaa" + letter] * 8)}
    for name, letter in zip(("st-mary", "riverside", "northfield"), "abc", strict=True)
]
PROGRAM = "from site_agent.site_cli import main; main()"
DIGEST = "0123456789abcdef"


def typed(page: Path) -> list[list[str]]:
    """Every command of a page, in its order."""
    lines = [shlex.split(line) for block in fenced(page, "console") for line in block.splitlines()]
    assert all(words[0] == "site-agent" for words in lines)
    return [words[1:] for words in lines]


def run(folder: Path, *words: str, status: int = 0) -> str:
    """A command as it is typed in the hospital's folder; its output."""
    command = [sys.executable, "-c", PROGRAM, *words]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == status, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def connect(folder: Path) -> dict[str, str]:
    """Type the data manager's page; the contract that the page shows is what the person makes of the draft."""
    contract = next(iter(fenced(BEFORE, "yaml")))
    digest, said = DIGEST, dict[str, str]()
    for words in typed(BEFORE):
        name = " ".join(words[:2])
        is_stopped = name == "data check" and name not in said
        said[name] = run(
            folder, *(digest if word == DIGEST else word for word in words), status=78 if is_stopped else 0
        )
        digest = next(iter(re.findall(r"digest of this examination is ([0-9a-f]{16})", said[name])), digest)
        if name == "data describe":
            assert "suspicious: 0 lies far from all other values" in (folder / "contract.yaml").read_text()
            (folder / "contract.yaml").write_text(contract)
    return said


def take_part(config: Path) -> None:
    """The run between the pages."""
    plan = make_plan(sites=SITES)
    hospital, study, preprocessing = prepare(config, plan)
    study.close(at_the_end(plan), run_rounds(plan, [study]))
    make_report(hospital, study, preprocessing, "walkthrough-1")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_a_raw_table_to_a_report_and_a_prediction(tmp_path: Path) -> None:
    """Describe, correct, check, accept and train, then the page after the run with its lines of Python."""
    raw = write_patients(tmp_path, rows=400)  # as many as the page says
    config = write_hospital(tmp_path)
    before = connect(tmp_path)
    take_part(config)
    (tmp_path / "new.csv").write_text(raw.read_text().replace("Zebra", "New-Zebra"))

    said = {words[0]: run(tmp_path, *words) for words in typed(AFTER)}
    (lines,) = fenced(AFTER, "python")
    loaded = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path / "exported-model", capture_output=True, text=True, check=True
    )

    assert "st-mary: 400 rows of 400 patients. The check found 1 warning" in before["data check"]
    assert "accepted by A. Jones" in before["data check"]
    assert list(said) == ["report", "predict", "export"]
    assert "federated" in said["report"]
    assert "<img" in (tmp_path / "report.html").read_text()
    assert "400 rows predicted into predictions.csv by the model of the run walkthrough-1" in said["predict"]
    assert "The column probability has the predicted probability of died: outcome is dead." in said["predict"]
    assert re.search(r"export differs from the model by at most \d\.\de-(0[6-9]|1\d)", said["export"])
    ((probability,),) = yaml.safe_load(loaded.stdout)
    assert 0.0 < probability < 1.0
    first = next(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    assert first["patient"] == "New-Zebra0"
    assert "Zebra" not in "".join([*before.values(), *said.values(), (tmp_path / "report.html").read_text()])
