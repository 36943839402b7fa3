"""Computes the papers' tables with the deployed code: all sites in one process, and many seeds at once.

    python -m benchmarks.papers rehearsal
    python -m benchmarks.papers heart --data FOLDER
    python -m benchmarks.papers fed-heart --data FOLDER --seeds 0-19

Networks, procedures, gate, sums and server rules are those of coordinator and site. Sockets and masks are absent,
because they change no bit. A chunk of seeds of one variant is computed on a core of this machine or of a cluster
(experiments/engines.py). Results are lines of a CSV file. Lines that the file already has are not computed again. So an
interrupted run continues, and the slices of several machines are merged. The Markdown table with the published figures
and the plot include all lines of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.experiments.chunks import Chunk, Refused
from benchmarks.experiments.engines import Engine, compute, engine_of
from benchmarks.experiments.store import Cost, add_cost, add_rows, costs_beside, merge, read_rows
from benchmarks.experiments.tables.catalogue import TABLES, table_named
from protos.errors import OperatorError
from protos.plan.documents import did_you_mean, nearest_name

RESULTS: Final = Path(__file__).parent / "results" / "papers"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("table", metavar=f"[{'|'.join(sorted(TABLES))}]")
@click.option(
    "--data",
    "folder",
    envvar="GLOBAL_LAYERS_DATA",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="Folder with the folders heart and covertype. The tables rehearsal and images need no folder.",
)
@click.option(
    "--seeds", default="", help="Seeds to compute, such as 0-100 or 3,5,8. Without this option: the table's own seeds."
)
@click.option(
    "--variant",
    "chosen",
    multiple=True,
    help="Compute only this variant. You can repeat the option. A wrong name prints a list of all variants.",
)
@click.option("--jobs", default=1, help="Number of cores of this machine to use.")
@click.option("--cluster", default="", help="Use the cores of a cluster instead: ray://HOST:10001 or dask://HOST:8786.")
@click.option(
    "--merge",
    "slices",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="First add the results of the same table from this folder. You can repeat the option.",
)
@click.option("--results", default=RESULTS, type=click.Path(path_type=Path), help="Folder with the result files.")
@click.option("--render-only", is_flag=True, help="Write the page and the plot again, without computing anything.")
def main(
    table: str,
    folder: Path,
    seeds: str,
    chosen: tuple[str, ...],
    jobs: int,
    cluster: str,
    slices: tuple[Path, ...],
    results: Path,
    render_only: bool,
) -> None:
    """Compute a table of the papers, or its missing part, and write it beside the published figures.

    Example: python -m benchmarks.papers heart --data FOLDER --seeds 0-9 --results first-try
    """
    if table not in TABLES:
        raise click.UsageError(f"No table {table!r}; {did_you_mean(table, TABLES)}")
    definition, path = table_named(table), results / f"{table}.csv"
    _require_variants(chosen, [variant.name for variant in definition.variants()])
    try:
        engine = engine_of(jobs, cluster)
        for other in slices:
            merge(path, other / path.name)
        if not render_only:
            wanted = seeds_of(seeds) if seeds else list(definition.seeds)
            done = {(row.variant, row.seed) for row in read_rows(path)}
            chunks = _chunks(Chunk(table=table, variant="", folder=folder, seeds=tuple(wanted)), done)
            _compute(table, [each for each in chunks if not chosen or each.variant in chosen], engine, path)
    except OperatorError as refusal:
        raise click.ClickException(str(refusal)) from refusal
    definition.render(read_rows(path), results / f"{table}.md")
    click.echo(f"{results / table}.csv, .md and .svg")


def _require_variants(chosen: Sequence[str], names: Sequence[str]) -> None:
    strangers = [name for name in chosen if name not in names]
    if strangers:
        there = f"there are: {', '.join(map(repr, names))}"
        near = nearest_name(strangers[0], names)
        raise click.UsageError(f"No variant {strangers[0]!r}; {f'did you mean {near!r}? ' if near else ''}{there}.")


def _compute(table: str, chunks: list[Chunk], engine: Engine, path: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(table, total=sum(len(chunk.seeds) for chunk in chunks))
        for done in compute(engine, chunks) if chunks else ():
            if isinstance(done, Refused):
                raise click.ClickException(done.words)
            add_rows(path, done.rows)
            cost = Cost(
                variant=done.chunk.variant,
                seeds=len(done.chunk.seeds),
                processor_seconds=done.processor_seconds,
                day=datetime.now(UTC).date().isoformat(),
                libraries=done.libraries,
            )
            add_cost(costs_beside(path), cost)
            progress.update(task, advance=len(done.chunk.seeds), description=f"{table}: {done.chunk.variant}")


def _chunks(wanted: Chunk, done: set[tuple[str, int]]) -> Iterator[Chunk]:
    """Yield the chunks of the wanted seeds that are not yet computed, for each variant.

    Chunks always begin at the same seeds, because a stack's last digits depend on its size.
    """
    for variant in table_named(wanted.table).variants():
        own, at_once = wanted.seeds[: variant.most_seeds], variant.seeds_at_once
        for start in range(0, len(own), at_once):
            missing = tuple(seed for seed in own[start : start + at_once] if (variant.name, seed) not in done)
            if missing:
                yield replace(wanted, variant=variant.name, seeds=missing)


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as `0-100` or `3,5,8-9`, each seed once, in the order of the text."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(last) >= int(first))):
            raise click.UsageError(f"{text!r} are no seeds. Give them as 0-100, or as 3,5,8.")
        found += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
