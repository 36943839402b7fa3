"""A table in, a table of predictions out: the same bits as in training, and the same order of rows."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pytest

from protos.errors import ConfigurationError, DataError, OperatorError, UnavailableError, UsageError
from protos.plan.plan import Plan
from site_agent.desk.comparison.evaluation import scores_of
from site_agent.desk.new_rows import shown
from site_agent.desk.prediction import csv_cell, harmless, predict_table
from site_agent.desk.result_files import check_place, write_result
from site_agent.desk.results.saved_model import SavedModel, save_model
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.disk import load, save
from site_agent.trainer.study import Outcome, Study
from tests.chaos.disks import small_disk
from tests.site_agent.desk.terminal import typed
from tests.site_agent.trainer.sites import (
    Table,
    conclude,
    make_plan,
    make_site,
    make_study,
    prepare,
    run_rounds,
    site_after_run,
)

Kind: TypeAlias = Literal["own-columns", "agreed-columns", "common-and-own", "own-module"]
OWN_MODULE = """
from torch import nn


def build(columns, outputs):
    return nn.Sequential(nn.Linear(columns, 4), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, outputs))
"""


@dataclass
class Trained:
    """A site that has finished a study."""

    hospital: Hospital
    study: Study
    preprocessing: Preprocessing
    outcome: Outcome
    rows: list[list[str]]
    header: list[str]

    def write(self, path: Path, rows: list[list[str]], columns: list[str] | None = None) -> Path:
        """These rows, with all or some of the columns."""
        kept = [self.header.index(name) for name in columns or self.header]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([[row[place] for place in kept] for row in [self.header, *rows]])
        return path


def _trained(folder: Path, table: Table = "breast-cancer", kind: Kind = "own-columns") -> Trained:
    config = make_site(folder, table=table, **_training(folder, kind))
    plan = _plan_for(kind, make_study(make_site(folder / "once", table=table), make_plan()).own.columns)
    hospital, study, preprocessing = prepare(config, plan)
    outcome, nothing = conclude(study, run_rounds(study.plan, [study])), Profile(columns=())
    model = SavedModel(plan=study.plan, preprocessing=preprocessing, values=outcome.values, profile=nothing)
    save_model(hospital.state_path, "law-1", model)
    with Path(hospital.data.table).open(newline="") as file:
        header, *rows = csv.reader(file)
    return Trained(hospital, study, preprocessing, outcome, rows, header)


def _plan_for(kind: Kind, own: tuple[str, ...]) -> Plan:
    match kind:
        case "own-columns":
            return make_plan()
        case "agreed-columns":
            columns = ["a column of others", *reversed(own), "another one"]
            return make_plan(method={"name": "fedavg"}, columns=columns, outputs=1)
        case "common-and-own":
            architecture = {"name": "parallel", "common": [4], "unique": [5, 3]}
            columns = [own[3], "a column of others", own[1]]
            return make_plan(method={"name": "fenda-fl"}, architecture=architecture, columns=columns)
        case "own-module":
            tensors = [{"name": "1.weight", "shape": [3, 4], "bound": 0.5}]
            return make_plan(architecture={"name": "named-tensors", "tensors": tensors})


def _training(folder: Path, kind: Kind) -> dict[str, object]:
    if kind != "own-module":
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    module = folder / "own.py"
    module.write_text(OWN_MODULE)
    module.chmod(0o600)
    return {"user_module": "own.py"}


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ("breast-cancer", "own-columns"), ("breast-cancer", "agreed-columns"), ("breast-cancer", "common-and-own"),
        ("breast-cancer", "own-module"), ("wine", "own-columns"), ("wine", "common-and-own"),
        ("diabetes", "own-columns"), ("diabetes", "own-module"),
    ],
)  # fmt: skip
def test_predictions_are_the_test_outputs_to_the_bit(tmp_path: Path, table: Table, kind: Kind) -> None:
    """The test rows as a new table give exactly what the study computed for them, for every task and network."""
    trained = _trained(tmp_path, table, kind)
    hospital, contract = trained.hospital, trained.preprocessing.contract
    test = split_rows(read_table(Path(hospital.data.table), contract), hospital.data.split).test
    new = trained.write(tmp_path / "new.csv", [trained.rows[row] for row in test])

    count = predict_table(hospital, new, tmp_path / "out.csv", None)

    header, rows = _read(tmp_path / "out.csv")
    expected = scores_of(trained.preprocessing, trained.outcome.test_outputs)
    found = np.array([[float(cell) for cell in row[1 : 4 if table == "wine" else 2]] for row in rows])
    assert (count.rows, count.abstained) == (len(test), 0)
    assert len(rows) == len(test)
    assert [row[0] for row in rows] == [trained.rows[row][0] for row in test]
    np.testing.assert_array_equal(found, expected if table == "wine" else expected[:, None])
    headers = {
        "breast-cancer": ["who", "probability", "abstained_because"],
        "wine": ["who", "probability_0", "probability_1", "probability_2", "predicted", "abstained_because"],
        "diabetes": ["who", "prediction", "abstained_because"],
    }
    assert header == headers[table]
    if table == "wine":
        assert [row[4] for row in rows] == [str(row.argmax()) for row in expected]
    if table == "diabetes":
        assert 50 < found.mean() < 250


@pytest.mark.parametrize("who", ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|"/c calc"!A0', "P,7", 'P"7', "P;=1+1", "P|=1"])
def test_an_identifier_is_never_a_formula(tmp_path: Path, who: str) -> None:
    """A spreadsheet shows it; only an apostrophe is put in front, and a comma stays in its cell."""
    trained = _trained(tmp_path)
    rows = [[who, *row[1:]] if number == 3 else row for number, row in enumerate(trained.rows)]
    predict_table(trained.hospital, trained.write(tmp_path / "new.csv", rows), tmp_path / "out.csv", None)

    _, found = _read(tmp_path / "out.csv")
    assert found[3][0] == ("'" + who if who[0] in "=+-@" else who)
    assert not any(row[0].startswith(("=", "+", "-", "@")) for row in found)
    for separator in ";|\t":
        with (tmp_path / "out.csv").open(newline="") as file:
            cells = [cell for row in csv.reader(file, delimiter=separator) for cell in row]
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_every_start_of_a_formula_is_disarmed(start: str) -> None:
    """And nothing else is touched."""
    assert harmless(f"{start}x") == f"'{start}x"
    assert harmless(f"x{start}") == f"x{start}"
    assert harmless("") == ""
    assert shown(f"0;{start}x").split(";")[1][0] not in (start, " ")  # as some spreadsheets split cells


def test_a_number_with_a_decimal_comma_is_one_cell() -> None:
    """A table can have commas for both, with its numbers in quotation marks."""
    for mark in ",;":
        line = mark.join(csv_cell(cell, mark, ",") for cell in (0.25, "a;b"))
        assert next(csv.reader([line], delimiter=mark)) == ["0,25", "a;b"]


def _copy(folder: Path) -> Path:
    new = folder / "new.csv"
    new.write_bytes((folder / "table.csv").read_bytes())
    return new


@pytest.mark.parametrize(
    "output",
    ["new.csv", "table.csv", "contract.yaml", "link.csv", "hard.csv", "empty.csv", ".", "/dev/null", "absent/out.csv"],
)
def test_nothing_is_overwritten(tmp_path: Path, output: str) -> None:
    """No table, contract or empty file, by whatever name; and a folder or a device is no output."""
    trained, new = _trained(tmp_path), _copy(tmp_path)
    (tmp_path / "link.csv").symlink_to(new)
    (tmp_path / "hard.csv").hardlink_to(new)
    (tmp_path / "empty.csv").touch()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    with pytest.raises(UsageError):
        predict_table(trained.hospital, new, tmp_path / output, None)

    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(("lacking", "told_of"), [(0, "not the expected 8 columns"), (1, "it is missing")])
def test_a_table_that_does_not_fit_leaves_no_output(tmp_path: Path, lacking: int, told_of: str) -> None:
    """Mistakes of the whole table are reported as in training, without a cell of it. So is a missing column."""
    trained = _trained(tmp_path)
    new, kept = tmp_path / "new.csv", trained.header[: len(trained.header) - 4 * lacking]
    new.write_text("\n".join([",".join(kept), "P1,Zebra" + lacking * "," * (len(kept) - 2)]))

    with pytest.raises(DataError, match=told_of) as told:
        predict_table(trained.hospital, new, tmp_path / "out.csv", None)

    assert "Zebra" not in str(told.value)
    assert not (tmp_path / "out.csv").exists()


def test_a_row_that_is_foreign_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """The answers of the others are as without it."""
    hospital = site_after_run(tmp_path / "site", siloed_baseline=False)
    lines = Path(hospital.data.table).read_text().splitlines()
    cells = lines[5].split(",")
    cells[lines[0].split(",").index("mean_area")] = "99999"
    (tmp_path / "new.csv").write_text("\n".join([*lines[:5], ",".join(cells), *lines[6:]]))
    predict_table(hospital, Path(hospital.data.table), tmp_path / "a.csv", None)
    predict_table(hospital, tmp_path / "new.csv", tmp_path / "b.csv", None)

    before, after = (_read(tmp_path / name)[1] for name in ("a.csv", "b.csv"))
    assert after[4][1:] == ["", "column mean_area: outside of the training rows (99999)"]
    assert [one[2] for one in before[5:]] == [one[2] for one in after[5:]]


def test_the_command_counts_and_names_what_it_does_not_predict(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Column, flaw, number of rows and values on the screen; the same in the row of the output; and no risk."""
    trained = _trained(tmp_path)
    rows, first = [list(row) for row in trained.rows], trained.header[1]
    for place, cell in ((0, "M"), (3, "M"), (4, "F")):
        rows[place][1] = cell
    new = trained.write(tmp_path / "new.csv", rows)

    def predict(table: Path, output: str) -> tuple[int, str]:
        words = ("--config", tmp_path / "hospital.yaml", "--input", table, "--output", tmp_path / output)
        return typed(capfd, monkeypatch, "predict", *words)

    status, said = predict(new, "out.csv")
    rows[0][1] = rows[1][1]
    rows[3][1] = rows[1][1]
    _, one = predict(trained.write(tmp_path / "one.csv", rows), "one-out.csv")

    predict(trained.write(tmp_path / "gap.csv", [rows[1], [""] * len(trained.header), rows[2]]), "gap-out.csv")
    assert len(_read(tmp_path / "gap-out.csv")[1]) == 3
    for row in rows:
        row[1] = "M"
    refused, reason = predict(trained.write(tmp_path / "none.csv", rows), "none-out.csv")

    _, found = _read(tmp_path / "out.csv")
    assert refused == 78
    assert f"The model could not predict any of the {len(rows)} rows." in reason
    assert len(_read(tmp_path / "none-out.csv")[1]) == len(rows), "with the reasons"
    assert status == 0, said
    assert f"column {first}: text where a number is declared, in 3 rows (M in 2, F in 1)" in said
    assert f"{len(rows) - 3} of {len(rows)} rows predicted" in said
    assert "The column probability has the predicted probability of positive: outcome is 0." in said
    assert "3 rows have no prediction. The column abstained_because" in said
    assert "1 row has no prediction. The column abstained_because" in one
    assert found[0][1:] == ["", f"column {first}: text where a number is declared (M)"]
    assert [row[1] == "" for row in found[:9]] == [place in (0, 3, 4) for place in range(9)]


