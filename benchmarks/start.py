"""Measures the time to the end of the first round, and an idle site's memory: `python -m benchmarks.start`.

The quickstart prepares three hospitals and starts the coordinator and the three sites at once: seven programs of ours
and three trainers with PyTorch. Seconds are those of the clock, so they say little on a busy machine. Processor seconds
are those of each kind of process until the first round has ended. After the run one site is started alone, without a
coordinator; its memory is taken after 30 seconds.

In practice each hospital has its own computer. So a second federation shows the start of a single hospital: the
coordinator and the other two hospitals already wait for the first round.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

import click

from benchmarks.rehearsal.observation import children_of, processor_seconds, times_of
from quickstart.federation import PROGRAMS, Rehearsal, prepare
from quickstart.hospitals import dealt_hospitals

ROOT: Final = Path(__file__).parents[1]
SITES: Final = 3
LIMIT_SECONDS: Final = 300.0
IDLE_AFTER_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.01
_KINDS: Final = {
    "coordinator start": "coordinator",
    "site_agent.agent": "agent",
    "site_agent.trainer_process": "trainer",
}


@click.command()
@click.option("--masked/--unmasked", default=True, show_default=True, help="Secure aggregation.")
def main(masked: bool) -> None:
    """Measure the start of a federation with three sites, and the memory of an idle site."""
    with tempfile.TemporaryDirectory(prefix="start-") as temporary:
        folder = Path(temporary) / "run"
        seconds, computed = until_first_round(folder, "--masked" if masked else "--unmasked")
        idle = idle_mib(folder / "hospital-1" / "hospital.yaml")
        coordinator_seconds, own_seconds = single_starts(Path(temporary) / "own", masked=masked)
    facts = {"sites": str(SITES), "masked": str(masked).lower(), "start_s": f"{seconds:.2f}"}
    facts |= {"coordinator_start_s": f"{coordinator_seconds:.2f}", "own_start_s": f"{own_seconds:.2f}"}
    facts |= {f"{kind}_computed_s": f"{of_kind:.2f}" for kind, of_kind in sorted(computed.items())}
    facts |= {f"{kind}_idle_mib": f"{of_kind:.1f}" for kind, of_kind in sorted(idle.items())}
    facts |= {"computed_s": f"{sum(computed.values()):.2f}", "idle_mib": f"{sum(idle.values()):.1f}"}
    click.echo(" ".join(f"{key}={value}" for key, value in facts.items()))


def until_first_round(folder: Path, *words: str) -> tuple[float, dict[str, float]]:
    """Run the quickstart. Return the seconds until the first round has ended, and processor seconds by kind."""
    command = [sys.executable, ROOT / "deploy" / "quickstart", "--data", "breast-cancer", "--sites", str(SITES)]
    options = ["--method", "global-layers", "--rounds", "2", "--output", str(folder), *words]
    log, began, computed = folder / "coordinator.log", 0.0, dict[int, tuple[str, float]]()
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + LIMIT_SECONDS
        while run.poll() is None and time.monotonic() < deadline:
            if not began and log.exists():
                began = time.time()
            if began and "round_closed" not in times_of(log):
                for process in _below(run.pid):  # a process that is ending at this moment has no command line
                    kind = _kind(process) or computed.get(process, ("gate", 0.0))[0]
                    computed[process] = kind, processor_seconds(process)
            time.sleep(_LOOK_SECONDS)
        if run.poll() != 0:
            run.terminate()
            raise click.ClickException(f"The quickstart failed or took more than {LIMIT_SECONDS:g} s.")
    kinds = {kind for kind, _ in computed.values()}
    totals = {kind: sum(seconds for of, seconds in computed.values() if of == kind) for kind in kinds}
    return times_of(log)["round_closed"][0].timestamp() - began, totals


def single_starts(folder: Path, *, masked: bool) -> tuple[float, float]:
    """Start the coordinator, then all hospitals except the last, and the last hospital when the others have joined.

    Return the seconds until the coordinator listens, and the seconds from the start of the last hospital until the
    first round has ended. The last hospital also receives its certificate in this time.
    """
    (folder / "tables").mkdir(parents=True)
    hospitals = dealt_hospitals(SITES, folder / "tables", 0)
    methods = ("global-layers",)
    prepare(Rehearsal(folder=folder, hospitals=hospitals, methods=methods, rounds=2, seed=0, is_masked=masked))
    log = folder / "coordinator.log"
    *others, last = [(hospital.name, "site-agent", "join", "hospital.yaml") for hospital in hospitals]
    with _running(folder, ("", "coordinator", "start", "coordinator.yaml")) as (coordinator_began,):
        listening = _awaited(log, "coordinator_listening", 1)
        with _running(folder, *others):
            _awaited(log, "site_joined", len(others))
            with _running(folder, last) as (last_began,):
                closed = _awaited(log, "round_closed", 1)
    return listening - coordinator_began, closed - last_began


@contextmanager
def _running(folder: Path, *programs: tuple[str, str, str, str]) -> Iterator[list[float]]:
    """Start programs, each given as its folder, name, command and configuration file. Yield the times of their starts.

    At the end of the block the programs are stopped.
    """
    started, began = [], []
    try:
        for place, program, words, file in programs:
            log = folder / place / f"{program}.log"
            began.append(time.time())
            with log.open("wb") as output:
                command = [PROGRAMS / program, words, "--config", folder / place / file]
                started.append(subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL))
        yield began
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _awaited(log: Path, event: str, count: int) -> float:
    """Wait until the coordinator's log has an event this many times. Return the time of the last of these events."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len((times := times_of(log)).get(event, [])) < count:
        if time.monotonic() > deadline or "run_over" in times:
            raise click.ClickException(f"The event {event} was not logged {count} times within {LIMIT_SECONDS:g} s.")
        time.sleep(_LOOK_SECONDS)
    return times[event][count - 1].timestamp()


def idle_mib(config: Path) -> dict[str, float]:
    """Return the memory of a site's processes in MiB by kind, while no coordinator answers.

    Memory that they share with each other is divided equally. What they share with other programs counts as theirs, so
    that the figures are the proportional ones (PSS) of a computer on which nothing else runs.
    """
    command = [Path(sys.executable).parent / "site-agent", "join", "--config", config]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as gate:
        time.sleep(IDLE_AFTER_SECONDS)
        held = {_kind(process): _kib_by_file(process) for process in (gate.pid, *children_of(gate.pid))}
        gate.terminate()
    users = Counter(file for files in held.values() for file in files if file.startswith("/"))
    return {kind: sum(kib / users.get(file, 1) for file, kib in files.items()) / 1024 for kind, files in held.items()}


def _kib_by_file(process: int) -> dict[str, int]:
    """Return the resident KiB of a process by mapped file.

    Pages that the process has written are listed as `written`.
    """
    found: dict[str, int] = {}
    file = ""
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            file = words[5] if len(words) > 5 else ""
        elif words[0] in ("Private_Clean:", "Shared_Clean:", "Shared_Dirty:", "Private_Dirty:"):
            place = "written" if words[0] == "Private_Dirty:" else file
            found[place] = found.get(place, 0) + int(words[1])
    return found


def _below(process: int) -> Iterator[int]:
    """Yield all processes that a process has started, directly or indirectly."""
    for child in children_of(process):
        yield child
        yield from _below(child)


def _kind(process: int) -> str:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        words = ""
    return next((kind for mark, kind in _KINDS.items() if mark in words), "gate" if words else "")


if __name__ == "__main__":
    main()
