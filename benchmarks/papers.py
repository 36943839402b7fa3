"""The papers' tables, by the code of the deployment, all sites in one process and many seeds at once.

    python -m benchmarks.papers rehearsal
    python -m benchmarks.papers heart --data FOLDER
    python -m benchmarks.papers fed-heart --data FOLDER --seeds 0-19

Networks, procedures, gate, sums and server rules are those of coordinator and site; sockets and masks are left
out, because they change no bit. A chunk of seeds of one variant is a job for joblib, so that a cluster's
backend can take over. Results are lines of a CSV file; what is there already is not computed again, so a
run that was stopped goes on where it was. The Markdown table with the published figures and the plot are
written from all lines that are there.
"""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.experiments.store import Cost, add_cost, add_rows, costs_beside, read_rows
from benchmarks.experiments.tables.catalogue import TABLES, table_named
from benchmarks.experiments.variants import Row
from protos.errors import OperatorError
from protos.plan.nearest import did_you_mean, nearest_name
from site_agent.trainer.arithmetic import prepare_arithmetic

RESULTS: Final = Path(__file__).parent / "results" / "papers"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("table", metavar=f"[{'|'.join(sorted(TABLES))}]")
@click.option(
    "--data",
    "folder",
    envvar="GLOBAL_LAYERS_DATA",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that holds heart/ and covertype/; rehearsal needs none.",
)
@click.option("--seeds", default="", help="Such as 0-100 or 3,5,8; left out, the table's own.")
@click.option("--variant", "chosen", multiple=True, help="Only these variants; may be given several times.")
@click.option("--jobs", default=1, help="Chunks at once; each takes one core.")
@click.option("--results", default=RESULTS, type=click.Path(path_type=Path), help="Where the files are and go.")
@click.option("--render-only", is_flag=True, help="Write table and plot from what is there.")
def main(
    table: str, folder: Path, seeds: str, chosen: tuple[str, ...], jobs: int, results: Path, render_only: bool
) -> None:
    """Compute a table of the papers, or what of it is missing, and write it beside the published figures."""
    if table not in TABLES:
        raise click.UsageError(f"No table {table!r}; {did_you_mean(table, TABLES)}")
    definition, path = table_named(table), results / f"{table}.csv"
    names = [variant.name for variant in definition.variants()]
    strangers = [name for name in chosen if name not in names]
    if strangers:
        there = f"there are: {', '.join(map(repr, names))}"
        near = nearest_name(strangers[0], names)
        raise click.UsageError(f"No variant {strangers[0]!r}; {f'did you mean {near!r}? ' if near else ''}{there}.")
    if not render_only:
        wanted = seeds_of(seeds) if seeds else list(definition.seeds)
        done = {(row.variant, row.seed) for row in read_rows(path)}
        chunks = [chunk for chunk in _chunks(table, wanted, done) if not chosen or chunk[0] in chosen]
        try:
            _compute(table, folder, chunks, jobs, path)
        except OperatorError as refusal:
            raise click.ClickException(str(refusal)) from refusal
    definition.render(read_rows(path), results / f"{table}.md")
    click.echo(f"{results / table}.csv, .md and .svg")


def run_chunk(table: str, variant: str, folder: Path, seeds: list[int]) -> tuple[list[Row], float]:
    """One variant over some seeds, in this process: its rows, and the processor seconds that they took."""
    prepare_arithmetic(1)
    # The gradients of a stack's copies lie side by side on purpose.
    warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")
    began = time.process_time()
    definition = next(each for each in table_named(table).variants() if each.name == variant)
    rows = list(definition.run(folder, seeds))
    return rows, time.process_time() - began


def _compute(table: str, folder: Path, chunks: list[tuple[str, list[int]]], jobs: int, path: Path) -> None:
    work = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_timed)(table, variant, folder, seeds) for variant, seeds in chunks
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(table, total=sum(len(seeds) for _, seeds in chunks))
        for variant, seeds, rows, seconds in work:
            add_rows(path, rows)
            cost = Cost(
                variant=variant,
                seeds=len(seeds),
                processor_seconds=seconds,
                day=datetime.now(UTC).date().isoformat(),
                libraries=_libraries(),
            )
            add_cost(costs_beside(path), cost)
            progress.update(task, advance=len(seeds), description=f"{table}: {variant}")


def _timed(table: str, variant: str, folder: Path, seeds: list[int]) -> tuple[str, list[int], list[Row], float]:
    rows, seconds = run_chunk(table, variant, folder, seeds)
    return variant, seeds, rows, seconds


def _chunks(table: str, seeds: list[int], done: set[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
    """What is missing. Chunks begin at the same seeds whatever is there: a stack's last digits follow from its size."""
    for variant in table_named(table).variants():
        own = seeds[: variant.most_seeds]
        for start in range(0, len(own), variant.seeds_at_once):
            missing = [seed for seed in own[start : start + variant.seeds_at_once] if (variant.name, seed) not in done]
            if missing:
                yield variant.name, missing


def _libraries() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    return f"Python {platform.python_version()}, {versions}, {platform.machine()}"


def seeds_of(text: str) -> list[int]:
    """The seeds that `0-100` or `3,5,8-9` stand for, each once, in the order given."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(last) >= int(first))):
            raise click.UsageError(f"{text!r} are no seeds. Give them as 0-100, or as 3,5,8.")
        found += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
