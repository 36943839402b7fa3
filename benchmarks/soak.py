"""Measures what grows in a long run of short rounds: `python -m benchmarks.soak --rounds 10000 --sites 20`.

The coordinator is the deployed program. One site is the deployed agent with a trainer process; the others are
deployed agents, several in one process, with trainers in memory (rehearsal/light_sites.py). All of them talk over
mutual TLS on loopback and write their audit logs and ledgers. Parameters start at 0 and grow by one a round, so what
the run ends with is known.

Every process's resident memory and file descriptors are sampled. Growth is that of a straight line through the
samples of the second half, from its first moment to its last.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import load_file

from benchmarks.rehearsal.enrolled import enrol_all, write_run
from benchmarks.rehearsal.federation import (
    Setting,
    Unfinished,
    agent_command,
    coordinator_command,
    running,
    trainer_command,
    wait_for,
)
from benchmarks.rehearsal.observation import memory_mib, processor_seconds

SAMPLES = 400
Processes = dict[str, "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Sample:
    """One measurement of a process: seconds and rounds since the start, resident memory in MiB, open descriptors."""

    seconds: float
    rounds: int
    process: str
    resident_mib: float
    descriptors: int


@dataclass
class RoundCount:
    """The number of rounds that a log reports as closed. Later calls read only new lines."""

    log: Path
    rounds: int = 0
    _at: int = field(default=0, repr=False)

    def now(self) -> int:
        """Return the number of rounds that are closed now."""
        with self.log.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._at += whole
        self.rounds += text[:whole].count(b'"round_closed"')
        return self.rounds


def light_command(setting: Setting, sites: Sequence[str]) -> list[str | Path]:
    """Return the command that runs several light sites in one process."""
    return [sys.executable, "-m", "benchmarks.rehearsal.light_sites", "--folder", setting.folder, *sites]


@click.command()
@click.option("--rounds", type=click.IntRange(10, 1_000_000), default=10_000, show_default=True)
@click.option("--sites", type=click.IntRange(3, 100), default=20, show_default=True)
@click.option("--parameters", type=click.IntRange(1, 10_000_000), default=1000, show_default=True)
@click.option("--per-process", type=click.IntRange(1, 100), default=10, show_default=True, help="Light sites in one.")
@click.option("--masked/--unmasked", default=True, show_default=True)
@click.option(
    "--limit-seconds", type=float, default=3600.0, show_default=True, help="Stop there and tell how far it came."
)
@click.option("--samples", type=click.Path(path_type=Path, dir_okay=False), help="A file for every sample, as CSV.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="An empty folder for logs and records."
)
def main(
    rounds: int,
    sites: int,
    parameters: int,
    per_process: int,
    masked: bool,
    limit_seconds: float,
    samples: Path | None,
    folder: Path | None,
) -> None:
    """Measure what grows in a long run."""
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            folder=place, sites=sites, parameters=parameters, rounds=rounds, is_masked=masked, is_early=False,
            study="soak",
        )  # fmt: skip
        write_run(setting, enrol_all(setting))
        found, seconds, computed = _run(setting, per_process, limit_seconds, samples)
        made = found[-1].rounds
        is_exact = made == rounds and _is_exact(setting)
    _report(setting, found, seconds, computed, is_exact=is_exact)
    sys.exit(0 if is_exact else 1)


def _run(
    setting: Setting, per_process: int, limit_seconds: float, samples: Path | None
) -> tuple[list[Sample], float, float]:
    """Take samples until the run or the time is over. Return them with the seconds and processor seconds."""
    with ExitStack() as stack:
        processes = _started(stack, setting, per_process)
        count = RoundCount(setting.folder / "coordinator.log")
        began, found = time.monotonic(), list[Sample]()
        file = stack.enter_context(samples.open("w", newline="")) if samples else None
        writer = csv.writer(file, lineterminator="\n") if file else None
        if writer:
            writer.writerow(Sample.__dataclass_fields__)
        following = 0
        while (made := count.now()) < setting.rounds and time.monotonic() - began < limit_seconds:
            if made >= following:
                taken = _sample(processes, time.monotonic() - began, made)
                found += taken
                if writer and file:
                    writer.writerows(tuple(vars(sample).values()) for sample in taken)
                    file.flush()
                following = made + max(1, setting.rounds // SAMPLES)
            failed = [name for name, process in processes.items() if process.poll() is not None]
            if failed:
                raise Unfinished(f"these ended early: {', '.join(failed)}")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        found += _sample(processes, seconds, made)
        computed = sum(processor_seconds(process.pid) for process in processes.values())
        if made == setting.rounds:
            _let_go(processes)
        return found, seconds, computed


def _started(stack: ExitStack, setting: Setting, per_process: int) -> Processes:
    first, *others = setting.site_names
    commands = {"trainer": trainer_command(setting, first), "coordinator": coordinator_command(setting, "run")}
    processes: Processes = {}
    for name, command in commands.items():
        log = setting.folder / f"{name}.log"
        processes[name] = stack.enter_context(running(command, log))
    deadline = time.monotonic() + 60.0
    wait_for("coordinator_listening", setting.folder / "coordinator.log", processes["coordinator"], deadline)
    commands = {"agent": agent_command(setting, first)}
    for start in range(0, len(others), per_process):
        sites = others[start : start + per_process]
        commands[f"{len(sites)}-agents-{1 + start // per_process}"] = light_command(setting, sites)
    for name, command in commands.items():
        processes[name] = stack.enter_context(running(command, setting.folder / f"{name}.log"))
    return processes


def _sample(processes: Processes, seconds: float, rounds: int) -> list[Sample]:
    return [
        Sample(round(seconds, 1), rounds, name, memory_mib(process.pid, "VmRSS"), _descriptors(process.pid))
        for name, process in processes.items()
    ]


def _descriptors(process: int) -> int:
    try:
        return len(list(Path(f"/proc/{process}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _let_go(processes: Processes) -> None:
    """Wait until the run is concluded and every program has ended by itself."""
    trainer = processes["trainer"]
    assert trainer.stdin is not None
    trainer.stdin.write(b"go on\n")
    trainer.stdin.flush()
    for name, process in processes.items():
        if process.wait(120) != 0:
            raise Unfinished(f"{name} ended with {process.returncode}")


def growth(samples: Sequence[Sample]) -> float:
    """Return the relative growth of one process's memory over the second half of its samples."""
    half = [sample for sample in samples if sample.rounds >= samples[-1].rounds / 2]
    rounds = np.array([sample.rounds for sample in half], float)
    slope, start = np.polyfit(rounds, [sample.resident_mib for sample in half], 1)
    return float(slope * (rounds[-1] - rounds[0]) / (start + slope * rounds[0]))


