"""Measures the bytes and the time of a run of federated-prior, with networks for comparison.

`python -m benchmarks.recipe_cost` runs the quickstart for each method.

The four UCI heart clinics run as real programs over mutual TLS, masked. Bytes are what a site's TCP connection carried,
TLS included, without TCP's and IP's headers. Processor seconds are those of all programs together, so that a busy
machine changes them less than the time of day. The rounds begin when the last site has joined, and end with the last
round. After them every site fits its simple models and writes its report.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import yaml

from benchmarks.rehearsal.observation import bytes_exchanged, children_of, processor_seconds

ROOT: Final = Path(__file__).parents[1]
METHODS: Final = ("federated-prior", "fedavg", "global-layers")
SITES: Final = 4
LIMIT_SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one run. Bytes are the mean over the sites. Seconds include only the rounds."""

    method: str
    rounds: int
    sent_bytes: float
    received_bytes: float
    processor_seconds: float
    seconds: float

    def line(self) -> str:
        """Return a row of the table on the page."""
        kilobytes = f"{self.sent_bytes / 1000:.0f} | {self.received_bytes / 1000:.0f}"
        return f"| {self.method} | {self.rounds} | {kilobytes} | {self.processor_seconds:.1f} | {self.seconds:.1f} |"


@click.command()
@click.option("--rounds", default=20, show_default=True, help="Rounds of the networks; federated-prior ends by itself.")
def main(rounds: int) -> None:
    """Measure rounds, bytes and seconds of each method, and print a table."""
    click.echo("| method | rounds | kB sent | kB received | processor seconds | seconds |\n|---|---|---|---|---|---|")
    for method in METHODS:
        click.echo(measure(method, rounds).line())


def measure(method: str, rounds: int) -> Cost:
    """Run the quickstart with one method, and read from Linux the cost of its processes and connections."""
    with tempfile.TemporaryDirectory(prefix="cost-") as temporary:
        folder = Path(temporary) / "run"
        words = ["--method", method, "--rounds", str(rounds), "--output", str(folder)]
        run = subprocess.Popen([sys.executable, ROOT / "deploy" / "quickstart", *words], stdout=subprocess.DEVNULL)
        deadline, at = time.monotonic() + LIMIT_SECONDS, dict[str, tuple[int, float]]()
        exchanged, seconds = dict[int, tuple[int, int]](), dict[int, float]()
        while run.poll() is None and time.monotonic() < deadline:
            if times := times_of(folder / "coordinator.log"):
                port = yaml.safe_load((folder / "coordinator.yaml").read_text())["listen"].rpartition(":")[2]
                exchanged |= bytes_exchanged(int(port))
                seconds |= {process: processor_seconds(process) for process in _tree(run.pid)}
                for event, found in times.items():
                    if at.get(event, (0, 0.0))[0] < len(found):
                        at[event] = len(found), sum(seconds.values())
            time.sleep(_LOOK_SECONDS)
        if run.poll() != 0:
            run.terminate()
            raise click.ClickException(f"The quickstart with {method} failed or took more than {LIMIT_SECONDS:g} s.")
    (_, before), (made, after) = at["site_joined"], at["round_closed"]
    return Cost(
        method=method,
        rounds=made,
        sent_bytes=sum(sent for sent, _ in exchanged.values()) / SITES,
        received_bytes=sum(received for _, received in exchanged.values()) / SITES,
        processor_seconds=after - before,
        seconds=(times["round_closed"][-1] - times["site_joined"][-1]).total_seconds(),
    )


def times_of(log: Path) -> dict[str, list[datetime]]:
    """Return for each event in a coordinator's log the times at which it happened. Without a log, return nothing."""
    found: dict[str, list[datetime]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        if line.startswith("{") and line.endswith("}"):
            entry = json.loads(line)
            found.setdefault(entry["event"], []).append(datetime.fromisoformat(entry["timestamp"]))
    return found


def _tree(process: int) -> Iterator[int]:
    """Yield the process and all processes that it has started, directly or indirectly."""
    yield process
    for child in children_of(process):
        yield from _tree(child)


if __name__ == "__main__":
    main()
