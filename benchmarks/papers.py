"""Computes the papers' tables with the deployed code: all sites in one process.

    python -m benchmarks.papers rehearsal
    python -m benchmarks.papers heart --data FOLDER --jobs 2
    python -m benchmarks.papers fed-heart --data FOLDER --seeds 0-19 --figures

Networks, procedures, gate, sums and server rules are those of coordinator and site. Sockets and masks are absent,
because they change no bit. Results are lines of results/papers/TABLE.csv. Lines that the file already has are not
computed again, so an interrupted run continues. `--figures` prints means with their intervals beside published values.
The pages beside the files discuss these figures.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import click

from benchmarks.experiments.statistics import by_seed, mean_of
from benchmarks.experiments.store import add_cost, add_rows, costs_beside, read_rows
from benchmarks.experiments.tables import chfl, covertype, fed_heart, heart, images, join, player, rehearsal, vectors
from benchmarks.experiments.variants import Row, Variant
from protos.errors import OperatorError
from site_agent.trainer.arithmetic import prepare_arithmetic

RESULTS: Final = Path(__file__).parent / "results" / "papers"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of results.

    Attributes:
        variants: what can be run.
        seeds: that are run without the option `--seeds`.
        metrics: that `--figures` prints.
        published: figures of the paper by variant, site and metric, in percent; empty if it has none.
    """

    variants: Callable[[], list[Variant]]
    seeds: Sequence[int]
    metrics: tuple[str, ...]
    published: Mapping[tuple[str, str, str], float]


def _by_site(
    known: Mapping[str, Mapping[str, Sequence[float]]], metrics: Sequence[str]
) -> dict[tuple[str, str, str], float]:
    return {
        (variant, site, metric): value
        for variant, sites in known.items()
        for site, values in sites.items()
        for metric, value in zip(metrics, values, strict=True)
    }


