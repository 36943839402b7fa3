"""The rehearsal: an authority, a coordinator and three hospitals as real processes over mutual TLS on loopback."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from quickstart.federation import Rehearsal
from quickstart.hospitals import dealt_hospitals
from tests.chaos.network.proxy import Proxy, proxied
from tests.logged import facts_of
from tests.rehearsal.programs import prepared_here, running, says, wait_until

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 2


@dataclass(frozen=True)
class Federation:
    """A prepared federation in its folder."""

    rehearsal: Rehearsal

    @property
    def names(self) -> list[str]:
        """The hospitals."""
        return [hospital.name for hospital in self.rehearsal.hospitals]

    @property
    def port(self) -> int:
        """Where the coordinator listens."""
        return int(self.rehearsal.address.rpartition(":")[2])

    def config(self, name: str) -> Path:
        """A hospital's configuration."""
        return self.rehearsal.folder / name / "hospital.yaml"

    def log(self, name: str) -> Path:
        """Return the output of a program."""
        return self.rehearsal.folder / f"{name}.log"

    def change(self, name: str, **keys: Any) -> None:
        """Change keys of a hospital's configuration."""
        config = self.config(name)
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | keys))

    @contextmanager
    def coordinator(self) -> Iterator[subprocess.Popen[bytes]]:
        """The coordinator, listening."""
        config = self.rehearsal.folder / "coordinator.yaml"
        with running(self.log("coordinator"), "coordinator", "start", "--config", config) as process:
            wait_until(says(self.log("coordinator"), "coordinator_listening"))
            yield process

    def agent(self, name: str) -> Any:
        """A hospital's agent."""
        return running(self.log(name), "site-agent", "join", "--config", self.config(name))

    def audit(self, name: str) -> list[dict[str, Any]]:
        """The facts in a hospital's audit log."""
        path = self.rehearsal.folder / name / "state" / "gate" / "gate.sqlite"
        return facts_of(path)

    def record(self) -> dict[str, Any]:
        """The coordinator's record of the one run."""
        (path,) = (self.rehearsal.folder / "coordinator" / "runs").glob("*/record.json")
        return dict(json.loads(path.read_text()))


def _federation_in(folder: Path, *, seed: int = 0, is_masked: bool = False, rounds: int = ROUNDS) -> Federation:
    folder.mkdir(parents=True)
    tables = folder / "tables"
    tables.mkdir()
    rehearsal = Rehearsal(
        folder=folder,
        hospitals=dealt_hospitals(3, tables, seed),
        methods=("global-layers",),
        rounds=rounds,
        seed=seed,
        is_masked=is_masked,
    )
    prepared_here(rehearsal)
    for hospital in rehearsal.hospitals:
        federation = Federation(rehearsal)
        training = {"threads": 1, "siloed_baseline": False, "simple_models": False, "draws": "published"}
        federation.change(hospital.name, training=training)
    return federation


