"""Measures rounds over lines as hospitals have them: `python -m benchmarks.line`.

A coordinator and three sites as processes of their own, with masks and mutual TLS. Each site reaches the coordinator
through a relay of its own, which has a rate and a delay. Trainers return their input plus one. One federation for each
size meets all lines, one after another. The first round on a line began on the line before, so it is not counted.

A line of the table has the seconds of a round for each round-trip time. `floor` is the bytes of a round by the rate.
`round trips` is the slope of the seconds between the shortest and the longest round trip. It grows with the size where
a window of HTTP/2 is smaller than what the line carries in a round trip.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import click
import yaml
from rich.console import Console
from rich.table import Table

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
from benchmarks.rehearsal.line_relay import Line, relaying

PARAMETERS = (1_000, 300_000, 5_000_000, 25_000_000)
MEGABITS = (1000.0, 100.0, 10.0)
MILLISECONDS = (5.0, 30.0, 100.0)
SITES, MOST_ROUNDS = 3, 100_000  # the last lines end the programs long before that
Place = tuple[float, float]  # the rate in Mbit/s and the round trip in ms


@click.command()
@click.option("--parameters", type=int, multiple=True, default=PARAMETERS, show_default=True)
@click.option("--megabits", type=float, multiple=True, default=MEGABITS, show_default=True)
@click.option("--milliseconds", type=float, multiple=True, default=MILLISECONDS, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Counted rounds on each line.")
@click.option("--cut-seconds", type=float, default=0.0, show_default=True, help="Cut each connection so often.")
@click.option("--longest-seconds", type=float, default=40.0, show_default=True, help="Skip rounds of a longer floor.")
def main(
    parameters: tuple[int, ...],
    megabits: tuple[float, ...],
    milliseconds: tuple[float, ...],
    rounds: int,
    cut_seconds: float,
    longest_seconds: float,
) -> None:
    """Print the seconds of a round by its parameters, rate and round trip."""
    titles = (f"{trip:g} ms" for trip in milliseconds)
    table = Table("parameters", "Mbit/s", "floor, s", *titles, "round trips", "MB a round")
    for count in parameters:
        floors = {rate: 2 * 32e-6 * count / rate for rate in megabits}
        places = [place for place in product(megabits, milliseconds) if floors[place[0]] <= longest_seconds]
        with tempfile.TemporaryDirectory(prefix="line-") as folder:
            try:
                found, megabytes = _measure(Path(folder), count, places, rounds, cut_seconds)
            except Unfinished as reason:
                sys.exit(f"line: the federation did not finish: {reason}")
        for rate in megabits:
            seconds = [found[rate, trip] for trip in milliseconds if (rate, trip) in found]
            shown = [f"{one:.3f}" for one in seconds] or ["skipped"] + ["-"] * (len(milliseconds) - 1)
            slope = (seconds[-1] - seconds[0]) / max(1e-9, milliseconds[-1] - milliseconds[0]) if seconds else 0.0
            trips = f"{1000 * slope:.1f}" if seconds else "-"
            table.add_row(f"{count:,}", f"{rate:g}", f"{floors[rate]:.3f}", *shown, trips, f"{megabytes:.2f}")
    Console(width=110).print(table)


def _measure(
    folder: Path, count: int, places: list[Place], rounds: int, cut_seconds: float
) -> tuple[dict[Place, float], float]:
    """Return the median seconds of a round on each line, and the megabytes of a round and site in both directions."""
    setting = Setting(folder=folder, sites=SITES, parameters=count, rounds=MOST_ROUNDS, is_masked=True, is_early=False)
    identities = enrol_all(setting)
    write_run(setting, identities)
    lines, log = [Line(setting.port, cut_seconds=cut_seconds) for _ in range(SITES)], folder / "coordinator.log"
    found: dict[Place, float] = {}
    with ExitStack() as stack:
        stack.enter_context(relaying(lines))
        _start(setting, lines, stack)
        for rate, trip in places:
            before = len(_closed(log))
            for line in lines:
                line.megabits, line.round_trip_seconds = rate, trip / 1000
            deadline = time.monotonic() + 600
            while len(closed := _closed(log)) < before + rounds + 1:
                if time.monotonic() > deadline:
                    raise Unfinished("the time was over")
                time.sleep(0.05)
            seconds = [(later - earlier).total_seconds() for earlier, later in pairwise(closed)]
            found[rate, trip] = median(seconds[before : before + rounds])
        passed = sum(map(sum, lines[0].passed))
        made = len(_closed(log))
    return found, passed / made / 1e6


def _start(setting: Setting, lines: list[Line], stack: ExitStack) -> None:
    """Start all processes, and wait for the first round."""
    folder, log = setting.folder, setting.folder / "coordinator.log"
    coordinator = stack.enter_context(running(coordinator_command(setting, "run"), log))
    deadline = time.monotonic() + 120
    wait_for("coordinator_listening", log, coordinator, deadline)
    for site, line in zip(setting.site_names, lines, strict=True):
        config = folder / site / "hospital.yaml"
        changed = yaml.safe_load(config.read_text()) | {"coordinator": f"localhost:{line.port}"}
        config.write_text(yaml.safe_dump(changed))
        trainer = stack.enter_context(running(trainer_command(setting, site), folder / f"{site}-trainer.log"))
        assert trainer.stdout is not None
        trainer.stdout.readline()
        stack.enter_context(running(agent_command(setting, site), folder / f"{site}.log"))
    wait_for('"round_closed"', log, coordinator, deadline)


def _closed(log: Path) -> list[datetime]:
    """Return when each round was closed, by the coordinator's log."""
    lines = [line for line in log.read_text().splitlines() if '"round_closed"' in line and line.endswith("}")]
    return [datetime.fromisoformat(json.loads(line)["timestamp"]) for line in lines]


if __name__ == "__main__":
    main()
