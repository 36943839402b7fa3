"""One model is in use at a hospital, by a person's decision, and only a person changes it."""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from site_agent.desk.comparison.gain import MODEL_TITLES
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.results import simple_models
from site_agent.desk.results.saved_model import load_model, saved_names
from site_agent.desk.use.adoption import find_adoption
from site_agent.hospital import read_hospital
from site_agent.state_folders import gate_store_path
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.tables import read_table
from tests.logged import facts_of
from tests.site_agent.desk.export.test_parity import check
from tests.site_agent.desk.terminal import typed
from tests.site_agent.trainer.after_a_run import RUN, site_after_run
from tests.site_agent.trainer.sites import Table

LATER = "law-2"
MODELS = ("federated", "siloed")
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
        config = ["--config", str(folder / "hospital.yaml")]
        return typed(capfd, monkeypatch, command, *config, *words)

    return run


def a_later_run(folder: Path) -> None:
    """Another run ends: its models lie beside those of the first."""
    for kind, suffix in (("models", ""), ("scores", ""), ("reports", ".json")):
        here = folder / "state" / kind
        copy = shutil.copytree if not suffix else shutil.copy
        copy(here / f"{RUN}{suffix}", here / f"{LATER}{suffix}")
    newest = folder / "state" / "models" / LATER / "model.safetensors"
    later = (folder / "state" / "models" / RUN / "model.safetensors").stat().st_mtime + 60
    os.utime(newest, (later, later))


