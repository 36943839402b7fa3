"""`site-agent data` as a data manager types it: from a raw table to one that can be trained, without code."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from protos.errors import DataError
from site_agent.commands.site_options import opened_log
from site_agent.desk.examination.examine import examined
from site_agent.hospital import Hospital, read_hospital
from site_agent.trainer.data.run_table import TableCheck, find_check, keep_check, table_for_run
from tests.logged import lines_of
from tests.plan_changes import POLICY
from tests.rehearsal.programs import called, finished

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, which has to keep its network for the other tests."""
    monkeypatch.setattr("site_agent.commands.data_commands.give_up_network", lambda: True)
    return partial(called, "site-agent")


def write_patients(folder: Path, rows: int = 200) -> Path:
    """A clinic's table: a pressure with zeros for not known, a sex, a stay that follows from the outcome."""
    generator, lines = np.random.default_rng(3), ["patient,age,sex,pressure,stay,outcome"]
    for row in range(rows):
        ill = row % 2
        pressure = 0 if row % 29 == 0 else round(float(generator.normal(125 + 10 * ill, 15)))
        age, stay = round(float(generator.normal(60, 12))), round(float(generator.normal(5 + 9 * ill, 1.5)), 1)
        lines.append(f"Zebra{row},{age},{'fm'[row // 2 % 2]},{pressure},{stay},{'dead' if ill else 'alive'}")
    (path := folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return path


def write_hospital(folder: Path, **data: object) -> Path:
    """The hospital's file of that clinic."""
    of_data = {"table": "patients.csv", "contract": "contract.yaml", "split": {"seed": 0}, **data}
    document = {"site": "st-mary", "state": "state", "policy": POLICY, "data": of_data}
    (path := folder / "hospital.yaml").write_text(yaml.safe_dump(document))
    return path


def test_a_data_manager_connects_a_table_without_code(run: Run, tmp_path: Path) -> None:
    """Describe, two edits, check, accept, check: each says what is next, and no patient is in any word of it."""
    table, config, contract = write_patients(tmp_path), write_hospital(tmp_path), tmp_path / "contract.yaml"

    drafted = run("data", "describe", table, "--output", contract)
    assert drafted.returncode == 0, drafted.stderr
    text = contract.read_text()
    assert "suspicious: 0 lies far" in text
    contract.write_text(text.replace("positive_name: positive", "positive_name: died"))
    first = run("data", "check", "--config", config)
    assert first.returncode == 78
    assert "WARNING: column stay: this column alone predicts the outcome" in first.stdout
    assert "No person has accepted the 1 warning that this command listed above" in first.stderr
    assert "stay" not in first.stderr, "a finding appears once"
    digest = re.findall(r"digest of this examination is ([0-9a-f]{16})", first.stdout)[0]
    wrong = run("data", "accept", "--config", config, "--by", "A. Jones", "--digest", "0" * 16)
    assert wrong.returncode == 2
    accepted = run("data", "accept", "--config", config, "--by", "A. Jones", "--digest", digest)
    assert accepted.returncode == 0, accepted.stderr
    again = run("data", "check", "--config", config)
    assert again.returncode == 0, again.stderr
    assert "accepted by A. Jones" in again.stdout
    page = (tmp_path / "state" / "data" / "check.html").read_text()
    assert "accepted by A. Jones" in page
    assert "data_accepted" in "\n".join(lines_of(tmp_path / "state" / "gate" / "gate.sqlite"))
    words = [done.stdout + done.stderr for done in (drafted, first, wrong, accepted, again)]
    assert "Zebra" not in "".join([*words, page, text])
    (folder := tmp_path / "state/statistics/old").mkdir(parents=True)
    (folder / "results.json").write_text('{"study":"s","version":1,"run":"old","analyses":[]}')
    (folder / "own.json").write_text("{}")
    opened_log(read_hospital(config)).write("run_voided", run="s-v2-a", own_reason="none")
    assert "s-v2-a ended without results." in run("results", "--config", config).stdout


@pytest.mark.parametrize(("rows", "level"), [(3, "note"), (30, "WARNING")])
def test_rows_without_an_outcome_are_refused_or_left_out(run: Run, tmp_path: Path, rows: int, level: str) -> None:
    """Refused they stop with the remedy, dropped they are counted and shown; many of them a person has to accept."""
    table, config, contract = write_patients(tmp_path), write_hospital(tmp_path), tmp_path / "contract.yaml"
    run("data", "describe", table, "--output", contract)
    lines = table.read_text().splitlines()
    for row in range(1, rows + 1):
        lines[row] = lines[row].rpartition(",")[0].replace(lines[row].split(",")[1], "not a number", 1) + ","
    table.write_text("\n".join(lines) + "\n")

    refused = run("data", "check", "--config", config)
    contract.write_text(contract.read_text().replace("role: target,", "role: target, missing: drop,"))
    dropped = run("data", "check", "--config", config)
    assert refused.returncode == 78
    assert "2 errors, and the table must be corrected" in refused.stdout, "a cell, an outcome, and no remedy among them"
    assert refused.stdout.count("ERROR: ") == 2
    assert "column outcome: a missing value (the contract refuses it)" in refused.stdout
    assert "column outcome" not in refused.stderr, "a finding appears once"
    assert "ERROR" not in dropped.stdout
    share = f"{rows} of 200 rows ({rows / 200:.1%}) have no outcome and are not used, as the contract declares"
    assert f"{level}: {share}" in dropped.stdout


def test_the_program_itself_describes_without_a_network(tmp_path: Path) -> None:
    """As it is started by a person, it gives the network up and writes the draft to the terminal."""
    done = finished("site-agent", "data", "describe", write_patients(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "role: target" in done.stdout


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    """A hospital whose table has one warning."""
    write_patients(tmp_path)
    (tmp_path / "contract.yaml").write_text(
        "format: {header: true}\ncolumns:\n  - {name: patient, role: patient}\n"
        "  - {name: age, role: feature, type: numeric}\n"
        '  - {name: sex, role: feature, type: binary, codes: ["f", "m"]}\n'
        "  - {name: pressure, role: feature, type: numeric, missing: median, missing_markers: [0]}\n"
        "  - {name: stay, role: feature, type: numeric}\n"
        '  - {name: outcome, role: target, task: binary, positive: ["dead"], negative: ["alive"]}\n'
    )
    return read_hospital(write_hospital(tmp_path))


def _accept(hospital: Hospital) -> None:
    digest, at = examined(hospital).digest, datetime(2026, 1, 1, tzinfo=UTC).isoformat(timespec="seconds")
    keep_check(hospital.state_path, TableCheck(digest=digest, warnings=("x",), by="A. Jones", at=at))


def test_an_unaccepted_warning_stops_the_trainer_and_an_accepted_one_does_not(hospital: Hospital) -> None:
    """The trainer's own way in asks for the acceptance, unless the hospital's file says that telling is enough."""
    with pytest.raises(DataError, match="No person has checked this table") as stopped:
        table_for_run(hospital)
    told = hospital.model_copy(update={"data": hospital.data.model_copy(update={"unaccepted_warnings": "tell"})})
    assert "Zebra" not in str(stopped.value)
    assert len(table_for_run(told)[1].training)
    _accept(hospital)
    assert len(table_for_run(hospital)[1].training)


def test_an_acceptance_is_for_the_table_as_it_was(hospital: Hospital) -> None:
    """After one changed cell, a person must check again."""
    _accept(hospital)
    path = Path(hospital.data.table)
    lines = path.read_text().splitlines()
    cells = lines[5].split(",")
    lines[5] = ",".join([cells[0], str(int(cells[1]) + 1), *cells[2:]])
    path.write_text("\n".join(lines))

    with pytest.raises(DataError, match="No person has checked"):
        table_for_run(hospital)


def test_nothing_is_accepted_that_the_audit_log_does_not_take(hospital: Hospital, run: Run, tmp_path: Path) -> None:
    """A user who may not write the log, as the trainer's, records no acceptance; here a folder lies in its place."""
    (hospital.state_path / "gate" / "gate.sqlite").mkdir(parents=True)
    digest = examined(hospital).digest

    refused = run("data", "accept", "--config", tmp_path / "hospital.yaml", "--by", "A. Jones", "--digest", digest)

    assert refused.returncode == 1
    assert find_check(hospital.state_path, digest) is None


@pytest.mark.parametrize("content", ["", "{}", '{"digest": "other"}'])
def test_a_damaged_acceptance_is_told(hospital: Hospital, content: str) -> None:
    """An unreadable file is no acceptance."""
    _accept(hospital)
    digest = examined(hospital).digest
    (hospital.state_path / "data" / "checked" / f"{digest}.json").write_text(content)

    with pytest.raises(DataError, match="cannot be read"):
        find_check(hospital.state_path, digest)


def _renamed(name: str) -> Callable[[str], bytes]:
    return lambda text: text.replace("pressure", name, 1).encode()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (lambda text: text.replace(",", ";").replace(".", ",").encode(), "The first row has no declared name"),
        (_renamed("Pressure"), "column pressure: it is missing. Column number 4 has the same name but for capitals"),
        (_renamed("presure"), "column pressure: it is missing. Column number 4 has nearly the same name"),
    ],
    ids=["decimal commas", "capitals", "renamed"],
)
def test_a_table_that_is_written_otherwise_is_told_the_one_step(
    run: Run, tmp_path: Path, written: Callable[[str], bytes], words: str
) -> None:
    """The command ends with 78, names the cause and the key or column that corrects it, once, and no patient."""
    table, config, contract = write_patients(tmp_path), write_hospital(tmp_path), tmp_path / "contract.yaml"
    run("data", "describe", table, "--output", contract)
    table.write_bytes(written(table.read_text()))

    done = run("data", "check", "--config", config)

    assert done.returncode == 78
    assert words in done.stdout + done.stderr
    assert done.stderr.count(words) <= 1
    assert "Zebra" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_that_does_not_exist_is_named(run: Run, tmp_path: Path) -> None:
    """Of the table that hospital.yaml names, and of one that is described."""
    table, config = write_patients(tmp_path), write_hospital(tmp_path, table="patient.csv")
    run("data", "describe", table, "--output", tmp_path / "contract.yaml")

    checked, described = run("data", "check", "--config", config), run("data", "describe", tmp_path / "nowhere.csv")
    queried = run("data", "describe", table, "--query", tmp_path / "nowhere.sql")

    assert queried.returncode == 1
    assert f"The path {tmp_path / 'nowhere.sql'} does not exist. [E009]" in queried.stderr
    assert "Correct the path" in queried.stderr
    assert (checked.returncode, described.returncode) == (1, 78)
    assert f"{tmp_path / 'patient.csv'} cannot be read now: No such file or directory" in checked.stderr
    assert "nowhere.csv cannot be read: No such file or directory" in described.stderr


@pytest.mark.parametrize("policy", ["strict", "usual", "open"])
def test_init_writes_the_files_of_a_new_hospital(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """One command writes hospital.yaml and a draft that the table meets; a second one replaces nothing."""
    monkeypatch.setattr("site_agent.commands.data_commands.give_up_network", lambda: True)
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path)

    made = run("init", "--site", "st-mary", "--table", "patients.csv", "--policy", policy)
    checked = run("data", "check", "--config", "hospital.yaml")
    before = (tmp_path / "hospital.yaml").read_bytes()
    again = run("init", "--site", "other", "--table", "patients.csv", "--policy", "open")

    assert made.returncode == 0, made.stderr
    hospital = read_hospital(tmp_path / "hospital.yaml")
    assert (hospital.site, hospital.policy.approvers) == ("st-mary", 2 if policy == "strict" else 1)
    assert (hospital.policy.secure_aggregation == "required") == (policy != "open")
    assert checked.returncode == 78
    assert "WARNING: column stay" in checked.stdout
    assert "ERROR" not in checked.stdout
    assert again.returncode == 2
    assert "hospital.yaml already exists" in again.stderr
    assert (tmp_path / "hospital.yaml").read_bytes() == before
    assert "Zebra" not in made.stdout + (tmp_path / "contract.yaml").read_text()


def test_an_interrupted_command_says_what_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in any command ends with 130 and a line; a stopped agent names what it keeps and how it goes on."""
    write_patients(tmp_path)
    config = write_hospital(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def stopped(task: Coroutine[object, object, object]) -> None:
        task.close()
        raise asyncio.CancelledError

    monkeypatch.setattr("site_agent.desk.drafting.describe.describe", interrupted)
    monkeypatch.setattr("asyncio.run", stopped)
    described, joined = run("data", "describe", tmp_path / "patients.csv"), run("join", "--config", config)

    assert (described.returncode, joined.returncode) == (130, 0)
    assert "interrupted. Files that were finished are kept" in described.stderr
    assert "`site-agent join` continues the run" in joined.stderr


def test_rows_that_cannot_be_read_are_used_only_without_them_and_after_a_name(run: Run, tmp_path: Path) -> None:
    """A draft maps a concept of the plan; the acceptance of rows that are put aside is in the audit log."""
    example = (Path(__file__).parents[3] / "deploy" / "examples" / "plan-prior.yaml").read_text()
    (plan := tmp_path / "plan.yaml").write_text("concepts:" + example.partition("\nconcepts:")[2])  # unfinished
    table, config, contract = write_patients(tmp_path), write_hospital(tmp_path), tmp_path / "contract.yaml"
    table.write_text(table.read_text().replace("pressure", "cholesterol", 1))
    assert run("data", "describe", table, "--output", contract, "--concepts", plan).returncode == 0
    assert "concept: cholesterol" in contract.read_text()
    contract.write_text(contract.read_text().replace("columns:", "put_aside: 0.03\ncolumns:", 1))
    lines = table.read_text().splitlines()
    lines[4] = lines[4].rpartition(",")[0] + ",Zebra"
    table.write_text("\n".join(lines) + "\n")

    first = run("data", "check", "--config", config)
    digest = re.findall(r"digest of this examination is ([0-9a-f]{16})", first.stdout)[0]
    accepted = run("data", "accept", "--config", config, "--by", "A. Jones", "--digest", digest)

    assert first.returncode == 78
    assert accepted.returncode == 0, accepted.stderr
    assert run("data", "check", "--config", config).returncode == 0
    assert '"put_aside"' in "\n".join(lines_of(tmp_path / "state" / "gate" / "gate.sqlite"))
    contract.write_text(contract.read_text().replace("put_aside: 0.03", "put_aside: 0.001"))
    assert "put_aside allows 0" in run("data", "check", "--config", config).stdout