def test_a_prediction_that_is_no_number_stops_everything(tmp_path: Path) -> None:
    """A value far from anything seen in training overflows; the row is named and nothing is written."""
    trained = _trained(tmp_path)
    rows = [list(row) for row in trained.rows[:5]]
    rows[2][1] = "1e38"
    new = trained.write(tmp_path / "new.csv", rows)

    with pytest.raises(DataError, match=r"(no finite number for row 4|lie too far)"):
        predict_table(trained.hospital, new, tmp_path / "out.csv", None)

    assert not (tmp_path / "out.csv").exists()


def test_there_is_no_prediction_without_the_right_model(tmp_path: Path) -> None:
    """None trained yet, none of that name, or one whose tensors are of another network."""
    trained = _trained(tmp_path)
    new, output = _copy(tmp_path), tmp_path / "out.csv"
    models = trained.hospital.state_path / "models"
    whole = load(models / "law-1", "model")
    save(models / "law-2", "model", dict(list(whole.tensors.items())[1:]), whole.facts)

    with pytest.raises(ConfigurationError, match="another version"):
        predict_table(trained.hospital, new, output, "law-2")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        predict_table(trained.hospital, new, output, "law-9")
    with pytest.raises(OperatorError, match="no trained model yet"):
        predict_table(trained.hospital.model_copy(update={"state": str(tmp_path / "empty")}), new, output, None)
    assert not output.exists()


