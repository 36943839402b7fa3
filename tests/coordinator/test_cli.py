"""The commands `coordinator` and `pki` with broken files and wrong arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import structlog
import yaml

from coordinator.commands.coordinator_cli import main
from tests.entry_points import Terminal, assert_three_sentences
from tests.protos.privacy.private_plans import private_network_plan
from tests.rehearsal.federation import Office
from tests.rehearsal.programs import called, finished
from tests.rehearsal.study import made_up_identities, made_up_identity, plan_document
from tests.statistics.federations import statistics_plan

COORDINATOR: dict[str, Any] = {
    "listen": "localhost:8443", "enrolment_listen": "localhost:8444", "authority": "authority", "state": "state",
    "plans": ["plan.yaml"],
}  # fmt: skip


@pytest.fixture
def coordinator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """The command; the log that it sets up writes to this test's terminal and ends with it."""
    yield Terminal("coordinator", main, capsys, monkeypatch)
    structlog.reset_defaults()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with one plan."""
    write(tmp_path)
    return tmp_path


def write(folder: Path, configuration: object = COORDINATOR, plan: object = None) -> None:
    """Write both files."""
    document = plan or plan_document(made_up_identities())
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True))
    (folder / "plan.yaml").write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def test_check_shows_the_price_of_a_private_plan_and_what_privacy_changes(coordinator: Terminal, folder: Path) -> None:
    """Epsilon, delta and the noise of all rounds, and one sentence for each part of the method."""
    both = COORDINATOR | {"plans": ["plan.yaml", "counts.yaml"]}
    write(folder, both, json.loads(private_network_plan(method={"name": "ditto"}).canonical))
    (folder / "counts.yaml").write_bytes(statistics_plan({"name": "who", "table_one": {"columns": ["age"]}}).canonical)

    assert coordinator("check", "--config", folder / "coordinator.yaml") == 0
    words = ("epsilon 1, delta 1e-05 for each patient over all 10 rounds", "stays at the site")
    assert all(word.lower() in coordinator.out.lower() for word in words)
    assert coordinator.out.count(" tensors, ") == 1  # sums of statistics are of none
    write(folder, COORDINATOR | {"plans": []})
    assert coordinator("check", "--config", folder / "coordinator.yaml") == 0
    assert "no plan was checked" in coordinator.out


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("listen: localhost:8443", "listn: localhost:8443", "1:1: listn: unknown key; did you mean listen?"),
        ("state: state", 'state: "a\\0b"', "4:8: state: "),
        ("- plan.yaml", "- none.yaml", "none.yaml cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["check", "start"])
def test_a_wrong_key_is_told_with_its_place(
    coordinator: Terminal, folder: Path, command: str, old: str, new: str, finding: str
) -> None:
    """A mistake is named with file, line, column and the nearest key; the exit status is 78, nothing starts."""
    path = folder / "coordinator.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))

    assert coordinator(command, "--config", path) == 78
    assert finding in coordinator.err
    assert "The command did nothing. A running coordinator keeps its settings." in coordinator.err
    assert_three_sentences(coordinator.err, "coordinator")
    assert not (folder / "state").exists()


def test_a_coordinator_runs_with_pythons_collector(coordinator: Terminal, folder: Path) -> None:
    """Searches for unused objects stop only while modules are loaded."""
    assert coordinator.collects("coordinator.commands.serve.serve", "start", "--config", folder / "coordinator.yaml")


NO_PORT = ["--address", "no port", "--enrolment-address", "a:1", "--directory", "d"]


# Each program's exit status is seen from outside once; the other calls run in this process.
@pytest.mark.parametrize(
    ("run", "words", "status"),
    [
        (called, ["coordinator", "fly"], 2), (finished, ["coordinator", "check", "--config", "none.yaml"], 78),
        (finished, ["site-agent", "join"], 2), (called, ["site-agent", "join", "--config", "none.yaml"], 78),
        (called, ["pki", "fly"], 2),
        (called, ["pki", "invite", "UPPER CASE", "--directory", "none", "--output", "x"], 78),
        (called, ["pki", "list", "--directory", "none"], 78), (finished, ["pki", "inspect", "none"], 78),
        (called, ["pki", "init", "--federation", "x", *NO_PORT], 78),
    ],
)  # fmt: skip
def test_the_installed_commands_keep_to_the_documented_exit_statuses(
    tmp_path: Path, run: Callable[..., CompletedProcess[str]], words: list[str], status: int
) -> None:
    """2 for wrong usage, 78 for wrong files, and never a traceback; also as processes."""
    words = [
        str(tmp_path / word) if word in {"none", "none.yaml", "d", "x"} and word != words[3:4] else word
        for word in words
    ]

    done = run(*words)

    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith((f"{words[0]}: ", "Usage: "))


def test_check_compares_fingerprints_with_the_register(coordinator: Terminal, folder: Path) -> None:
    """A site with another key is an error that names both. Sites that cannot take part, or not yet, are named."""
    office = Office.found(folder)
    made_up = made_up_identities()

    def checked(**identities: str) -> int:
        write(folder, plan=plan_document(made_up | identities))
        return coordinator("check", "--config", folder / "coordinator.yaml")

    assert checked() == 0
    assert "No site of this plan has requested enrolment yet, so fingerprints were not compared." in coordinator.out
    keys = {name: office.enrol(name).identity_fingerprint() for name in ("a", "b")}
    others = "All other fingerprints are those of the register."
    assert checked(**keys) == 0
    assert f"  No request for enrolment yet: c. {others}" in coordinator.out
    keys["c"] = office.enrol("c").identity_fingerprint()
    assert checked(**keys) == 0
    assert "  All fingerprints are those of the register." in coordinator.out
    office.revoke("c")
    assert checked(**keys) == 0
    assert f"  Cannot take part because of `pki revoke`: c. {others}" in coordinator.out
    assert checked(**keys, d=made_up_identity("d")) == 0
    assert f"`pki revoke`: c. No request for enrolment yet: d. {others}" in coordinator.out
    assert checked(**(keys | {"b": made_up["b"]})) == 78
    told = f"the site b with the fingerprint {made_up['b']}. The register of sites has the fingerprint {keys['b']}."
    assert f"lists {told}" in coordinator.err
    assert_three_sentences(coordinator.err, "coordinator")
