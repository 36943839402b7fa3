"""Measures the overhead of a round beside training:

`python -m benchmarks.round_overhead --sites 3 --parameters 300000 --rounds 200`.

A coordinator, site agents and trainers as processes of their own, mutual TLS on loopback. The
trainers return their input plus one, so after n rounds every shared parameter has to be exactly n. A
round lasts from one closing in the coordinator's log to the next, so the first is not counted.

The floor is measured in the same run, half before and half after: a bare exchange of the same bytes over gRPC with
mutual TLS, one addition for each contribution and one synced journal line. `ratio` is our median over the floor's. The
floor has one process for each site.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import load_file

from benchmarks.rehearsal.federation import (
    Setting,
    Unfinished,
    agent_command,
    coordinator_command,
    prepare,
    running,
    trainer_command,
    wait_for,
)
from benchmarks.rehearsal.observation import bytes_exchanged, children_of, memory_mib, user_and_kernel_seconds
from benchmarks.rehearsal.wire_floor import floor_seconds

PAUSE_SECONDS = 0.1
PAUSE_AT_END_SECONDS = 0.005
Processes = dict[str, "subprocess.Popen[bytes]"]
Computed = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Figures:
    """The results of one run: seconds, memory in MiB, and bytes on the wire for each site.

    `computed` has processor seconds a round, by kind of process: its own, and the kernel's for it. Unlike the round's
    own length they hardly depend on what else this machine does.
    """

    seconds: list[float]
    computed: Computed
    idle_mib: float
    peaks_mib: dict[str, float]
    bytes_sent: dict[int, int]
    is_exact: bool


@click.command()
@click.option("--sites", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--parameters", type=click.IntRange(1, 1 << 30), default=300_000, show_default=True)
@click.option("--rounds", type=click.IntRange(2, 100_000), default=200, show_default=True)
@click.option("--masked/--unmasked", default=False, show_default=True, help="Secure aggregation.")
@click.option("--bits", type=click.Choice(["16", "32"]), default="32", show_default=True, help="Of an update.")
@click.option("--early", is_flag=True, help="Aggregate after every batch.")
@click.option("--limit-seconds", type=float, default=600.0, show_default=True, help="When to give up.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="An empty folder for logs and records.")
def main(
    sites: int, parameters: int, rounds: int, masked: bool, bits: str, early: bool, limit_seconds: float,
    keep: Path | None,
) -> None:  # fmt: skip
    """Measure the seconds, bytes and memory of rounds without training."""
    with tempfile.TemporaryDirectory(prefix="rounds-") as temporary:
        folder = keep.resolve() if keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            folder=folder, sites=sites, parameters=parameters, rounds=rounds, is_masked=masked, is_early=early,
            bits=int(bits),
        )  # fmt: skip
        half, size = max(3, rounds // 8), int(bits) // 8 * parameters
        try:
            floor = floor_seconds(sites, size, half)
            prepare(setting)
            figures = _measure(setting, time.monotonic() + limit_seconds)
            floor += floor_seconds(sites, size, half)
        except Unfinished as reason:
            for log in sorted(folder.glob("*.log")):
                click.echo(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-10:]), err=True)
            sys.exit(f"round_overhead: the federation did not finish: {reason}")
    _report(setting, figures, float(np.median(floor)))
    sys.exit(0 if figures.is_exact else 1)


def _measure(setting: Setting, deadline: float) -> Figures:
    folder, log = setting.folder, setting.folder / "coordinator.log"
    idle_mib = _idle(setting, deadline)
    with ExitStack() as stack:
        programs: Processes = {}
        trainers = {site: f"{site}-trainer" for site in setting.site_names}
        for site, name in trainers.items():
            programs[name] = stack.enter_context(running(trainer_command(setting, site), folder / f"{name}.log"))
            _expect(programs[name], b"listening")
        programs["coordinator"] = stack.enter_context(running(coordinator_command(setting, "run"), log))
        wait_for("coordinator_listening", log, programs["coordinator"], deadline)
        for site in setting.site_names:
            programs[site] = stack.enter_context(running(agent_command(setting, site), folder / f"{site}.log"))
        peaks_mib = dict.fromkeys(programs, 0.0)
        wait_for('"round_closed"', log, programs["coordinator"], deadline)
        computed_before = _computed(programs)
        while log.read_text().count('"round_closed"') < setting.rounds:
            _observe(programs, peaks_mib, deadline)
            if any(program.poll() is not None for program in programs.values()):
                raise Unfinished("a process ended early")
            time.sleep(PAUSE_SECONDS)
        for name in trainers.values():
            _expect(programs[name], b"concluding")
        bytes_sent = {place: sent for place, (sent, _) in bytes_exchanged(setting.port).items()}
        computed = _difference(_computed(programs), computed_before, setting.rounds)
        for name in trainers.values():
            _release(programs[name])
        while any(program.poll() is None for program in programs.values()):
            _observe(programs, peaks_mib, deadline)
            time.sleep(PAUSE_AT_END_SECONDS)
        failed = [name for name, program in programs.items() if program.returncode != 0]
        if failed:
            raise Unfinished(f"these ended with a failure: {', '.join(failed)}")
    return Figures(_seconds(log), computed, idle_mib, peaks_mib, bytes_sent, _is_exact(setting))


def _idle(setting: Setting, deadline: float) -> float:
    """Return the coordinator's memory while it waits for the sites of a plan with a single parameter."""
    log = setting.folder / "idle.log"
    with running(coordinator_command(setting, "idle"), log) as coordinator:
        wait_for("coordinator_listening", log, coordinator, deadline)
        time.sleep(PAUSE_SECONDS)
        return memory_mib(coordinator.pid, "VmRSS")


