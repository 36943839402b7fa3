"""Both sides' audit logs over a whole run of the real programs, verified by a person with public keys only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.rehearsal.programs import finished
from tests.rehearsal.test_real_processes import Federation, federation_in, run_all


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Three hospitals and a coordinator after one masked run."""
    federation = federation_in(tmp_path_factory.mktemp("witnessed") / "federation", is_masked=True)
    run_all(federation, federation.names)
    return federation


def coordinator_yaml(federation: Federation) -> Path:
    """The coordinator's configuration."""
    return federation.rehearsal.folder / "coordinator.yaml"


def handed_out(federation: Federation, folder: Path, name: str) -> list[object]:
    """Give a third party copies of a log and checkpoints, and public keys, but no configuration and no secret."""
    authority = federation.rehearsal.folder / "authority"
    shutil.copy(federation.rehearsal.folder / name / "state" / "gate" / "audit.log", folder / "audit.log")
    made = [
        finished("pki", "keys", "--directory", authority, "--output", folder / "keys.json"),
        finished(
            "coordinator",
            "audit",
            "checkpoints",
            "--config",
            coordinator_yaml(federation),
            "--output",
            folder / "checkpoints.json",
        ),
    ]
    assert [done.returncode for done in made] == [0, 0], made
    given = [
        "--log",
        folder / "audit.log",
        "--site",
        name,
        "--keys",
        folder / "keys.json",
        "--checkpoints",
        folder / "checkpoints.json",
    ]
    return ["site-agent", "audit", "verify", *given]


@pytest.mark.slow
def test_a_third_party_verifies_a_run_and_finds_a_cut_and_a_forged_log(federation: Federation, tmp_path: Path) -> None:
    """Every release of the run stands cosigned; without its tail, or with another number, the log is refused."""
    name = federation.names[0]
    words = handed_out(federation, tmp_path, name)
    content = (tmp_path / "audit.log").read_bytes().splitlines(keepends=True)
    released = [number for number, line in enumerate(content) if b'"contribution_handed_over"' in line]

    whole = finished(*words)
    covered = int(whole.stdout.partition("up to record ")[2].partition(".")[0])
    (tmp_path / "audit.log").write_bytes(b"".join(content[: covered - 1]))
    cut = finished(*words)
    changed = content[released[0]].replace(b'"bytes":', b'"bytes":1')
    (tmp_path / "audit.log").write_bytes(b"".join([*content[: released[0]], changed, *content[released[0] + 1 :]]))
    forged = finished(*words)

    assert (whole.returncode, "Cosigned by coordinator" in whole.stdout) == (0, True)
    assert "Not compared" not in whole.stdout
    assert max(released) < covered
    assert (cut.returncode, "its tail was cut" in cut.stderr) == (1, True)
    assert (forged.returncode, f"line {released[0] + 1}: " in forged.stderr) == (1, True)


@pytest.mark.slow
def test_the_coordinators_log_is_witnessed_by_the_sites(federation: Federation) -> None:
    """It verifies with the keys of its register, each round that was summed is in it, and sites have cosigned."""
    verified = finished("coordinator", "audit", "verify", "--config", coordinator_yaml(federation))
    shown = finished(
        "coordinator", "audit", "show", "--config", coordinator_yaml(federation), "--event", "round_closed"
    )

    assert verified.returncode == 0, verified.stderr
    assert all(f"site/{name}" in verified.stdout for name in federation.names)
    rounds = [line.partition("Round ")[2].split()[0] for line in shown.stdout.splitlines()]
    assert rounds == ["1", "2", "3"]  # two of training, and the one that measures their result
    assert "was summed over" in shown.stdout


@pytest.mark.slow
def test_an_officer_reads_and_exports_the_log(federation: Federation, tmp_path: Path) -> None:
    """The log is shown in words, filtered, and written as a table and as a page that loads nothing."""
    config = federation.config(federation.names[0])
    (run,) = (federation.rehearsal.folder / "coordinator" / "runs").iterdir()
    study = run.name.rpartition("-v")[0]

    shown = finished("site-agent", "audit", "show", "--config", config, "--event", "contribution_released", "--json")
    later = finished("site-agent", "audit", "show", "--config", config, "--since", "2200-01-01")
    for kind in ("csv", "html"):
        words = ["--config", config, "--study", study, "--output", tmp_path / f"log.{kind}"]
        done = finished("site-agent", "audit", "export", *words)
        assert done.returncode == 0, done.stderr

    releases = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {facts["run"] for facts in releases} == {run.name}
    assert later.stdout == ""
    page = (tmp_path / "log.html").read_text()
    assert "masked: yes" in page
    assert "Contributions that left" in page
    assert not any(word in page for word in ("<script", "http://", "https://", "src="))
    assert (tmp_path / "log.csv").read_text().count("contribution_handed_over") >= len(releases)


def test_a_missing_log_and_wrong_words_are_told_in_three_sentences(tmp_path: Path) -> None:
    """Without a log, or without saying which, nothing is proved, and the operator reads what to do."""
    missing = finished("site-agent", "audit", "verify", "--log", tmp_path / "audit.log", "--site", "a")
    unclear = finished("site-agent", "audit", "verify")

    assert (missing.returncode, "There is no audit log at" in missing.stderr) == (78, True)
    assert (unclear.returncode, "The options do not show which log to use" in unclear.stderr) == (2, True)
