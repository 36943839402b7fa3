"""Compares the default recipe of Global Layers with the models that a statistician would use.

    python -m benchmarks.experiments.default_recipe --data FOLDER

`RECIPE` was chosen only by training and validation rows, and fixed before any test figure was computed.
results/2026-11-21-default-recipe.md lists the candidates. The command computes, for the heart experiment's seeds 0 to
100, with and without Faisalabad's leaking column `time`:

* `federated`: the three sites with the recipe;
* `alone`: each site with the recipe and method local, with the same baseline;
* `placebo`: each site with two copies of itself, as in the deployment's placebo;
* `expert`: only the site's own baseline (a linear model and a forest, joined).

Results are stored in a CSV file. Results that it already has are not computed again. `simple.py` computes the other
simple models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from benchmarks.experiments.data.heart import FILES, SEEDS, heart
from benchmarks.experiments.data.recipes import Default
from benchmarks.experiments.data.sources import Sites, data_option
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.simple import RESULTS as SIMPLE_RESULTS
from benchmarks.experiments.simple import Result, read_results, write_results
from benchmarks.experiments.stacks import federate_stack
from benchmarks.experiments.statistics import mean_of
from protos.plan.plan import Plan
from site_agent.desk.comparison.evaluation import measure
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.probabilities import probabilities
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.soft_target_training import Predictions, SoftTargets, soft_targets_of

RESULTS: Final = Path(__file__).parents[1] / "results" / "default-recipe.csv"
MODELS: Final = ("federated", "alone", "placebo", "expert")
# A statistician's three models, then the linear model with a better encoding.
SIMPLE: Final = ("logistic-regression", "random-forest", "gradient-boosting")
ENCODED: Final = ("logistic-regression-one-hot", "logistic-regression-piecewise")
BEST: Final = "best of the three"
_DATA: Final = Default(keeps_yes_or_no=True)
_COPIES: Final = 2  # copies beside the site itself, so that there are three members as in the true federation
_AT_ONCE: Final = 25


@dataclass(frozen=True, kw_only=True)
class DefaultRecipe:
    """The encoding and the plan's settings. Every value is a key of a plan.

    Attributes:
        data: numbers z-scored, missing ones the median and a flag; yes or no z-scored; other codes one-hot.
        latent, dropout, input_dropout: of the network, which has no transformer and no entities but a
            private linear path.
        target_share, path_start, result_share: of the site's own baseline.
        epochs, batches_per_epoch, learning_rate, weight_decay: as in the paper's experiment.
    """

    data: Default = _DATA
    latent: int = 32
    dropout: float = 0.3
    input_dropout: float = 0.2
    target_share: float = 0.5
    path_start: float = 0.5
    result_share: float = 0.5
    epochs: int = 10
    batches_per_epoch: int = 5
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4

    def plan(self, sites: Iterable[str], seed: int, method: str = "global-layers") -> Plan:
        """Return the plan of the recipe for these sites. With the method local, each site trains alone."""
        keys: dict[str, Any] = {"transformer_blocks": 0, "entities": False, "linear_path": True}
        return experiment_plan(
            sites,
            seed,
            method={"name": method},
            architecture={
                "name": "global-layers-network",
                "latent": self.latent,
                "gate": False,
                "input_normalisation": False,
                "dropout": self.dropout,
                "input_dropout": self.input_dropout,
            }
            | keys,
            schedule={
                "aggregate": "every-epoch",
                "epochs": self.epochs,
                "batches_per_epoch": self.batches_per_epoch,
            },
            optimiser={"name": "adamw", "learning_rate": self.learning_rate, "weight_decay": self.weight_decay},
            weighting={"name": "equal"},
            checkpoint="local",
            expert={
                "target_share": self.target_share,
                "path_start": self.path_start,
                "result_share": self.result_share,
            },
        )


RECIPE: Final = DefaultRecipe()


class Trained:
    """Trains the recipe for several seeds at once. For each seed, each site's baseline is fitted once."""

    def __init__(self, sites: Mapping[int, Sites], recipe: DefaultRecipe = RECIPE) -> None:
        """Store the data. `sites` has for each seed the data sets of all sites. Their sizes are equal for all seeds."""
        self._recipe, self._sites, self._seeds = recipe, sites, list(sites)
        self._names = list(next(iter(sites.values())))
        self._soft_targets = {name: [self._soft_targets_of(name, seed) for seed in self._seeds] for name in self._names}

    def federated(self) -> dict[str, Predictions]:
        """Every site's test outputs, float32 (seeds, test rows, 1)."""
        return self._trained(self._names, "global-layers")

    def alone(self, name: str) -> Predictions:
        """One site's model, trained without the others."""
        return self._trained([name], "local")[name]

    def placebo(self, name: str) -> Predictions:
        """One site's model, trained among copies of itself."""
        copies = [f"{name}-copy-{number}" for number in range(1, _COPIES + 1)]
        return self._trained([name, *copies], "global-layers", of=name)[name]

    def baseline(self, name: str) -> Predictions:
        """The predictions of the site's baseline alone."""
        return np.stack([soft_targets.test for soft_targets in self._soft_targets[name]])

    def _trained(self, members: Sequence[str], method: str, of: str | None = None) -> dict[str, Predictions]:
        plans = [self._recipe.plan(members, seed, method) for seed in self._seeds]
        owners = {member: of or member for member in members}
        data = {member: [self._sites[seed][owner] for seed in self._seeds] for member, owner in owners.items()}
        soft_targets = {member: self._soft_targets[owner] for member, owner in owners.items()}
        return {name: outcome.test_outputs for name, outcome in federate_stack(plans, data, soft_targets).items()}

    def _soft_targets_of(self, name: str, seed: int) -> SoftTargets:
        found = soft_targets_of(
            self._recipe.plan([name], seed, "local"), self._sites[seed][name], Seeds.published(seed, name)
        )
        assert found is not None
        return found