def _observe(programs: Processes, peaks_mib: dict[str, float], deadline: float) -> None:
    for name, program in programs.items():
        peaks_mib[name] = max(peaks_mib[name], memory_mib(program.pid, "VmHWM"))
        for child in children_of(program.pid):  # a site's gate has started its agent
            held = peaks_mib.get(f"{name}-agent", 0.0)
            peaks_mib[f"{name}-agent"] = max(held, memory_mib(child, "VmHWM"))
    if time.monotonic() > deadline:
        raise Unfinished("the time was over")


def _computed(programs: Processes) -> Computed:
    """Return the processor seconds used so far, by kind of process."""
    found: Computed = {}
    for name, program in programs.items():
        kind = "coordinator" if name == "coordinator" else "trainer" if name.endswith("-trainer") else "gate"
        processes = [(kind, program.pid), *(("agent", child) for child in children_of(program.pid))]
        for of_kind, process in processes:
            (user, kernel), (own, kernels) = found.get(of_kind, (0.0, 0.0)), user_and_kernel_seconds(process)
            found[of_kind] = user + own, kernel + kernels
    return found


def _difference(after: Computed, before: Computed, rounds: int) -> Computed:
    """Return the processor seconds for each round, by kind of process."""
    return {
        kind: ((user - before[kind][0]) / rounds, (kernel - before[kind][1]) / rounds)
        for kind, (user, kernel) in after.items()
    }


def _expect(program: subprocess.Popen[bytes], line: bytes) -> None:
    assert program.stdout is not None
    if program.stdout.readline().strip() != line:
        raise Unfinished(f"a trainer never said that it is {line.decode()}")


def _release(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    program.stdin.write(b"go on\n")
    program.stdin.flush()


def _seconds(log: Path) -> list[float]:
    """Return the seconds between the ends of consecutive rounds."""
    lines = (line for line in log.read_text().splitlines() if '"round_closed"' in line)  # libraries write others
    closed = [datetime.fromisoformat(json.loads(line)["timestamp"]) for line in lines]
    return [(later - earlier).total_seconds() for earlier, later in pairwise(closed)]


def _is_exact(setting: Setting) -> bool:
    """Return whether every shared parameter equals the number of rounds, because each round adds one."""
    (file,) = (setting.folder / "run-state" / "runs").glob("*/parameters.safetensors")
    tensors = load_file(file).values()
    numbers = sum(tensor.size for tensor in tensors)
    return numbers == setting.parameters and all(bool((tensor == setting.rounds).all()) for tensor in tensors)


def _report(setting: Setting, figures: Figures, floor: float) -> None:
    for name, peak in figures.peaks_mib.items():
        click.echo(f"{name:24} peak {peak:8.1f} MiB")
    for kind, (user, kernel) in figures.computed.items():
        click.echo(
            f"{kind:24} computes {1000 * user:8.2f} ms a round itself, the kernel {1000 * kernel:8.2f} ms for it"
        )
    model_mib = 4 * setting.parameters / 2**20
    coordinator = figures.peaks_mib["coordinator"]
    each = max(figures.bytes_sent.values()) / setting.rounds
    facts = {
        "rounds": setting.rounds,
        "parameters": setting.parameters,
        "sites": setting.sites,
        "masked": str(setting.is_masked).lower(),
        "bits": setting.bits,
        "median_s": f"{np.median(figures.seconds):.4f}",
        "p95_s": f"{np.percentile(figures.seconds, 95):.4f}",
        "coordinator_peak_mib": f"{coordinator:.1f}",
        "computed_s": f"{sum(map(sum, figures.computed.values())):.4f}",
        "coordinator_idle_mib": f"{figures.idle_mib:.1f}",
        "model_mib": f"{model_mib:.1f}",
        "models_above_idle": f"{(coordinator - figures.idle_mib) / model_mib:.2f}",
        "agent_peak_mib": f"{max(figures.peaks_mib[site] for site in setting.site_names):.1f}",
        "bytes_per_round_and_site": f"{each:.0f}",
        "bytes_per_parameter": f"{each / setting.parameters:.4f}",
        "early": str(setting.is_early).lower(),
        "result_is_exact": str(figures.is_exact).lower(),
        "floor_s": f"{floor:.4f}",
        "ratio": f"{np.median(figures.seconds) / floor:.2f}",
    }
    click.echo(" ".join(f"{key}={value}" for key, value in facts.items()))


if __name__ == "__main__":
    main()
