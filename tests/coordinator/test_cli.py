"""The commands `coordinator` and `pki` with broken files and wrong arguments."""

from __future__ import annotations

import copy
import gc
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import structlog
import yaml

from coordinator.commands.coordinator_cli import main
from protos.plan.manifest import manifest_of
from tests.protos.privacy.private_plans import local_plan, private_network_plan
from tests.rehearsal.federation import Office
from tests.rehearsal.programs import called, finished
from tests.rehearsal.study import made_up_identities, made_up_identity, plan_document, plan_with

COORDINATOR: dict[str, Any] = {
    "listen": "localhost:8443",
    "enrolment_listen": "localhost:8444",
    "authority": "authority",
    "state": "state",
    "plans": ["plan.yaml"],
}


class Terminal:
    """The real entry point, as a shell would call it."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def __call__(self, *words: object) -> int:
        """Run a command; its exit status."""
        self._monkeypatch.setattr(sys, "argv", ["coordinator", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.out + self.err
        code = ended.value.code
        return code if isinstance(code, int) else 0


@pytest.fixture
def coordinator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """The command; the log that it sets up writes to this test's terminal and ends with it."""
    yield Terminal(capsys, monkeypatch)
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


def assert_three_sentences(text: str) -> None:
    """Three sentences: the event, its meaning for the data, and the action to take."""
    *_, consequence, remedy = text.rstrip("\n").splitlines()
    assert text.startswith("coordinator: ")
    assert re.fullmatch(r"  [A-Z`].*\.", consequence), text
    assert re.fullmatch(r"  [A-Z`].*\.", remedy), text


def test_check_shows_the_digests_of_every_plan(coordinator: Terminal, folder: Path) -> None:
    """Hospitals' approvals can be compared before anything is started."""
    plan = plan_with(made_up_identities())

    assert coordinator("check", "--config", folder / "coordinator.yaml") == 0
    assert plan.digest.hex() in coordinator.out
    assert manifest_of(plan).digest.hex() in coordinator.out
    assert not (folder / "state").exists()


def test_check_shows_the_price_of_a_private_plan_and_what_privacy_changes(coordinator: Terminal, folder: Path) -> None:
    """Epsilon, delta and the noise of all rounds, and one sentence for each part of the method."""
    plan = private_network_plan(method={"name": "composition", "of": [{"name": "fedprox"}, {"name": "ditto"}]})
    write(folder, plan=json.loads(plan.canonical))

    assert coordinator("check", "--config", folder / "coordinator.yaml") == 0
    words = (
        "epsilon 1, delta 1e-05 for each patient over all 10 rounds",
        "the proximal term is 0",
        "stays at the site",
    )
    assert all(word.lower() in coordinator.out.lower() for word in words)


def test_check_shows_the_price_of_local_noise(coordinator: Terminal, folder: Path) -> None:
    """Every local step has its cost, at every site alone."""
    write(folder, plan=json.loads(local_plan({"epsilon": 4.0}, rounds=5, steps=4).canonical))

    assert coordinator("check", "--config", folder / "coordinator.yaml") == 0
    assert "for each patient over all 20 steps. The noise in each number is 4.84 times as large" in coordinator.out
    assert "Each site adds this whole noise in each of its steps" in coordinator.out


def test_check_names_why_a_plan_cannot_be_private(coordinator: Terminal, folder: Path) -> None:
    """The refusal gives the reason, and nothing is shown as private."""
    document = json.loads(private_network_plan().canonical)
    write(folder, plan=document | {"method": {"name": "moon"}})

    assert coordinator("check", "--config", folder / "coordinator.yaml") == 78
    assert (
        "privacy is impossible in this plan: the contrastive penalty uses the site's own earlier model"
        in coordinator.err
    )


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("listen: localhost:8443", "listn: localhost:8443", "1:1: listn: unknown key; did you mean listen?"),
        ("listen: localhost:8443", "listen: localhost", "1:9: listen: "),
        ("localhost:8443", "localhost:0", "1:9: listen: a port must be between 1 and 65535"),
        ("localhost:8443", "localhost:65536", "1:9: listen: a port must be between 1 and 65535"),
        ("state: state", 'state: "a\\0b"', "4:8: state: "),
        ("state: state", "", "state: this key is missing"),
        ("- plan.yaml", "- 3", "plans.0: "),
        ("- plan.yaml", "- none.yaml", "none.yaml cannot be read"),
        ("plans:\n- plan.yaml", "plans: 3", "plans: "),
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
    assert_three_sentences(coordinator.err)
    assert not (folder / "state").exists()


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(found for key, value in inner for found in places(value, (*path, key)))]


STRANGE = [None, [], {}, "", "x" * 5000, -1, 0, 1 << 70, 1e308, True, "\x00", "../..", "é\u2028", [[[]]], {"a": {}}]


