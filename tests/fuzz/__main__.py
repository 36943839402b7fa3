"""`python -m tests.fuzz --inputs 1000000 --target site-messages`: send mutated inputs to decoders, and report.

An input that a decoder does not handle is written below --findings, so that it can be repeated and kept as a test. Exit
status 0 means that nothing was found.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from tests.fuzz.feeding import bounded_memory, feed
from tests.fuzz.targets import Target, targets

BATCH = 50_000


@dataclass(frozen=True)
class Amount:
    """The limits of inputs and time for a target; the first one that is reached applies."""

    inputs: int
    seconds: float


@click.command()
@click.option("--inputs", type=click.IntRange(min=1), default=10_000, show_default=True, help="For each target.")
@click.option("--target", "names", multiple=True, help="Only these; may be given several times.")
@click.option("--seconds", type=float, default=float("inf"), help="For each target at most.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--findings", type=click.Path(path_type=Path, file_okay=False), default="findings", show_default=True)
def main(inputs: int, names: tuple[str, ...], seconds: float, seed: int, findings: Path) -> None:
    """Send this many mutated inputs to every target."""
    has_found = False
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_quick_place()) as folder, bounded_memory():
        known = targets(Path(folder))
        unknown = set(names) - set(known)
        if unknown:
            raise click.BadParameter(f"known are {', '.join(known)}", param_hint="--target")
        for name in names or known:
            has_found |= _feed(name, known[name], Amount(inputs, seconds), seed, findings)
    sys.exit(1 if has_found else 0)


def _feed(name: str, target: Target, most: Amount, seed: int, findings: Path) -> bool:
    """Feed one target in batches, each with a seed of its own and a fresh pool; whether anything was found."""
    fed = accepted = kept = found = 0
    seconds = slowest = 0.0
    while fed < most.inputs and seconds < most.seconds:
        left = min(BATCH, most.inputs - fed)
        done = feed(target, seed=seed + fed, inputs=left, seconds=most.seconds - seconds)
        fed, accepted, kept = fed + done.inputs, accepted + done.accepted, kept + done.kept
        seconds, slowest = seconds + done.seconds, max(slowest, done.slowest_seconds)
        for finding in done.findings:
            folder = findings / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(finding.raw).hexdigest()[:16]).write_bytes(finding.raw)
            if found < 5:
                click.echo(f"{name}: {finding.what}", err=True)
            found += 1
    click.echo(
        f"target={name} inputs={fed} accepted={accepted} kept={kept} findings={found} seconds={seconds:.1f} "
        f"inputs_per_second={fed / seconds:.0f} slowest_s={slowest:.3f}"
    )
    return found > 0


def _quick_place() -> str | None:
    """Files in memory, where there are such, since a file is written for every input of some targets."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
