"""Compares plans whose updates have 16 bits with the same plans at 32 bits:

`python -m benchmarks.short_wire --source digits --seeds 8`.

`heart` is PLayer-FL's table of the four UCI centres, `fed-heart` that of FENDA-FL, both with row weights. `digits` are
scikit-learn's images at five sites, with row weights far below 1. A line is a method with a number of bits:
accuracy and loss on the test rows of the sites, and the difference from 32 bits with its standard error over seeds. A
run in which a site clips more than the plan allows would end with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt

from benchmarks.experiments.data.dealt_images import dealt_images
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.uci_centres import fed_heart, player_heart
from benchmarks.experiments.tables.fed_heart import ENTRIES as FED_HEART_METHODS
from benchmarks.experiments.tables.fed_heart import fed_heart_plan
from benchmarks.experiments.tables.images import METHODS as IMAGE_METHODS
from benchmarks.experiments.tables.images import images_plan
from benchmarks.experiments.tables.player import METHODS as HEART_METHODS
from benchmarks.experiments.tables.player import player_plan
from global_layers.one_process import run_rounds
from protos.plan.network_plan import NetworkPlan
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study

BITS: Final = (32, 16)
_METHODS: Final = {"heart": HEART_METHODS, "fed-heart": FED_HEART_METHODS, "digits": IMAGE_METHODS}
Floats = npt.NDArray[np.float64]


@click.command()
@click.option("--source", type=click.Choice([*_METHODS]), required=True)
@click.option("--seeds", type=click.IntRange(2, 100), default=8, show_default=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The folder of public tables.")
@click.option("--clipping-range", type=float, default=8.0, show_default=True)
@click.argument("methods", nargs=-1)
def main(source: str, seeds: int, data: Path | None, clipping_range: float, methods: tuple[str, ...]) -> None:
    """Print the table of a source, by default with all of its methods but `local`."""
    for method in methods or [name for name in _METHODS[source] if not name.startswith(("local", "pfedla", "siloed"))]:
        found = {}
        for bits in BITS:
            figures = list[Floats]()
            for seed in range(seeds):
                sites, plan = _of_source(source, data, seed, method)
                masking = {"required": False, "bits": bits, "clipping_range": clipping_range}
                changed = plan.model_copy(update={"masking": type(plan.masking)(**masking)})
                figures.append(np.mean(list(_figures(changed, sites)), axis=0))
            found[bits] = np.array(figures)
            click.echo(_line(method, bits, found[bits], found[32]))


def _of_source(source: str, data: Path | None, seed: int, method: str) -> tuple[Sites, NetworkPlan]:
    if source == "digits":
        sites = dealt_images("digits", seed)
        return sites, images_plan("digits", sites, seed, method)
    assert data is not None
    if source == "heart":
        sites = player_heart(data)
        return sites, player_plan(sites, seed, method)
    sites = fed_heart(data, seed)
    return sites, fed_heart_plan(sites, seed, FED_HEART_METHODS[method], "local")


def _figures(plan: NetworkPlan, sites: Sites) -> Iterator[tuple[float, float]]:
    """Yield the accuracy and the log loss of each site's chosen model."""
    studies = {name: Study(plan, rows, seeds=Seeds.published(plan.seed, name)) for name, rows in sites.items()}
    run_rounds(plan, studies)
    for name, study in studies.items():
        yield _scores(study.conclude().test_outputs, sites[name].test.targets)


def _scores(outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> tuple[float, float]:
    logits = outputs.astype(np.float64)
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    chosen = targets.astype(np.int64).reshape(-1)
    logits -= logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(chosen.size), chosen]
    return float(np.mean(logits.argmax(axis=1) == chosen)), float(losses.mean())


def _line(method: str, bits: int, figures: Floats, whole: Floats) -> str:
    accuracy, loss = figures.mean(axis=0)
    change, error = (figures - whole).mean(axis=0), (figures - whole).std(axis=0, ddof=1) / len(figures) ** 0.5
    facts: Mapping[str, str] = {
        "accuracy": f"{accuracy:.4f}",
        "minus_32": f"{change[0]:+.4f}±{error[0]:.4f}",
        "loss": f"{loss:.4f}",
        "loss_minus_32": f"{change[1]:+.4f}±{error[1]:.4f}",
    }
    return f"{method:20} bits={bits:2} " + " ".join(f"{key}={value}" for key, value in facts.items())


if __name__ == "__main__":
    main()
