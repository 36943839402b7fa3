"""A small federation of real programs in which one site may be elsewhere. Its trainers add one and load no torch. So
the result of a run is known to the last bit: every parameter is the number of its rounds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file

from benchmarks.rehearsal.enrolled import enrol_all, write_run
from benchmarks.rehearsal.federation import Setting, agent_command, coordinator_command, running, trainer_command
from deploy.quickstart.ports import free_port
from tests.logged import facts_of
from tests.rehearsal.programs import says, wait_until

FAR = "site-01"


@dataclass(frozen=True)
class Federation:
    """Three sites; `site-01` is the one whose line is bad."""

    setting: Setting
    processes: dict[str, subprocess.Popen[bytes]]

    def log(self, name: str) -> str:
        """Return the output of a program."""
        return (self.setting.folder / f"{name}.log").read_text(errors="replace")

    def happened(self, name: str, event: str) -> list[dict[str, Any]]:
        """The audit log's records of one kind."""
        return facts_of(self.setting.folder / name / "state" / "gate" / "gate.sqlite", event)

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait until a condition is true. Fails if a program ends before."""

        def look() -> bool:
            ended = [name for name, process in self.processes.items() if process.poll() not in (None, 0)]
            assert not ended, "\n".join(self.log(name)[-2000:] for name in ended)
            return is_so()

        wait_until(look, seconds)

    def finish(self, seconds: float = 280.0) -> None:
        """Every program ends by itself without an error, and all numbers equal those of an undisturbed run."""
        began = time.monotonic()
        names = [name for name in self.processes if not name.endswith("trainer")]
        self.wait_until(lambda: all(self.processes[name].poll() == 0 for name in names), seconds)
        assert self.arrays_are(self.setting.rounds), time.monotonic() - began

    def arrays_are(self, value: float) -> bool:
        """Whether the run's parameters are all this value."""
        (path,) = self.setting.folder.glob("run-state/runs/*/parameters.safetensors")
        arrays = list(load_file(path).values())
        return sum(array.size for array in arrays) == self.setting.parameters and all(
            bool((array == value).all()) for array in arrays
        )


@contextmanager
def federation(
    folder: Path,
    *,
    parameters: int,
    rounds: int,
    far_port: Callable[[int], int] = lambda port: port,
    is_masked: bool = True,
) -> Iterator[Federation]:
    """A federation at work, in an empty folder. The model's parameters are 0 at first, and each round adds one.
    `far_port` gives the port that the far site calls, from the coordinator's."""
    setting = Setting(
        folder=folder, sites=3, parameters=parameters, rounds=rounds, is_masked=is_masked, is_early=False,
        study="chaos", address=f"localhost:{free_port()}", enrolment=f"localhost:{free_port()}",
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_run(setting, enrol_all(setting))
    config = folder / FAR / "hospital.yaml"
    own = yaml.safe_load(config.read_text()) | {"coordinator": f"localhost:{far_port(setting.port)}"}
    config.write_text(yaml.safe_dump(own))
    with ExitStack() as stack:
        made = Federation(setting, {})

        def start(name: str, command: Sequence[str | Path]) -> None:
            made.processes[name] = stack.enter_context(running([*command], folder / f"{name}.log"))

        start("coordinator", coordinator_command(setting, "run"))
        wait_until(says(folder / "coordinator.log", "coordinator_listening"))
        for site in setting.site_names:
            start(f"{site}-trainer", trainer_command(setting, site))
            trainer = made.processes[f"{site}-trainer"]
            assert trainer.stdin is not None
            assert trainer.stdout is not None
            trainer.stdin.write(b"go on\n")  # at the end it asks whether it may; see plus_one_trainer.py
            trainer.stdin.flush()
            trainer.stdout.readline()
            start(site, agent_command(setting, site))
        yield made
