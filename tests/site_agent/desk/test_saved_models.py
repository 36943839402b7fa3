"""Each saved model predicts and is exported as it was tested."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from site_agent.desk.results import simple_models
from site_agent.desk.results.saved_model import load_model
from site_agent.hospital import read_hospital
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.tables import read_table
from tests.site_agent.desk.export.test_parity import check
from tests.site_agent.desk.terminal import typed
from tests.site_agent.trainer.sites import RUN, Table, site_after_run

LATER = "law-2"
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a hospital after one run, with all its models."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simple_models, "_TREES", 10)
        folder = tmp_path_factory.mktemp("trained")
        site_after_run(folder / "site", simple_models=True)
    return folder / "site"


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, in which a test may do what it likes."""
    shutil.copytree(trained, tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def site_agent(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """A terminal: exit status, and what was written to screen and log."""

    def run(command: str, *words: object) -> tuple[int, str]:
        return typed(capfd, monkeypatch, command, "--config", str(folder / "hospital.yaml"), *words)

    return run


def _rows_of_the_test(folder: Path, place: Path) -> None:
    hospital = read_hospital(folder / "hospital.yaml")
    kept = split_rows(read_table(folder / "table.csv", read_contract(folder / "contract.yaml")), hospital.data.split)
    with (folder / "table.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    with place.open("w", newline="") as file:
        csv.writer(file).writerows([header, *(rows[row] for row in kept.test)])


def probabilities(place: Path) -> list[float]:
    """What was predicted, row by row; NaN where the model abstained."""
    return [float(row["probability"] or "nan") for row in csv.DictReader(place.read_text().splitlines())]


def test_a_model_predicts_as_it_was_tested(folder: Path, tmp_path: Path, site_agent: Command) -> None:
    """The test rows as a new table get predictions whose mean is that of the report."""
    _rows_of_the_test(folder, tmp_path / "new.csv")
    models, reports = folder / "state" / "models", folder / "state" / "reports"
    newest = shutil.copytree(models / RUN, models / LATER) / "model.safetensors"  # another run ends
    shutil.copy(reports / f"{RUN}.json", reports / f"{LATER}.json")
    later = newest.stat().st_mtime + 60
    os.utime(newest, (later, later))
    files = ("--input", tmp_path / "new.csv", "--output", tmp_path / "out.csv")

    status, said = site_agent("predict", *files, "--run", RUN)

    assert status == 0, said
    assert f"the model of the run {RUN}" in said
    report = json.loads((folder / "state" / "reports" / f"{RUN}.json").read_text())
    wanted = report["federated"]["calibration"]["predicted"]
    assert np.mean(probabilities(tmp_path / "out.csv")) == pytest.approx(wanted, abs=1e-6)
    assert "The same test rows have tested 2 runs." in site_agent("report")[1]


@pytest.mark.parametrize("run", ["../../evil", "/etc/evil", "..", "", "a b", "law-1/../law-1"])
def test_a_run_is_a_name_and_no_path(folder: Path, site_agent: Command, run: str) -> None:
    """No command reads a report or a model from a folder that is not the site's own."""
    (folder / "evil.json").write_text("{}")

    for words in (("report",), ("export", "--output", "made")):
        status, said = site_agent(*words, "--run", run)
        assert (status, "A run's name has only letters" in said) == (2, True), (words, said)


@pytest.mark.parametrize("table", ["breast-cancer", "wine", "diabetes"])
def test_every_model_is_exported_as_it_predicts(tmp_path: Path, table: Table) -> None:
    """For every task, the module that is exported answers as `predict` does."""
    hospital = site_after_run(tmp_path / "site", table=table)

    check(load_model(hospital.state_path, RUN))