def results_of(folder: Path, seeds: Sequence[int], *, without_time: bool) -> Iterator[Result]:
    """Yield the results of every model at every site.

    Without `time`, only Faisalabad's models and the federation differ.
    """
    data = {seed: heart(folder, seed, RECIPE.data, without_time=without_time) for seed in seeds}
    trained = Trained(data)
    outputs = {("federated", name): found for name, found in trained.federated().items()}
    for name in ["faisalabad"] if without_time else list(FILES):
        outputs |= {
            ("alone", name): trained.alone(name),
            ("placebo", name): trained.placebo(name),
            ("expert", name): trained.baseline(name),
        }
    for (model, name), found in outputs.items():
        for seed, of_seed in zip(seeds, found, strict=True):
            yield _result(data[seed][name], of_seed, site=name, without_time=without_time, model=model, seed=seed)


def _result(dataset: Dataset, outputs: Predictions, *, site: str, without_time: bool, model: str, seed: int) -> Result:
    scores = probabilities(dataset.task, outputs)
    metrics = measure(dataset.task, dataset.test.targets, scores, dataset.classes)
    auroc, auprc, balanced = (metrics[name] for name in ("auroc", "auprc", "balanced_accuracy"))
    assert auroc is not None
    assert auprc is not None
    assert balanced is not None
    return Result(
        site=site,
        without_time=without_time,
        model=model,
        seed=seed,
        auroc=round(auroc, 6),
        auprc=round(auprc, 6),
        balanced_accuracy=round(balanced, 6),
    )


def pages(results: Iterable[Result], simple: Iterable[Result], metric: str = "auroc") -> Iterator[str]:
    """Two Markdown tables in percent: means, and paired differences of the federated model with 95% intervals.

    Args:
        results: of this command.
        simple: of `simple.py`, of which the seeds of both are compared.
        metric: auroc, auprc or balanced_accuracy.
    """
    found: dict[tuple[str, bool, str], dict[int, float]] = {}
    for result in (*results, *simple):
        found.setdefault((result.site, result.without_time, result.model), {})[result.seed] = getattr(result, metric)
    tables = [_Column(found, site, without_time) for without_time in (False, True) for site in FILES]
    head = " | ".join(table.title for table in tables)
    yield f"| {metric} | {head} |"
    yield "|---" * (len(tables) + 1) + "|"
    for model in (*MODELS, *SIMPLE, *ENCODED):
        yield f"| {model} | " + " | ".join(f"{100 * table.mean(model):.2f}" for table in tables) + " |"
    yield ""
    yield f"| federated minus | {head} |"
    yield "|---" * (len(tables) + 1) + "|"
    for model in (BEST, *SIMPLE, *ENCODED, *MODELS[1:]):
        yield f"| {model} | " + " | ".join(table.difference(model) for table in tables) + " |"


@dataclass(frozen=True)
class _Column:
    """One column of the tables, for one site.

    Removing Faisalabad's column does not change the other sites' own models.
    """

    found: Mapping[tuple[str, bool, str], Mapping[int, float]]
    site: str
    without_time: bool

    @property
    def title(self) -> str:
        """Return the name that the tables show."""
        return f"{self.site}{', without time' if self.without_time else ''}"

    def mean(self, model: str) -> float:
        """Return the mean over the seeds."""
        return float(np.mean(list(self._of(model).values())))

    def difference(self, model: str) -> str:
        """Return the federated model minus this model over their common seeds, as text such as `+0.12 ± 0.10`."""
        if model == BEST:
            model = max(SIMPLE, key=self.mean)
        first, second = self._of("federated"), self._of(model)
        mean = mean_of([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
        return f"{100 * mean.value:+.2f} ± {100 * mean.half_width:.2f}"

    def _of(self, model: str) -> Mapping[int, float]:
        own = self.found.get((self.site, self.without_time, model))
        return own if own is not None else self.found[self.site, False, model]


@click.command()
@data_option
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS, show_default="benchmarks/")
@click.option("--seeds", type=click.IntRange(2, len(SEEDS)), default=len(SEEDS), show_default=True, help="0 to N - 1.")
def main(folder: Path, results: Path, seeds: int) -> None:
    """Compute the results that the file lacks, then print all results beside those of the simple models.

    Example: python -m benchmarks.experiments.default_recipe --data ../data
    """
    known = read_results(results)
    chunks = [
        (range(first, min(first + _AT_ONCE, seeds)), without_time)
        for first in range(0, seeds, _AT_ONCE)
        for without_time in (False, True)
    ]
    there = {(result.seed, result.without_time) for result in known}
    todo = [(of, without) for of, without in chunks if any((seed, without) not in there for seed in of)]
    with click.progressbar(todo, label="seeds") as batches:
        for of, without_time in batches:
            known = [each for each in known if each.without_time != without_time or each.seed not in of]
            known += results_of(folder, of, without_time=without_time)
            write_results(results, known)
    compared = [result for result in known if result.seed < seeds]
    simple = [result for result in read_results(SIMPLE_RESULTS) if result.seed < seeds]
    for metric in ("auroc", "auprc", "balanced_accuracy"):
        for line in pages(compared, simple, metric):
            click.echo(line)
        click.echo()


if __name__ == "__main__":
    main()