@pytest.mark.parametrize("seed", range(100))
def test_a_mutilated_configuration_or_plan_never_shows_a_traceback(
    coordinator: Terminal, folder: Path, seed: int
) -> None:
    """Keys deleted or replaced at random end with 0 or 78, and with three sentences where it fails."""
    generator = random.Random(seed)
    documents = [copy.deepcopy(COORDINATOR), plan_document(made_up_identities())]
    for _ in range(1 + seed % 2):
        *path, last = generator.choice(places(documents)[3:])
        node: Any = documents
        for step in path:
            node = node[step]
        if generator.random() < 0.4 and path:
            del node[last]
        else:
            node[last] = copy.deepcopy(generator.choice(STRANGE))
    write(folder, *documents)

    status = coordinator("check", "--config", folder / "coordinator.yaml")

    assert status in {0, 78}
    if status:
        assert_three_sentences(coordinator.err)


@pytest.mark.parametrize("words", [["fly"], ["start"], ["check", "--config"], ["status", "--yaml"], ["start", "x"]])
def test_wrong_usage_ends_with_2(coordinator: Terminal, words: list[str]) -> None:
    """A command with wrong arguments reports them."""
    assert coordinator(*words) == 2
    assert coordinator.err != ""


def test_status_without_a_coordinator_says_how_to_start_one(coordinator: Terminal, folder: Path) -> None:
    """Nobody answers: the exit status is 1 and the remedy is a command."""
    assert coordinator("status", "--config", folder / "coordinator.yaml") == 1
    assert "`coordinator start`" in coordinator.err


FACTS = {
    "run": "heart-v1-0123456789ab",
    "method": "player-fl + ditto",
    "rounds_made": 4,
    "rounds": 9,
    "phase": "training",
    "chosen_layers": ["input.layer1", "body.layer2"],
    "best_round": 3,
    "best_validation_loss": 0.51234567,
}


@pytest.mark.parametrize(
    ("changed", "said", "not_said"),
    [
        ({}, ["round 4 of 9", "player-fl + ditto", "input.layer1, body.layer2", "0.512346", "after round 3"], []),
        (
            {"chosen_layers": None, "best_round": None, "best_validation_loss": None},
            ["round 4 of 9"],
            ["loss", "layers"],
        ),
    ],
)
def test_status_tells_what_the_sums_have_decided(
    coordinator: Terminal,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    said: list[str],
    not_said: list[str],
) -> None:
    """Chosen layers and the best round stand beside the round that is under way, where there are any."""
    answer = {"run": FACTS | changed, "sites": {"a": {"connected": True, "joined": False}}}

    async def read_status(_: object) -> bytes:
        return json.dumps(answer).encode()

    monkeypatch.setattr("coordinator.commands.coordinator_cli.ask", read_status)

    assert coordinator("status", "--config", folder / "coordinator.yaml") == 0
    text = " ".join(coordinator.out.split())
    assert all(words in text for words in said)
    assert not any(words in text for words in not_said)


def test_a_coordinator_runs_with_pythons_collector(
    coordinator: Terminal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches for unused objects stop only while modules are loaded."""
    found = []

    async def run(*_: object) -> bool:
        found.append(gc.isenabled())
        return True

    monkeypatch.setattr("coordinator.commands.serve.serve", run)
    status = coordinator("start", "--config", folder / "coordinator.yaml")
    gc.unfreeze()  # the other tests' objects

    assert (status, found) == (0, [True])


@pytest.mark.parametrize("content", [None, "", "{", '{"format": 9}'])
def test_a_start_without_a_whole_authority_is_a_wrong_configuration(
    coordinator: Terminal, folder: Path, content: str | None
) -> None:
    """If `pki init` has not been run, or its files are damaged, the coordinator does not start."""
    if content is not None:
        (folder / "authority").mkdir()
        (folder / "authority" / "federation.json").write_text(content)

    assert coordinator("start", "--config", folder / "coordinator.yaml") == 78
    assert_three_sentences(coordinator.err)


NO_PORT = ["--address", "no port", "--enrolment-address", "a:1", "--directory", "d"]


# Each program's exit status is seen from outside once; the other calls run in this process.
@pytest.mark.parametrize(
    ("run", "words", "status"),
    [
        (called, ["coordinator", "fly"], 2),
        (finished, ["coordinator", "check", "--config", "none.yaml"], 78),
        (finished, ["site-agent", "check"], 2),
        (called, ["site-agent", "join", "--config", "none.yaml"], 78),
        (called, ["pki", "fly"], 2),
        (called, ["pki", "invite", "UPPER CASE", "--directory", "none", "--output", "x"], 78),
        (called, ["pki", "list", "--directory", "none"], 78),
        (finished, ["pki", "inspect", "none"], 78),
        (called, ["pki", "init", "--federation", "x", *NO_PORT], 78),
    ],
)
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
    assert (
        f"lists the site b with the fingerprint {made_up['b']}. The register of sites has the fingerprint {keys['b']}."
        in coordinator.err
    )
    assert_three_sentences(coordinator.err)