def test_the_command_line_loads_no_torch() -> None:
    """`site-agent --help` is quick, and importing the prediction loads no torch either."""
    program = "import sys, site_agent.site_cli, site_agent.desk.prediction; print('torch' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert said.stdout == "False\n"


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    """A site that has not trained."""
    return read_hospital(make_site(tmp_path))


def test_nothing_is_written_into_the_state_folder(hospital: Hospital) -> None:
    """Neither over what is there nor beside it."""
    for name in ("audit.log", "keys/site.pem", "new.csv"):
        with pytest.raises(UsageError, match="state folder"):
            check_place(hospital.state_path / name, "--output", hospital)


def test_what_is_read_is_not_replaced(hospital: Hospital, tmp_path: Path) -> None:
    """The configuration's own file among it; another file is allowed."""
    settings = tmp_path / "hospital.yaml"
    settings.touch(exist_ok=True)

    with pytest.raises(UsageError, match="is read by this command"):
        check_place(settings, "--html", hospital, [settings])
    check_place(tmp_path / "one", "--html", hospital, [settings])


def test_a_full_disk_is_one_that_the_person_named(tmp_path: Path) -> None:
    """The remedy speaks of the disk and folder of the result, and not of the trainer's state."""
    with small_disk(tmp_path / "disk", megabytes=1) as disk, pytest.raises(UnavailableError) as told:
        write_result(disk / "report.html", b"page")

    assert "report.html cannot be written" in told.value.what
    assert "name a folder to which you may write" in told.value.remedy
    assert "trainer" not in str(told.value)
