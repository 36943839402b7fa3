"""The models that a hospital's statistician would use, on the heart experiment's splits.

    python -m benchmarks.experiments.simple --data FOLDER

Logistic regression, a random forest and gradient boosting, trained on a site's training rows alone and tested on its
test rows. Validation rows are not used. Compare every federated result with these. A CSV file has one line for each
site, model and seed. Lines that it already has are not computed again, so an interrupted run continues. On one machine
its lines do not depend on interruptions. scikit-learn's forest and boosting promise no more.

The encodings are those that reproduce the expected figures (91.64, 77.60, 87.03):

* `logistic-regression`: `Statistician`, C = 0.1;
* `random-forest`, 500 trees with leaves of at least 3 rows, and `gradient-boosting`, scikit-learn's histogram boosting
  with default settings. Each feature has one column, and a missing value is -1 (`Paper`).

Two more models show the effect of a better encoding on a linear model: `logistic-regression-one-hot` (`Default`) and
`logistic-regression-piecewise` (the same, and every number is piecewise linear).
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, TypeAlias, assert_never

import click
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.experiments.data.heart import FILES, SEEDS, heart_site
from benchmarks.experiments.data.recipes import ColumnsOf, Default, Paper, Recipe, Statistician
from benchmarks.experiments.data.sources import data_option
from site_agent.desk.comparison.evaluation import Scores, measure
from site_agent.trainer.data.dataset import Dataset

Model: TypeAlias = Literal[
    "logistic-regression",
    "logistic-regression-one-hot",
    "logistic-regression-piecewise",
    "random-forest",
    "gradient-boosting",
]

MODELS: Final[tuple[Model, ...]] = (
    "logistic-regression",
    "logistic-regression-one-hot",
    "logistic-regression-piecewise",
    "random-forest",
    "gradient-boosting",
)
# The site, and whether its column that reveals the outcome is removed.
TABLES: Final = (("cleveland", False), ("south-africa", False), ("faisalabad", False), ("faisalabad", True))
RESULTS: Final = Path(__file__).parents[1] / "results" / "heart-simple-models.csv"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one model at one site with one seed. Metrics are fractions, with classes cut at probability 0.5."""

    site: str
    without_time: bool
    model: str
    seed: int
    auroc: float
    auprc: float
    balanced_accuracy: float


def recipe_of(model: Model) -> Recipe:
    """Return the recipe by which a model's columns are encoded."""
    match model:
        case "logistic-regression":
            return Statistician()
        case "logistic-regression-one-hot":
            return Default()
        case "logistic-regression-piecewise":
            return Default(piecewise_linear=tuple(ColumnsOf(site=site) for site in FILES))
        case "random-forest" | "gradient-boosting":
            return Paper()
        case _:
            assert_never(model)


def probabilities_of(model: Model, dataset: Dataset, seed: int) -> Scores:
    """Fit a model to the training rows. Return the probability of class 1 for each test row, shape (test rows,)."""
    match model:
        case "logistic-regression" | "logistic-regression-one-hot" | "logistic-regression-piecewise":
            fitted = LogisticRegression(C=0.1, max_iter=10_000)
        case "random-forest":
            fitted = RandomForestClassifier(500, min_samples_leaf=3, random_state=seed, n_jobs=1)
        case "gradient-boosting":
            fitted = HistGradientBoostingClassifier(random_state=seed)
        case _:
            assert_never(model)
    fitted.fit(dataset.training.features, dataset.training.targets)
    return np.asarray(fitted.predict_proba(dataset.test.features)[:, 1], dtype=np.float64)


def result_of(folder: Path, site: str, model: Model, seed: int, *, without_time: bool) -> Result:
    """Train and test one model at one heart site."""
    dataset = heart_site(folder, site, seed, recipe_of(model), without_time=without_time)
    scores = probabilities_of(model, dataset, seed)
    metrics = measure(dataset.task, dataset.test.targets, scores, dataset.classes)

    def metric(name: str) -> float:
        value = metrics[name]
        if value is None:
            raise ValueError(f"{site}, seed {seed}: all test rows are of one class")
        return round(value, 6)

    return Result(
        site=site,
        without_time=without_time,
        model=model,
        seed=seed,
        auroc=metric("auroc"),
        auprc=metric("auprc"),
        balanced_accuracy=metric("balanced_accuracy"),
    )


def read_results(path: Path) -> list[Result]:
    """Return the stored results; empty if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_parsed(row) for row in csv.DictReader(file)]


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Replace the file as a whole, its lines sorted by site, model and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Result))
    in_order = sorted(results, key=lambda result: (result.site, result.without_time, result.model, result.seed))
    writer.writerows(astuple(result) for result in in_order)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text.getvalue())
    partial.replace(path)


def missing_results(
    folder: Path, known: Iterable[Result], seeds: Iterable[int], models: Iterable[Model]
) -> Iterator[list[Result]]:
    """Yield the models without a result, for each seed that lacks results."""
    there = {(result.site, result.without_time, result.model, result.seed) for result in known}
    models = tuple(models)
    for seed in seeds:
        lacking = [
            (site, without_time, model)
            for site, without_time in TABLES
            for model in models
            if (site, without_time, model, seed) not in there
        ]
        if lacking:
            yield [
                result_of(folder, site, model, seed, without_time=without_time) for site, without_time, model in lacking
            ]


@click.command()
@data_option
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS, show_default="benchmarks/")
@click.option("--seeds", type=click.IntRange(1, len(SEEDS)), default=len(SEEDS), show_default=True, help="0 to N - 1.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS)
def main(folder: Path, results: Path, seeds: int, models: tuple[Model, ...]) -> None:
    """Compute the results that the file lacks, then print means over the seeds.

    Example: python -m benchmarks.experiments.simple --data ../data
    """
    known = read_results(results)
    todo = missing_results(folder, known, range(seeds), models)
    with click.progressbar(todo, length=seeds, label="seeds") as batches:
        for batch in batches:
            known += batch
            write_results(results, known)
    for line in summary([result for result in known if result.seed < seeds]):
        click.echo(line)


def summary(results: Iterable[Result]) -> Iterator[str]:
    """Yield a table of means over the seeds in percent, then the areas under the curve in one line for scripts."""
    of_table: dict[tuple[str, bool, str], list[Result]] = {}
    for result in results:
        of_table.setdefault((result.site, result.without_time, result.model), []).append(result)
    closing = []
    yield f"{'':27}{'':31}{'seeds':>5}  {'AUROC':>5}  {'AUPRC':>5}  balanced accuracy"
    for (site, without_time), model in itertools.product(TABLES, MODELS):
        own = of_table.get((site, without_time, model))
        if not own:
            continue
        table = f"{site} without time" if without_time else site
        auroc, auprc, balanced_accuracy = (
            100 * fmean(values)
            for values in zip(*((each.auroc, each.auprc, each.balanced_accuracy) for each in own), strict=True)
        )
        yield f"{table:27}{model:31}{len(own):5}  {auroc:5.2f}  {auprc:5.2f}  {balanced_accuracy:5.2f}"
        closing.append(f"{table}_{model}={auroc:.2f}".replace(" ", "-"))
    yield " ".join(closing)


def _parsed(row: dict[str, str]) -> Result:
    return Result(
        site=row["site"],
        without_time=row["without_time"] == "True",
        model=row["model"],
        seed=int(row["seed"]),
        auroc=float(row["auroc"]),
        auprc=float(row["auprc"]),
        balanced_accuracy=float(row["balanced_accuracy"]),
    )


if __name__ == "__main__":
    main()
