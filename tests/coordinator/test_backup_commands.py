"""`backup` and `restore` as an operator types them: refused while a program runs.

They never replace newer state.
"""

from __future__ import annotations

import json
import shutil
import stat
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from audit.log_files import files_set_aside
from audit.own_log import AuditError, AuditLog
from coordinator.coordinator_cli import cli as coordinator
from coordinator.storage.history import History
from coordinator.storage.journal import Journal, read_journal
from deploy.quickstart.ports import free_port
from host.secret_files import hold_directory
from pki.pki_cli import commands as pki
from site_agent.site_cli import cli as site_agent
from site_agent.state_folders import audit_log_path
from tests.rehearsal.federation import Office
from tests.rehearsal.programs import called, finished, running, says, wait_until
from tests.rehearsal.study import plan_document


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def coordinator_in(folder: Path) -> Path:
    """A coordinator's configuration; its state knows one run that was begun."""
    office = Office.found(folder)
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan_document(office.identities)))
    keys = {"listen": f"localhost:{free_port()}", "authority": "authority", "state": "state", "plans": ["plan.yaml"]}
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(keys))
    with running(folder / "log", "coordinator", "start", "--config", folder / "coordinator.yaml"):
        wait_until(says(folder / "log", "run_announced"))
        backup = called("coordinator", "backup", folder / "early", "--config", folder / "coordinator.yaml")
    assert (backup.returncode, "already runs" in backup.stderr) == (78, True)
    assert not (folder / "early").exists()
    return folder / "coordinator.yaml"


def test_a_coordinator_is_backed_up_and_brought_back(tmp_path: Path) -> None:
    """Journal, register and keys are restored on an empty disk, and the run is marked as restored.

    A newer journal prevents it.
    """
    config, file = coordinator_in(tmp_path), tmp_path / "one.backup"
    made = finished("coordinator", "backup", file, "--config", config)
    with tarfile.open(file) as archive:
        names = archive.getnames()
    (place,) = (tmp_path / "state" / "runs").glob("*/journal.jsonl")
    journal = Journal(place, now)
    journal.add("left", site="a")
    journal.sync()
    journal.close()

    over_newer = called("coordinator", "restore", file, "--config", config)
    paper = tmp_path / "paper"
    paper.write_text(called("coordinator", "backup-key", "--config", config).stdout)
    shutil.rmtree(tmp_path / "state")
    without_paper = called("coordinator", "restore", file, "--config", config)
    without_file = called("coordinator", "restore", tmp_path / "absent", "--config", config)
    shutil.move(tmp_path / "authority", tmp_path / "lost")
    restored = called("coordinator", "restore", file, "--config", config, "--key-file", paper)

    assert made.returncode == 0
    assert "secret keys" in made.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "authority/register.sqlite" in names
    assert "state/backup.seal" not in names
    assert (without_paper.returncode, "nobody can tell who made" in without_paper.stderr) == (78, True)
    assert "absent cannot be read: No such file" in without_file.stderr
    assert "backup key" not in without_file.stderr
    assert called("coordinator", "backup-key", "--config", config).stdout == paper.read_text()
    assert (over_newer.returncode, "has records that the backup does not have" in over_newer.stderr) == (78, True)
    assert restored.returncode == 0, restored.stderr
    assert "pki list" in restored.stdout
    last = json.loads((tmp_path / "state" / "audit.log").read_text().splitlines()[-1])["facts"]
    assert last["event"] == "state_restored"
    history = History()
    for entry in read_journal(place):
        history.take(entry)
    assert history.counts["restored"] == 1
    assert history.first_attempt > 0
    for before in (tmp_path / "lost").rglob("*"):
        if before.is_file() and not before.name.startswith(".") and before.suffix in (".pem", ".json"):
            after = tmp_path / "authority" / before.relative_to(tmp_path / "lost")
            assert after.read_bytes() == before.read_bytes()
            assert after.stat().st_mode == before.stat().st_mode
    with running(tmp_path / "log2", "coordinator", "start", "--config", config):
        wait_until(says(tmp_path / "log2", "coordinator_listening"))


