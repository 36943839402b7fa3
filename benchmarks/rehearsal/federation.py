"""Runs a federation on this machine for measurements, with the real commands and processes, and TLS on loopback.

Authority, invitations, identities, approvals and enrolment are made by the programs that people use.
Only the trainers are replaced, by one that returns its input plus one. Every process that is started
here is ended here, by its own id.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from deploy.quickstart.ports import free_port

PROGRAMS = Path(sys.executable).parent
LARGEST_TENSOR = 1 << 20
END_SECONDS = 15.0


class Unfinished(Exception):  # says what happened; the benchmark has no result
    """Raised if the federation did not complete."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of a measurement. `is_early`: the plan aggregates after every batch."""

    folder: Path
    sites: int
    parameters: int
    rounds: int
    is_masked: bool
    is_early: bool
    bits: int = 32
    study: str = "round-overhead"
    address: str = field(default_factory=lambda: f"localhost:{free_port()}")
    enrolment: str = field(default_factory=lambda: f"localhost:{free_port()}")

    @property
    def site_names(self) -> list[str]:
        """Return the names of the sites."""
        return [f"site-{number:02d}" for number in range(1, self.sites + 1)]

    @property
    def port(self) -> int:
        """Return the coordinator's port."""
        return int(self.address.rpartition(":")[2])


def prepare(setting: Setting) -> None:
    """Create authority, invitations, keys, plans, approvals and configurations."""
    folder, authority = setting.folder, setting.folder / "authority"
    _command(
        "pki", "init", "--federation", "benchmark", "--directory", authority,
        "--address", setting.address, "--enrolment-address", setting.enrolment,
    )  # fmt: skip
    identities = {}
    for name in setting.site_names:
        config = folder / name / "hospital.yaml"
        config.parent.mkdir()
        config.write_text(yaml.safe_dump(hospital_document(setting, name), sort_keys=False))
        identities[name] = _command("site-agent", "identity", "--config", config).strip()
        invitation = folder / name / "invitation.json"
        _command("pki", "invite", name, "--directory", authority, "--pre-approved", "--output", invitation)
    for name, parameters in (("idle", 1), ("run", setting.parameters)):
        plan = folder / f"{name}-plan.yaml"
        plan.write_text(yaml.safe_dump(plan_document(setting, parameters, identities), sort_keys=False))
        configuration = coordinator_document(setting) | {"state": f"{name}-state", "plans": [plan.name]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    for name in setting.site_names:
        config = folder / name / "hospital.yaml"
        plan = folder / "run-plan.yaml"
        _command("site-agent", "approve", "--config", config, "--plan", plan, "--by", "the benchmark", "--yes")


@contextmanager
def running(words: list[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with pipes, and its errors in a log. The process ends when the block ends."""
    with log.open("wb") as errors:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def coordinator_command(setting: Setting, name: str) -> list[str | Path]:
    """Return the command of the coordinator with the configuration `idle` or `run`."""
    return [PROGRAMS / "coordinator", "start", "--config", setting.folder / f"{name}.yaml"]


def agent_command(setting: Setting, site: str) -> list[str | Path]:
    """Return the command of a site's agent."""
    return [PROGRAMS / "site-agent", "join", "--config", setting.folder / site / "hospital.yaml"]


def trainer_command(setting: Setting, site: str) -> list[str | Path]:
    """Return the command of a site's trainer."""
    program = Path(__file__).with_name("plus_one_trainer.py")
    return [sys.executable, program, trainer_socket_path(setting, site), str(setting.parameters), str(setting.rounds)]


def wait_for(text: str, log: Path, process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait until a log has this text.

    Raises:
        Unfinished: the process ended or the deadline, in seconds of the monotonic clock, passed.
    """
    while text not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unfinished(f"{log.name} never said {text}")
        time.sleep(0.02)


def _command(*words: object) -> str:
    program, *arguments = map(str, words)
    done = subprocess.run([PROGRAMS / program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unfinished(done.stderr)
    return done.stdout


def trainer_socket_path(setting: Setting, site: str) -> Path:
    """Return the path of the socket on which a site's trainer listens."""
    return setting.folder / site / "trainer socket"


def hospital_document(setting: Setting, name: str) -> dict[str, object]:
    """Return the content of a site's hospital.yaml."""
    return {
        "site": name,
        "invitation": "invitation.json",
        "state": "state",
        "trainer_socket": "trainer socket",
        "policy": {
            "methods": ["fedavg"],
            "secure_aggregation": "required" if setting.is_masked else "not-required",
            "smallest_sites": setting.sites,
            "largest_rounds": setting.rounds,
            "largest_megabytes": 1e9,
            "largest_clipping_range": 8.0,
        },
        "data": {"table": "none.csv", "contract": "none.yaml", "split": {"seed": 0}},  # this trainer reads neither
    }


def coordinator_document(setting: Setting) -> dict[str, object]:
    """Return the entries of coordinator.yaml except for state and plans."""
    return {"listen": setting.address, "enrolment_listen": setting.enrolment, "authority": "authority"}


def plan_document(setting: Setting, parameters: int, identities: dict[str, str]) -> dict[str, object]:
    """Return a plan whose parameters are zeros, for sites with these identities."""
    tensors = [
        {"name": f"block{start // LARGEST_TENSOR}", "shape": [min(LARGEST_TENSOR, parameters - start)], "bound": 0.0}
        for start in range(0, parameters, LARGEST_TENSOR)
    ]
    return {
        "kind": "network",
        "study": setting.study,
        "version": 1,
        "method": {"name": "fedavg"},
        "architecture": {"name": "named-tensors", "tensors": tensors},
        "schedule": {
            "aggregate": "every-batch" if setting.is_early else "every-round",
            "epochs": setting.rounds,
            "batches_per_epoch": 1,
        },
        "optimiser": {"name": "sgd", "learning_rate": 1.0},
        "weighting": {"name": "equal"},
        "start": {"name": "equal", "seed": 0},
        "sites": [{"name": name, "identity": identity} for name, identity in sorted(identities.items())],
        "masking": {"required": setting.is_masked, "bits": setting.bits},
    }
