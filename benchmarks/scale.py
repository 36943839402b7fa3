"""Measures time and memory for different numbers of sites and parameters: `python -m benchmarks.scale`.

The coordinator is the deployed program. In the clear, sites hold no model: several share a process and make their
chunks as they send them. Masked, they are deployed agents with trainers in memory. All have certificates of their own
and talk over mutual TLS on loopback. Both kinds are in rehearsal/light_sites.py.

A round lasts from one `round_closed` in the coordinator's log to the next, the first one not counted. Points that are
in the CSV already are not measured again. It ends with the table, the plot and one line of `key=value` pairs.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from pathlib import Path

import click
from safetensors.numpy import load_file

from benchmarks.rehearsal.enrolled import enrol_all, write_run
from benchmarks.rehearsal.federation import Setting, Unfinished, coordinator_command, running, wait_for
from benchmarks.rehearsal.observation import memory_mib, processor_seconds
from benchmarks.soak import Processes, RoundCount, light_command
from deploy.quickstart.ports import free_port

SITES = (3, 10, 30, 100)
PARAMETERS = (100_000, 1_000_000, 10_000_000, 100_000_000)
MOST_NUMBERS = 1_000_000_000  # sites times parameters
MOST_MASKED = 1_000_000
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Point:
    """One measurement of a federation. Memory is in MiB.

    Attributes:
        median_s: seconds of a round.
        computed_s: processor seconds of a round, of all processes together.
        idle_mib: the coordinator's memory before any site calls.
        peak_mib: its largest, the record at the end included.
        model_mib: one model as float32.
    """

    sites: int
    parameters: int
    masked: bool
    rounds: int
    median_s: float
    computed_s: float
    idle_mib: float
    peak_mib: float
    model_mib: float
    exact: bool


def wanted() -> list[tuple[int, int, bool]]:
    """Return every measurement to make, the small federations first."""
    clear = [(sites, size, False) for size in PARAMETERS for sites in SITES if sites * size <= MOST_NUMBERS]
    masked = [(sites, size, True) for size in PARAMETERS for sites in SITES if size <= MOST_MASKED]
    return sorted([*clear, *masked], key=lambda point: (point[0] * point[1] * (20 if point[2] else 1), point))


def measure(office: Setting, identities: dict[str, str], point: tuple[int, int, bool], rounds: int) -> Point:
    """Run one federation and measure it."""
    sites, parameters, is_masked = point
    setting = Setting(
        folder=office.folder, sites=sites, parameters=parameters, rounds=rounds, is_masked=is_masked, is_early=False,
        study=f"scale-{sites}", address=f"localhost:{free_port()}", enrolment=f"localhost:{free_port()}",
    )  # fmt: skip
    plan = write_run(setting, identities)
    log = setting.folder / f"coordinator-{sites}-{parameters}-{is_masked}.log"
    with ExitStack() as stack:
        coordinator = stack.enter_context(running(coordinator_command(setting, "run"), log))
        wait_for("coordinator_listening", log, coordinator, time.monotonic() + 120.0)
        time.sleep(LOOK_SECONDS)
        idle = memory_mib(coordinator.pid, "VmRSS")
        processes: Processes = {"coordinator": coordinator}
        for number, own in enumerate(_shared(setting.site_names, os.cpu_count() or 1)):
            command = light_command(setting, "agents" if is_masked else "streams", own)
            processes[f"sites-{number}"] = stack.enter_context(running(command, setting.folder / f"sites-{number}.log"))
        count, computed, last = RoundCount(log), dict[int, float](), 0.0
        while (made := count.now()) < rounds or coordinator.poll() is None:
            computed.setdefault(made, sum(processor_seconds(process.pid) for process in processes.values()))
            last = max(last, memory_mib(coordinator.pid, "VmHWM"))
            _raise_for_failed(processes)
            time.sleep(LOOK_SECONDS)
        statuses = [process.wait(120) for process in processes.values()]
    seconds = _seconds(log)
    (path,) = (setting.folder / "run-state" / "runs" / plan.run_name).glob("parameters.safetensors")
    exact = statuses == [0] * len(statuses) and _is_exact(path, setting)
    path.unlink()
    each = (computed[max(computed)] - computed[1]) / (max(computed) - 1) if len(computed) > 1 else math.nan
    return Point(
        sites, parameters, is_masked, rounds, round(statistics.median(seconds), 4), round(each, 4), round(idle, 1),
        round(last, 1), round(4 * parameters / 2**20, 1), exact,
    )  # fmt: skip


def _shared(names: Sequence[str], processes: int) -> list[Sequence[str]]:
    each = math.ceil(len(names) / processes)
    return [names[start : start + each] for start in range(0, len(names), each)]


def _raise_for_failed(processes: Processes) -> None:
    failed = [name for name, process in processes.items() if process.poll() not in (None, 0)]
    if failed:
        raise Unfinished(f"these failed: {', '.join(failed)}")


def _seconds(log: Path) -> list[float]:
    records = [json.loads(line) for line in log.read_text().splitlines() if '"round_closed"' in line]
    closed = [datetime.fromisoformat(record["timestamp"]) for record in records]
    return [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(closed)]


def _is_exact(path: Path, setting: Setting) -> bool:
    tensors = load_file(path).values()
    return sum(tensor.size for tensor in tensors) == setting.parameters and all(
        bool((tensor == setting.rounds).all()) for tensor in tensors
    )


def read(path: Path) -> list[Point]:
    """Return the measurements in a CSV file."""
    if not path.exists():
        return []
    convert = {"int": int, "float": float, "bool": lambda text: text == "True"}
    with path.open(newline="") as file:
        return [
            Point(**{field.name: convert[str(field.type)](line[field.name]) for field in fields(Point)})
            for line in csv.DictReader(file)
        ]


def append(path: Path, point: Point) -> None:
    """Append a measurement to a CSV file."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([field.name for field in fields(Point)])
        writer.writerow(astuple(point))