def test_a_site_is_backed_up_and_brought_back(tmp_path: Path) -> None:
    """Keys and audit log come back with a record of it; another site's backup, and one that runs, are refused."""
    config, state, file = tmp_path / "hospital.yaml", tmp_path / "state", tmp_path / "one.backup"
    example = yaml.safe_load((Path(__file__).parents[2] / "deploy/examples/hospital.yaml").read_text())
    config.write_text(yaml.safe_dump(example | {"state": "state"}))
    site = example["site"]
    fingerprint = called("site-agent", "identity", "--config", config).stdout
    audit_log_path(state).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = AuditLog(audit_log_path(state), site=site, now=now)
    log.write("plan_approved", by="a test")
    log.close()
    made = finished("site-agent", "backup", file, "--config", config)
    shutil.rmtree(state)

    restored = finished("site-agent", "restore", file, "--config", config, "--unauthenticated")
    again = called("site-agent", "identity", "--config", config).stdout
    events = [json.loads(line)["facts"]["event"] for line in (audit_log_path(state)).read_text().splitlines()]
    (aside,) = files_set_aside(audit_log_path(state))
    older = finished("site-agent", "restore", file, "--config", config, "--unauthenticated")
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace(f"site: {site}", "site: another"))
    of_another = finished("site-agent", "restore", file, "--config", other, "--unauthenticated")

    assert (made.returncode, restored.returncode) == (0, 0), (made.stderr, restored.stderr)
    assert again == fingerprint
    assert events == ["log_began_anew", "state_restored"]
    assert json.loads(aside.read_text())["facts"]["event"] == "plan_approved"
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    assert (older.returncode, "has records that the backup does not have" in older.stderr) == (78, True)
    assert (of_another.returncode, "not of another's" in of_another.stderr) == (78, True)
    (audit_log_path(state)).write_text((audit_log_path(state)).read_text().replace("restored from", "copied from"))
    with pytest.raises(AuditError):  # what the log held is checked as ever
        AuditLog(audit_log_path(state), site=site, now=now)
    hold_directory(state / "gate", "site agent")
    held = finished("site-agent", "backup", tmp_path / "two.backup", "--config", config)
    assert (held.returncode, "already runs" in held.stderr) == (78, True)


@pytest.mark.parametrize("budget", [0, 2])
def test_a_restore_tells_who_has_a_budget_of_sums_that_its_use_since_the_backup_is_forgotten(
    tmp_path: Path, budget: int
) -> None:
    """Only a person can know what was used since. Without a budget there is nothing to lower."""
    example = yaml.safe_load((Path(__file__).parents[2] / "deploy/examples/hospital.yaml").read_text())
    example["policy"]["lost_site_budget"] = budget
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(example | {"state": "state"}))
    (tmp_path / "state").mkdir()
    words = (str(tmp_path / "one.backup"), "--config", str(tmp_path / "hospital.yaml"))
    made = CliRunner().invoke(site_agent, ["backup", *words])
    shutil.rmtree(tmp_path / "state")

    restored = CliRunner().invoke(site_agent, ["restore", *words, "--unauthenticated"])

    assert (made.exit_code, restored.exit_code) == (0, 0), (made.output, restored.output)
    assert ("lower lost_site_budget in hospital.yaml" in restored.output) is (budget > 0)


@pytest.mark.parametrize("folders", [(), ("state/gate", "state/agent", "state/trainer")])
@pytest.mark.parametrize(
    "command",
    [
        ["identity"],
        ["backup-key"],
        ["backup", "new.backup"],
        ["privacy"],
        ["audit", "restart", "--by", "A. Jones", "--because", "disk failed"],
    ],
)
def test_no_command_makes_a_key_while_a_restore_is_unfinished(
    tmp_path: Path, command: list[str], folders: tuple[str, ...]
) -> None:
    """It would print another key than the site's. Its file would hide that the state is not back.

    Then the next start would make the key. This is also true for the file of an audit log.
    """
    example = yaml.safe_load((Path(__file__).parents[2] / "deploy/examples/hospital.yaml").read_text())
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(example | {"state": "state"}))
    refused_beside_a_restore(tmp_path, folders, site_agent, [*command, "--config", str(tmp_path / "hospital.yaml")])


@pytest.mark.parametrize("folders", [(), ("state", "authority")])
@pytest.mark.parametrize(
    "command",
    [["backup-key"], ["backup", "new.backup"], ["audit", "restart", "--by", "B. Lee", "--because", "disk failed"]],
)
def test_no_command_of_the_office_makes_a_key_while_a_restore_is_unfinished(
    tmp_path: Path, command: list[str], folders: tuple[str, ...]
) -> None:
    """A service manager can have made the empty folders of the coordinator too."""
    keys = {"listen": "localhost:8443", "authority": "authority", "state": "state", "plans": ["plan.yaml"]}
    (tmp_path / "coordinator.yaml").write_text(yaml.safe_dump(keys))
    refused_beside_a_restore(tmp_path, folders, coordinator, [*command, "--config", str(tmp_path / "coordinator.yaml")])


def test_no_authority_is_made_beside_one_whose_restore_is_unfinished(tmp_path: Path) -> None:
    """All certificates of the federation would be worthless to it."""
    addresses = ["--address", "c.example.org:8443", "--enrolment-address", "c.example.org:8444"]
    words = ["init", "--federation", "heart", *addresses, "--directory", str(tmp_path / "authority")]
    refused_beside_a_restore(tmp_path, (), pki, words)


def refused_beside_a_restore(folder: Path, made: tuple[str, ...], program: click.Group, words: list[str]) -> None:
    """A program refuses a command beside an unfinished restore, and writes no file."""
    for name in ("state", "authority"):
        (folder / f"{name}.restoring-20260301T120000").mkdir()
    for name in made:
        (folder / name).mkdir(parents=True)
    before = sorted(folder.rglob("*"))

    said = CliRunner().invoke(program, words)

    assert said.exit_code != 0
    assert "was interrupted" in str(said.exception) + said.output
    assert sorted(folder.rglob("*")) == before
