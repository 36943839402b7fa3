"""Does it stay fast? `python -m benchmarks.speed` measures three ratios and adds them to a file.

A ratio is a program's time by that of its floor, measured in the same run. The floor of a round is a bare exchange of
the same bytes. The floor of a training step is a step of PyTorch's own layers. So commits can be compared although
machines differ. A ratio more than a tenth above the usual one is marked, with both figures. A busy machine can cause
that, so the exit status stays 0: measure again, and give the reason in the commit's message.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
USUAL: Final = 5  # the usual ratio is the median of this number of earlier ratios
NOTABLE: Final = 1.1
LIMIT_SECONDS: Final = 300
_ROUND: Final = ("-m", "benchmarks.round_overhead", "--sites", "3", "--masked", "--rounds")
# The benchmarks: the command, and the keys of the program's time and of the shortest possible time in its output.
MEASURED: Final = {
    "round of 300,000 parameters": ((*_ROUND, "100", "--parameters", "300000"), "median_s", "floor_s"),
    "round of 1,000 parameters": ((*_ROUND, "200", "--parameters", "1000", "--early"), "median_s", "floor_s"),
    "training step": (("-m", "benchmarks.training_step"), "ours_step_s", "fast_reference_step_s"),
}


class Unmeasured(Exception):
    """A benchmark failed or printed no figures. The text is the end of its output."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One ratio of one commit. `commit` ends with `+` if files differ from the commit."""

    day: str
    commit: str
    what: str
    ratio: float


def figures(output: str) -> dict[str, str]:
    """Return the `key=value` pairs in the last line of a benchmark's output."""
    lines = output.strip().splitlines()
    return dict(pair.split("=", 1) for pair in lines[-1].split() if "=" in pair) if lines else {}


def measure(what: str) -> float:
    """Run one benchmark and return its ratio.

    Raises:
        Unmeasured: it failed, took too long or printed no figures.
    """
    words, ours, floor = MEASURED[what]
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as cause:
        raise Unmeasured(f"it took more than {LIMIT_SECONDS} seconds") from cause
    found = figures(done.stdout)
    if done.returncode or ours not in found or floor not in found:
        raise Unmeasured((done.stderr or done.stdout)[-400:])
    return float(found[ours]) / float(found[floor])


def read(path: Path) -> list[Measured]:
    """Return all earlier measurements, the oldest first. Without a file, return nothing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [Measured(**{**row, "ratio": float(row["ratio"])}) for row in csv.DictReader(file)]


def write(path: Path, history: list[Measured]) -> None:
    """Write all measurements to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measured)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asdict(one), "ratio": f"{one.ratio:.3f}"} for one in history)


def verdict(new: Measured, history: list[Measured]) -> str:
    """Return a line with the ratio and the usual ratio with which it is compared."""
    earlier = [one.ratio for one in history if one.what == new.what][-USUAL:]
    line = f"{new.what:28} {new.ratio:6.2f} times its floor"
    if not earlier:
        return f"{line}, the first of the history"
    usual = median(earlier)
    change = new.ratio / usual - 1
    marked = "  SLOWER" if new.ratio > NOTABLE * usual else ""
    return f"{line}, usually {usual:.2f} ({change:+.0%}){marked}"


def commit() -> str:
    """Return the first eight digits of the commit that is measured."""
    asked = ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@click.command(help=__doc__)
@click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), default=ROOT / "benchmarks/results/speed.csv",
    help="The history. Otherwise benchmarks/results/speed.csv.",
)  # fmt: skip
def main(path: Path) -> None:
    """Measure, compare and write. A failed measurement is printed and skipped."""
    history, day, name = read(path), datetime.now(UTC).date().isoformat(), commit()
    for what in MEASURED:
        try:
            new = Measured(day=day, commit=name, what=what, ratio=measure(what))
        except Unmeasured as reason:
            click.echo(f"{what:28} could not be measured: {reason}")
            continue
        click.echo(verdict(new, history))
        history.append(new)
    write(path, history)
    click.echo(" ".join(f"{one.what.replace(' ', '_')}={one.ratio:.2f}" for one in history if one.commit == name))


if __name__ == "__main__":
    main()
