"""A rehearsal from nothing to a table: `python deploy/quickstart`, or `deploy/quickstart.sh` with an environment.

Real programs over mutual TLS on loopback train on real clinical data whose sites have different
columns; each site then sees what it would have reached alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import click
from quickstart.federation import METHODS, Rehearsal, prepare, start, status
from quickstart.hospitals import dealt_hospitals, heart_hospitals
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

LONGEST_SECONDS = 3600.0
_MARK = "made-by-quickstart"


@click.command()
@click.option("--method", type=click.Choice([*METHODS, "all"]), default="all", show_default=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A folder with the heart tables.")
@click.option("--masked/--unmasked", default=False, show_default=True, help="Secure aggregation.")
@click.option("--rounds", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--sites", type=click.IntRange(2, 20), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where the figures go.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("quickstart-run"), show_default=True)
def main(
    method: str, data: Path | None, masked: bool, rounds: int, sites: int, seed: int, json_file: Path | None, output: Path
) -> None:
    """Rehearse a federation of hospitals on this machine."""
    folder = _fresh(output)
    tables = folder / "tables"
    tables.mkdir()
    hospitals = heart_hospitals(data, tables) if data else dealt_hospitals(sites, tables, seed)
    methods = METHODS if method == "all" else (method,)
    rehearsal = Rehearsal(
        folder=folder, hospitals=hospitals[:sites], methods=methods, rounds=rounds, seed=seed, is_masked=masked
    )
    console = Console()
    console.print(f"Preparing an authority, {len(rehearsal.hospitals)} hospitals and {len(methods)} studies in {folder}")
    prepare(rehearsal)
    is_complete = _run(rehearsal, console)
    if not is_complete:
        console.print(f"The federation did not finish; the logs are in {folder}.")
        sys.exit(1)
    figures = _figures(rehearsal)
    _print_table(figures, console)
    (folder / "figures.json").write_text(json.dumps(figures, indent=2))
    if json_file:
        json_file.write_text(json.dumps(figures, indent=2))
    console.print(f"Models, reports, logs and audit logs are in {folder}.")


def _fresh(folder: Path) -> Path:
    """An empty folder; an earlier rehearsal's is replaced, nobody else's is touched."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            sys.exit(f"quickstart: {folder} is in use.\n  Nothing was changed.\n  Name another with --output.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder.resolve()


def _run(rehearsal: Rehearsal, console: Console) -> bool:
    """Start everything, show progress, end everything; whether all went well."""
    programs = start(rehearsal)
    began = time.monotonic()
    try:
        with Progress(console=console) as progress:
            tasks = {method: progress.add_task(method, total=rehearsal.rounds) for method in rehearsal.methods}
            while programs["coordinator"].poll() is None and time.monotonic() - began < LONGEST_SECONDS:
                answer = status(rehearsal)
                _show(answer, tasks, progress)
                if any(program.poll() not in (None, 0) for program in programs.values()):
                    return False
                time.sleep(0.2)
            for task in tasks.values():
                progress.update(task, completed=rehearsal.rounds)
        return all(program.wait(timeout=60) == 0 for program in programs.values())
    except subprocess.TimeoutExpired:
        return False
    finally:
        for program in programs.values():
            if program.poll() is None:
                program.terminate()
                program.wait()


def _show(answer: dict[str, Any] | None, tasks: dict[str, Any], progress: Progress) -> None:
    run = answer["run"] if answer else None
    if run:
        for method, task in tasks.items():
            if method == run["method"]:
                progress.update(task, completed=run["rounds_made"])
                break
            progress.update(task, completed=run["rounds"])


def _figures(rehearsal: Rehearsal) -> dict[str, Any]:
    records = [json.loads(path.read_text()) for path in sorted((rehearsal.folder / "coordinator/runs").glob("*/record.json"))]
    by_method = {record["method"]: record for record in records}
    main_record = by_method[rehearsal.methods[-1]]
    sites: dict[str, Any] = {}
    for hospital in rehearsal.hospitals:
        reports = {
            method: json.loads((rehearsal.folder / hospital.name / "state/reports" / f"{record['run']}.json").read_text())
            for method, record in by_method.items()
        }
        last = reports[rehearsal.methods[-1]]
        sites[hospital.name] = {"siloed": last["siloed"]["metrics"]} | {
            method: reports[method]["federated"]["metrics"] for method in rehearsal.methods
        }
    return {
        "seed": rehearsal.seed,
        "masked": rehearsal.is_masked,
        "rounds": main_record["rounds_made"],
        "shared_parameters_sha256": main_record["shared_parameters_sha256"],
        "runs": {method: record["shared_parameters_sha256"] for method, record in by_method.items()},
        "sites": sites,
    }


def _print_table(figures: dict[str, Any], console: Console) -> None:
    names = list(next(iter(figures["sites"].values())))
    table = Table("site", *(f"{name} AUROC" for name in names), f"gain of {names[-1]}", title="On each site's own test rows")
    for site, by_method in figures["sites"].items():
        values = [by_method[name]["auroc"] for name in names]
        known = values[0] is not None and values[-1] is not None
        gain = f"{values[-1] - values[0]:+.3f}" if known else "-"
        table.add_row(site, *("-" if value is None else f"{value:.3f}" for value in values), gain)
    console.print(table)


if __name__ == "__main__":
    main()
