"""The command `site-agent` on broken files: every mistake is named, and no traceback is shown."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from host.record_store import StoreDamaged
from protos.plan.plan import Plan
from site_agent.site_cli import main
from tests.entry_points import Terminal, assert_three_sentences
from tests.logged import lines_of
from tests.plan_changes import POLICY
from tests.rehearsal.study import made_up_identities, plan_document, plan_with

HOSPITAL: dict[str, Any] = {
    "site": "a",
    "coordinator": "localhost:8443",
    "invitation": "invitation.json",
    "state": "state",
    "policy": POLICY,
    "data": {
        "table": "table.csv",
        "contract": "contract.yaml",
        "split": {"seed": 0, "test_share": 0.33, "validation_share": 0.1},
        "unaccepted_warnings": "tell",
    },
    "training": {"threads": 1, "siloed_baseline": True, "user_module": "own.py"},
}
CONTRACT: dict[str, Any] = {
    "format": {"header": True},
    "columns": [
        {"name": "patient", "role": "patient"},
        {"name": "age", "role": "feature", "type": "numeric"},
        {"name": "ill", "role": "target", "task": "binary", "positive": ["yes"], "negative": ["no"]},
    ],
}


@pytest.fixture
def site_agent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """The command; the log that it sets up writes to this test's terminal and ends with it."""
    monkeypatch.setattr("site_agent.commands.approval_commands.give_up_network", lambda: True)
    yield Terminal("site-agent", main, capsys, monkeypatch)
    structlog.reset_defaults()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hospital with a small table."""
    rows = [f"P{number},{20 + number % 60},{'yes' if number % 3 else 'no'}" for number in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["patient,age,ill", *rows]) + "\n")
    (tmp_path / "contract.yaml").write_text(yaml.safe_dump(CONTRACT, sort_keys=False))
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(HOSPITAL, sort_keys=False))
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("site: a", "sight: a", "1:1: sight: unknown key; did you mean site?"),
        ("site: a", "", "site: this key is missing"),
        ("site: a", "site: A b", "1:7: site: "),
        ("smallest_sites: 3", "smallest_sites: 0", "9:19: policy.smallest_sites: "),
        ("smallest_sites: 3", "smalest_sites: 3", "9:3: policy.smalest_sites: unknown key; did you mean smallest_s"),
        ("test_share: 0.33", "test_share: .nan", "a number must be finite"),
        ("localhost:8443", "localhost:99999", "2:14: coordinator: a port must be between 1 and 65535"),
        ("state: state", 'state: "a\\0b"', "4:8: state: "),
        ("state: state", "state: &x state", "anchors and aliases are not allowed"),
        ("state: state", "state: state\nstate: other", "state is given twice"),
        ("state: state", "state: !!python/name:os.system state", "is not allowed"),
        ("secure_aggregation: required", "secure_aggregation: yes", "policy.secure_aggregation: "),
        ("threads: 1", "threads: 0", "training.threads: "),
    ],
)
def test_a_wrong_key_is_told_with_its_place(
    site_agent: Terminal, folder: Path, old: str, new: str, finding: str
) -> None:
    """A mistake is named with file, line, column and the nearest key; the exit status is 78, nothing is made."""
    path = folder / "hospital.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))

    assert site_agent("join", "--config", path) == 78
    assert finding in site_agent.err
    assert re.search(rf"{re.escape(str(path))}:\d+:\d+: ", site_agent.err)
    assert_three_sentences(site_agent.err)
    assert "nothing was sent. A running program keeps its settings" in site_agent.err
    assert not (folder / "state").exists()


@pytest.mark.parametrize("command", ["join", "identity", "review", "audit verify"])
def test_a_file_that_is_not_there_is_told(site_agent: Terminal, tmp_path: Path, command: str) -> None:
    """A missing configuration is a configuration error with its path."""
    assert site_agent(*command.split(), "--config", tmp_path / "none.yaml") == 78
    assert "none.yaml cannot be read" in site_agent.err
    assert_three_sentences(site_agent.err)


def test_a_site_with_neither_certificate_nor_invitation_is_told_what_to_ask_for(
    site_agent: Terminal, folder: Path
) -> None:
    """`join` without an invitation sends nothing and names the missing file."""
    (folder / "hospital.yaml").write_text(yaml.safe_dump({k: v for k, v in HOSPITAL.items() if k != "invitation"}))

    assert site_agent("join", "--config", folder / "hospital.yaml") == 78
    assert "no path of an invitation" in site_agent.err


def test_a_gate_runs_with_pythons_collector(site_agent: Terminal, folder: Path) -> None:
    """Searches for unused objects stop only while modules are loaded."""
    assert site_agent.collects("site_agent.service.joining.join", "join", "--config", folder / "hospital.yaml")


def _written_plan(folder: Path, **keys: Any) -> Plan:
    document = plan_document(made_up_identities()) | {"masking": {"required": True}} | keys
    (folder / "plan.yaml").write_text(yaml.safe_dump(document))
    return plan_with(made_up_identities(), changes=document)


def test_a_person_reviews_approves_and_leaves_a_trace(site_agent: Terminal, folder: Path) -> None:
    """Review shows what would leave, approval is recorded in the audit log, and the log verifies."""
    config, plan = folder / "hospital.yaml", _written_plan(folder)

    assert site_agent("review", "--config", config, "--plan", folder / "plan.yaml") == 0
    tensors = ("first   3      32-bit integers", "second  7      32-bit integers")
    for shown in (plan.digest.hex(), "This plan is not permitted here: nobody here", *tensors, "at most 144 bytes"):
        assert shown in site_agent.out
    assert site_agent("approve", "--config", config, "--plan", folder / "plan.yaml", "--by", "A. Jones", "--yes") == 0
    assert site_agent("review", "--config", config, "--plan", folder / "plan.yaml") == 0
    assert "Approved by A. Jones" in site_agent.out
    assert site_agent("audit", "verify", "--config", config) == 0
    assert "1 records" in site_agent.out
    log = "\n".join(lines_of(folder / "state" / "gate" / "gate.sqlite"))
    assert "plan_approved" in log
    assert plan.digest.hex() in log


def test_a_changed_audit_log_is_found_by_the_command(site_agent: Terminal, folder: Path) -> None:
    """`audit verify` fails, names the line, and `approve` writes nothing more into a broken log."""
    config = folder / "hospital.yaml"
    _written_plan(folder)
    assert site_agent("approve", "--config", config, "--plan", folder / "plan.yaml", "--by", "A. Jones", "--yes") == 0
    log = folder / "state" / "gate" / "gate.sqlite"
    with closing(sqlite3.connect(log, isolation_level=None)) as store:
        store.execute("DROP TRIGGER records_UPDATE")
        store.execute("UPDATE records SET line = replace(line, 'A. Jones', 'B. Jones')")

    assert site_agent("audit", "verify", "--config", config) == StoreDamaged.exit_status
    assert "record 0" in site_agent.err
    assert_three_sentences(site_agent.err)
    assert site_agent("approve", "--config", config, "--plan", folder / "plan.yaml", "--by", "C", "--yes") == 78


def test_review_without_any_plan_is_wrong_usage(site_agent: Terminal, folder: Path) -> None:
    """If no plan was announced and none is named, the command reports the missing option."""
    assert site_agent("review", "--config", folder / "hospital.yaml") == 2
    assert "--plan" in site_agent.err


def test_the_command_line_starts_no_thread() -> None:
    """A process with threads cannot give up the network as an ordinary user, and `predict` has to."""
    code = "import os, site_agent.site_cli; print(len(os.listdir('/proc/self/task')))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "1"