def table(points: Sequence[Point]) -> str:
    """Return the measurements as a Markdown table."""
    names = ("sites", "parameters", "masked", "s a round", "processor s", "idle MiB", "peak MiB", "model MiB")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for point in sorted(points, key=lambda point: (point.masked, point.parameters, point.sites)):
        facts = (
            point.sites, f"{point.parameters:,}", "yes" if point.masked else "no", f"{point.median_s:.2f}",
            f"{point.computed_s:.2f}", point.idle_mib, point.peak_mib, point.model_mib,
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, facts)) + " |")
    return "\n".join(lines)


def plot(points: Sequence[Point], path: Path) -> None:
    """Draw time and memory against the number of sites as SVG, with one line for each model size."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "scale"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4.2))
    for is_masked, parameters in itertools.product((False, True), PARAMETERS):
        own = sorted((p for p in points if (p.masked, p.parameters) == (is_masked, parameters)), key=lambda p: p.sites)
        for axes, name in zip(panels, ("median_s", "computed_s", "peak_mib"), strict=True):
            if own:
                label = f"{parameters:,}".replace(",", " ") + (" masked" if is_masked else "")
                values = [getattr(point, name) for point in own]
                axes.plot([p.sites for p in own], values, "o--" if is_masked else "o-", label=label)
    texts = ("seconds a round", "processor seconds a round, all together", "coordinator's peak, MiB")
    for axes, text in zip(panels, texts, strict=True):
        axes.set(xscale="log", yscale="log", xlabel="sites", ylabel=text, xticks=SITES, xticklabels=SITES)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=7, title="parameters")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


@click.command()
@click.option(
    "--results", type=click.Path(path_type=Path, file_okay=False), default="benchmarks/results", show_default=True
)
@click.option("--rounds", type=click.IntRange(2, 100), default=3, show_default=True)
@click.option("--most-numbers", type=int, default=MOST_NUMBERS, show_default=True, help="Sites times parameters.")
@click.option("--render-only", is_flag=True, help="Table and plot from what is there.")
def main(results: Path, rounds: int, most_numbers: int, render_only: bool) -> None:
    """Measure what is missing, then write table and plot."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / "scale.csv"
    known = {(point.sites, point.parameters, point.masked) for point in read(path)}
    missing = [point for point in wanted() if point not in known and point[0] * point[1] <= most_numbers]
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        if missing and not render_only:
            office = Setting(
                folder=Path(temporary), sites=max(SITES), parameters=1, rounds=1, is_masked=False, is_early=False
            )
            identities = enrol_all(office)
            for point in missing:
                append(path, measure(office, identities, point, rounds))
                click.echo(f"measured {point}", err=True)
    points = read(path)
    plot(points, results / "scale.svg")
    click.echo(table(points))
    is_exact = all(point.exact for point in points)
    click.echo(f"points={len(points)} missing={len(wanted()) - len(points)} results_are_exact={str(is_exact).lower()}")
    sys.exit(0 if is_exact else 1)


if __name__ == "__main__":
    main()