TABLES: Final = {
    "heart": Table(
        variants=heart.variants,
        seeds=range(101),
        metrics=heart.METRICS,
        published=_by_site(heart.PUBLISHED, heart.METRICS),
    ),
    "fed-heart": Table(
        variants=fed_heart.variants,
        seeds=range(20),
        metrics=("accuracy",),
        published={
            (f"{name}, {checkpoint}", "", "accuracy"): 100 * value
            for name, values in fed_heart.PUBLISHED.items()
            for checkpoint, value in zip(fed_heart.CHECKPOINTS, values, strict=True)
            if value is not None
        },
    ),
    "chfl": Table(variants=chfl.variants, seeds=chfl.SEEDS, metrics=("accuracy",), published={}),
    "covertype": Table(
        variants=covertype.variants,
        seeds=covertype.SEEDS,
        metrics=("auroc", "balanced_accuracy", "auprc"),
        published=_by_site(covertype.PUBLISHED, ("auroc", "balanced_accuracy", "auprc")),
    ),
    "single-vectors": Table(variants=vectors.variants, seeds=range(20), metrics=("accuracy",), published={}),
    "join": Table(variants=join.variants, seeds=join.SEEDS, metrics=("best local", "federated-prior"), published={}),
    "rehearsal": Table(variants=rehearsal.variants, seeds=range(4), metrics=("auroc",), published={}),
    "images": Table(variants=images.variants, seeds=images.SEEDS, metrics=("accuracy", "macro_f1"), published={}),
    "player": Table(
        variants=player.variants,
        seeds=player.SEEDS,
        metrics=("macro_f1", "accuracy"),
        published={
            (name, "", metric): value[0]
            for name, entry in player.METHODS.items()
            for metric, value in (("macro_f1", entry.f1), ("accuracy", entry.accuracy))
            if value is not None
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One seed of one variant of a table, and the folder of the public tables."""

    table: str
    variant: str
    folder: Path
    seed: int


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The rows of a chunk and its processor seconds, or the text of an error that a person can correct."""

    chunk: Chunk
    rows: tuple[Row, ...] = ()
    processor_seconds: float = 0.0
    refusal: str = ""


def run_chunk(chunk: Chunk) -> Computed:
    """Compute a chunk in this process, on one thread."""
    prepare_arithmetic(1)
    began = time.process_time()
    variant = next(each for each in TABLES[chunk.table].variants() if each.name == chunk.variant)
    try:
        rows = tuple(variant.run(chunk.folder, chunk.seed))
    except OperatorError as refusal:
        return Computed(chunk=chunk, refusal=str(refusal))
    return Computed(chunk=chunk, rows=rows, processor_seconds=time.process_time() - began)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("table", type=click.Choice(sorted(TABLES)))
@click.option(
    "--data",
    "folder",
    envvar="GLOBAL_LAYERS_DATA",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="Folder with the folders heart and covertype. The tables rehearsal and images need no folder.",
)
@click.option("--seeds", default="", help="Seeds to compute, such as 0-100 or 3,5,8. Otherwise the table's own seeds.")
@click.option("--variant", "chosen", multiple=True, help="Compute only this variant. You can repeat the option.")
@click.option("--jobs", default=1, help="Number of processor cores to use.")
@click.option("--results", default=RESULTS, type=click.Path(path_type=Path), help="Folder with the result files.")
@click.option("--figures", "only_figures", is_flag=True, help="Print the figures of the file, without computing.")
def main(
    table: str, folder: Path, seeds: str, chosen: tuple[str, ...], jobs: int, results: Path, only_figures: bool
) -> None:
    """Compute a table of the papers, or its missing part, and print it beside the published figures."""
    definition, path = TABLES[table], results / f"{table}.csv"
    names = [variant.name for variant in definition.variants()]
    if strangers := [name for name in chosen if name not in names]:
        raise click.UsageError(f"No variant {strangers[0]!r}. There are: {', '.join(map(repr, names))}.")
    if not only_figures:
        done = {(row.variant, row.seed) for row in read_rows(path)}
        wanted = seeds_of(seeds) if seeds else list(definition.seeds)
        chunks = [
            Chunk(table=table, variant=variant.name, folder=folder, seed=seed)
            for variant in definition.variants()
            for seed in wanted[: variant.most_seeds]
            if (variant.name, seed) not in done and (not chosen or variant.name in chosen)
        ]
        _compute(chunks, jobs, path)
    click.echo("\n".join(figure_lines(definition, read_rows(path))))


def figure_lines(table: Table, rows: Sequence[Row]) -> list[str]:
    """Return the table in Markdown: a line for each variant and metric, a column for each site and for their mean."""
    sites = sorted({row.site for row in rows})
    lines = [
        "| variant | metric | " + " | ".join([*sites, "mean of sites"]) + " | seeds |",
        "|---" * (len(sites) + 4) + "|",
    ]
    for variant in dict.fromkeys(row.variant for row in rows):
        for metric in table.metrics:
            cells, runs = [], 0
            for site in (*sites, None):
                values = list(by_seed(rows, variant, site, metric).values())
                known = table.published.get((variant, site or "", metric))
                beside = "" if known is None else f" (paper {known:.2f})"
                cells.append(mean_of(values).text() + beside if values else "-")
                runs = max(runs, len(values))
            if runs:
                lines.append(f"| {variant} | {metric} | {' | '.join(cells)} | {runs} |")
    return lines


def _compute(chunks: Sequence[Chunk], jobs: int, path: Path) -> None:
    """Compute chunks on some cores, and add each result to the file when it arrives."""
    if jobs == 1:
        results: Iterator[Computed] = map(run_chunk, chunks)
        _add_all(results, len(chunks), path)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run_chunk, chunk) for chunk in chunks]
        _add_all((done.result() for done in as_completed(waiting)), len(chunks), path)


def _add_all(results: Iterator[Computed], total: int, path: Path) -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    libraries = f"Python {platform.python_version()}, {versions}, {platform.machine()}"
    for number, done in enumerate(results, 1):
        if done.refusal:
            raise click.ClickException(done.refusal)
        add_rows(path, done.rows)
        add_cost(costs_beside(path), done.chunk.variant, 1, done.processor_seconds, libraries)
        click.echo(f"{number} of {total}: {done.chunk.variant}, seed {done.chunk.seed}", err=True)


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