def _is_exact(setting: Setting) -> bool:
    (file,) = (setting.folder / "run-state" / "runs").glob("*/parameters.safetensors")
    tensors = list(load_file(file).values())
    return all(bool((tensor == setting.rounds).all()) for tensor in tensors)


def _report(setting: Setting, found: Sequence[Sample], seconds: float, computed: float, *, is_exact: bool) -> None:
    made = found[-1].rounds
    growths, spreads = [], []
    for name in dict.fromkeys(sample.process for sample in found):
        own = [sample for sample in found if sample.process == name and sample.rounds]
        half = [sample for sample in own if sample.rounds >= made / 2]
        descriptors = [sample.descriptors for sample in half]
        growths.append(growth(own))
        spreads.append(max(descriptors) - min(descriptors))
        click.echo(
            f"{name:14} {own[0].resident_mib:7.1f} MiB at first, {half[0].resident_mib:7.1f} at half, "
            f"{own[-1].resident_mib:7.1f} at the end, growth {growths[-1]:+.2%}; "
            f"{min(descriptors)} to {max(descriptors)} descriptors"
        )
    facts = {
        "rounds": made,
        "sites": setting.sites,
        "parameters": setting.parameters,
        "masked": str(setting.is_masked).lower(),
        "seconds": f"{seconds:.0f}",
        "mean_s": f"{seconds / max(1, made):.4f}",
        "computed_s": f"{computed / max(1, made):.4f}",
        "largest_growth": f"{max(growths):.4f}",
        "largest_spread_of_descriptors": max(spreads),
        "result_is_exact": str(is_exact).lower(),
    }
    click.echo(" ".join(f"{key}={value}" for key, value in facts.items()))


if __name__ == "__main__":
    main()