def _run_all(federation: Federation, order: Sequence[str], *, pause: Callable[[str], None] = lambda name: None) -> str:
    with ExitStack() as stack:
        processes = [stack.enter_context(federation.coordinator())]
        for name in order:
            pause(name)
            processes.append(stack.enter_context(federation.agent(name)))
        statuses = [process.wait(150) for process in processes]
    assert statuses == [0] * len(statuses), federation.log("coordinator").read_text()
    return str(federation.record()["shared_parameters_sha256"])


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the quickstart writes for two rounds of seed 0, masked."""
    folder = tmp_path_factory.mktemp("quickstart")
    words = ["--data", "breast-cancer", "--output", folder / "run", "--rounds", str(ROUNDS)]
    words += ["--json", folder / "figures.json"]
    done = subprocess.run(
        [sys.executable, "deploy/quickstart", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "figures.json").read_text()))


@pytest.fixture(scope="module")
def expected(figures: dict[str, Any]) -> str:
    """What an undisturbed run of seed 0 ends with."""
    return str(figures["shared_parameters_sha256"])


@pytest.mark.slow
def test_the_quickstart_ends_with_the_figures_of_every_site_and_method(figures: dict[str, Any]) -> None:
    """One command ends with 0 and writes what a script needs: seed, masking, rounds, digest, and AUROC by model."""
    assert (figures["seed"], figures["masked"], figures["rounds"]) == (0, True, ROUNDS)
    assert re.fullmatch("[0-9a-f]{64}", figures["shared_parameters_sha256"])
    assert len(figures["sites"]) == 3
    for found in figures["sites"].values():
        gain = found["global-layers"]["auroc"] - found["best-local"]["auroc"]
        assert found["difference_to_best_local"]["difference"] == pytest.approx(gain)
        assert found["siloed"]["auroc"] > 0


@pytest.mark.slow
def test_masking_and_the_order_of_starting_do_not_change_a_bit(tmp_path: Path, expected: str) -> None:
    """A run in the clear whose sites start in another order, each late, ends with the masked quickstart's bits."""
    federation = _federation_in(tmp_path / "f")
    connected = {"hospital-1": "hospital-3", "hospital-2": "hospital-1"}

    def pause(name: str) -> None:
        if name in connected:  # the one before has had its certificate and its plan
            before = f'"site": "{connected[name]}"'
            wait_until(says(federation.log("coordinator"), before))

    found = _run_all(federation, ["hospital-3", "hospital-1", "hospital-2"], pause=pause)

    assert found == expected
    released = [facts for facts in federation.audit("hospital-1") if facts["event"] == "contribution_released"]
    assert [(facts["round"], facts["masked"]) for facts in released] == [(number, False) for number in range(ROUNDS)]


@pytest.mark.slow
def test_a_line_that_breaks_costs_no_bit(tmp_path: Path, expected: str) -> None:
    """Cut in mid-upload, twice, a site connects again by itself. The run ends with the same bits."""
    federation = _federation_in(tmp_path / "f", is_masked=True)
    with proxied(Proxy(federation.port, cut_after=700_000, cuts=2)) as proxy:  # within the two uploads of 1.2 MB each
        federation.change("hospital-2", coordinator=f"localhost:{proxy.port}")

        found = _run_all(federation, federation.names)

    assert (proxy.cuts, len(proxy.uploaded) >= 3) == (0, True)
    assert found == expected
    assert "coordinator_unavailable" in federation.log("hospital-2").read_text()


def test_a_bad_table_stops_its_site_before_anything_is_sent(tmp_path: Path, prepared: Path) -> None:
    """The agent ends with 78 and three sentences that quote no value, and it has not even enrolled."""
    shutil.copytree(prepared, tmp_path / "f")
    home = tmp_path / "f" / "hospital-1"
    table = tmp_path / "f" / "tables" / "hospital-1.csv"
    config = yaml.safe_load((home / "hospital.yaml").read_text())
    config["data"]["table"] = str(table)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config["coordinator"] = f"localhost:{listener.getsockname()[1]}"
        (home / "hospital.yaml").write_text(yaml.safe_dump(config))
        header, first, *others = table.read_text().splitlines()
        table.write_text("\n".join([header, re.sub(",[^,]*", ",high", first, count=1), *others]) + "\n")
        log = tmp_path / "agent.log"

        with running(log, "site-agent", "join", "--config", home / "hospital.yaml") as agent:
            status = agent.wait(60)

    text = log.read_text()
    assert status == 78, text
    assert "Traceback" not in text
    assert "site-trainer: " in text
    said = text[text.index("site-trainer: ") :].splitlines()
    assert said[1].startswith("  ")
    assert said[2].startswith("  ")
    audit = home / "state" / "gate" / "gate.sqlite"
    events = [facts["event"] for facts in facts_of(audit)]
    assert set(events) <= {"plan_approved", "participation_ended"}
    assert not (home / "state" / "agent" / "tls.crt").exists()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared federation that nobody has started."""
    folder = tmp_path_factory.mktemp("prepared") / "f"
    _federation_in(folder)
    return folder