def rows_of_the_test(folder: Path, place: Path) -> None:
    """Write the site's own test rows as a table of new rows."""
    hospital = read_hospital(folder / "hospital.yaml")
    kept = split_rows(read_table(folder / "table.csv", read_contract(folder / "contract.yaml")), hospital.data.split)
    with (folder / "table.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    with place.open("w", newline="") as file:
        csv.writer(file).writerows([header, *(rows[row] for row in kept.test)])


def probabilities(place: Path) -> list[float]:
    """What was predicted, row by row; NaN where the model abstained."""
    return [float(row["probability"] or "nan") for row in csv.DictReader(place.read_text().splitlines())]


def state_of(folder: Path) -> Path:
    """The hospital's state directory."""
    return folder / "state"


@pytest.mark.parametrize("model", MODELS)
def test_what_is_adopted_predicts_as_it_was_tested(
    folder: Path, tmp_path: Path, site_agent: Command, model: str
) -> None:
    """The test rows as a new table get the scores of exactly the adopted model, whatever its kind."""
    rows_of_the_test(folder, tmp_path / "new.csv")

    assert site_agent("adopt", model, "--by", "A. Jones")[0] == 0
    status, said = site_agent("predict", "--input", tmp_path / "new.csv", "--output", tmp_path / "out.csv")

    assert status == 0, said
    assert MODEL_TITLES[model] in said
    assert "Nobody" not in said
    np.testing.assert_allclose(
        probabilities(tmp_path / "out.csv"), scored_rows(state_of(folder), RUN).scores[model], rtol=0, atol=1e-6
    )


def test_a_new_run_changes_nothing_that_is_in_use(folder: Path, tmp_path: Path, site_agent: Command) -> None:
    """Predictions stay equal to the byte and name the newer models; --run does not reach them either."""
    rows_of_the_test(folder, tmp_path / "new.csv")
    site_agent("adopt", "siloed", "--by", "A. Jones")
    site_agent("predict", "--input", tmp_path / "new.csv", "--output", tmp_path / "before.csv")
    a_later_run(folder)

    _, said = site_agent("predict", "--input", tmp_path / "new.csv", "--output", tmp_path / "after.csv")
    refused = site_agent("predict", "--input", tmp_path / "new.csv", "--output", tmp_path / "x.csv", "--run", LATER)
    reported = site_agent("report")

    assert (tmp_path / "before.csv").read_bytes() == (tmp_path / "after.csv").read_bytes()
    assert f"the model trained alone of the run {RUN}" in said
    assert f"The run {LATER} has newer models, which are not in use." in said
    assert refused[0] == 2
    assert f"--run names another run, {LATER}" in refused[1]
    assert not (tmp_path / "x.csv").exists()
    assert f"In use: the model trained alone of the run {RUN}, adopted by A. Jones" in reported[1]
    assert "The same test rows have tested 2 runs." in reported[1]
    assert "The models of this run are not in use until a person adopts one." in reported[1]


def test_the_audit_log_has_every_decision_before_it_counts(folder: Path, site_agent: Command) -> None:
    """Who, which model and digest, and what was in use before; in plain words too. Without a log nothing changes."""
    site_agent("adopt", "siloed", "--by", "A. Jones")
    site_agent("adopt", "federated", "--by", "B. Lee")
    log = gate_store_path(state_of(folder))
    records = facts_of(log)

    decisions = [record for record in records if record.get("event") == "model_adopted"]
    assert [(one["model"], one["by"], one.get("former_model")) for one in decisions] == [
        ("siloed", "A. Jones", None),
        ("federated", "B. Lee", "siloed"),
    ]
    assert all(len(one["digest"]) == 64 and one["run"] == RUN for one in decisions)

    with closing(sqlite3.connect(log, isolation_level=None)) as store:
        store.execute("DROP TRIGGER records_UPDATE")
        store.execute("UPDATE records SET line = replace(line, 'Jones', 'Smith')")
    status, _ = site_agent("adopt", "siloed", "--by", "C. Mallory")

    assert status != 0
    adoption = find_adoption(state_of(folder))
    assert adoption is not None
    assert adoption.model == "federated"


@pytest.mark.parametrize(
    ("words", "expected", "status"),
    [
        (("oracle", "--by", "A"), "has no model oracle. It has federated, siloed", 2),
        (("../law-1/model", "--by", "A"), "has no model", 2),
        (("federated",), "--by is missing", 2),
        (("federated", "--by", " "), "--by is empty", 2),
        (
            ("federated", "--by", "A", "--run", "law-9"),
            "no model of the run law-9 here. The latest runs with a model are",
            2,
        ),
        (("Logistic regression!", "--by", "A"), "has no model Logistic regression!. It has federated", 2),
        (("Logistic regression!", "--by", "A", "--run", "law-9"), "no model of the run law-9 here", 2),
        (("--run", "../models/law-1"), "A run's name has only letters", 2),
        (("--run", "/etc"), "A run's name has only letters", 2),
        (("federated", "--by", "A", "--run", "../law-1"), "A run's name has only letters", 2),
    ],
)
def test_what_cannot_be_adopted_is_refused(
    folder: Path, site_agent: Command, words: tuple[str, ...], expected: str, status: int
) -> None:
    """With its exit status and the reason; nothing is recorded."""
    found, said = site_agent("adopt", *words)

    assert (found, expected in said) == (status, True), said
    assert find_adoption(state_of(folder)) is None
    assert not gate_store_path(state_of(folder)).exists()


@pytest.mark.parametrize("run", ["../../evil", "/etc/evil", "..", "", "a b", "law-1/../law-1"])
def test_a_run_is_a_name_and_no_path(folder: Path, site_agent: Command, run: str) -> None:
    """No command reads a report or a model from a folder that is not the site's own."""
    (folder / "evil.json").write_text("{}")

    for words in (("report",), ("adopt",), ("export", "--output", "made")):
        status, said = site_agent(*words, "--run", run)
        assert (status, "A run's name has only letters" in said) == (2, True), (words, said)


@pytest.mark.parametrize("harm", ["removed", "replaced", "record damaged", "record unreadable"])
def test_nothing_takes_the_place_of_the_adopted_model(
    folder: Path, tmp_path: Path, site_agent: Command, harm: str
) -> None:
    """A file that is gone or has changed stops predict and export. No other model predicts instead."""
    site_agent("adopt", "siloed", "--by", "A. Jones")
    models, record = state_of(folder) / "models" / RUN, state_of(folder) / "approvals" / "models" / "in-use.json"
    match harm:
        case "removed":
            (models / "siloed.safetensors").unlink()
        case "replaced":
            shutil.copy(models / "model.safetensors", models / "siloed.safetensors")
        case "record damaged":
            record.write_text("{")
        case _:
            record.unlink()
            record.mkdir()

    table, made = folder / "table.csv", tmp_path / "made"
    ended = [
        site_agent("predict", "--input", table, "--output", tmp_path / "made.csv"),
        site_agent("export", "--output", made),
    ]

    assert [status for status, _ in ended] == [78] * len(ended), ended
    assert not list(tmp_path.glob("made*"))


@pytest.mark.parametrize("table", ["breast-cancer", "wine", "diabetes"])
def test_every_model_is_exported_as_it_predicts(tmp_path: Path, table: Table) -> None:
    """For every task, the module that is exported answers as `predict` does."""
    hospital = site_after_run(tmp_path / "site", table=table)

    for name in saved_names(hospital.state_path, RUN):
        check(load_model(hospital.state_path, RUN, name))
