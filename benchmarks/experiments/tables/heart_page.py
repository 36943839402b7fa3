"""Writes the page and the plot of Global Layers' heart table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.experiments.data.heart import FILES
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.simple import RESULTS as SIMPLE
from benchmarks.experiments.statistics import Mean, by_seed, difference, mean_of
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.experiments.tables import heart
from benchmarks.experiments.tables.markdown import begin_page, seconds_for, table_lines, write_page
from benchmarks.experiments.variants import Row

# The authors' three methods over 101 seeds on one 2.5 GHz core, without imports.
AUTHORS_SECONDS: Final = 3200.0
TOLERANCE: Final = 0.3
DEFAULT: Final = SIMPLE.with_name("default-recipe.csv")

_METRICS: Final = (
    ("auroc", "AUROC, percent"),
    ("auprc", "AUPRC, percent"),
    ("balanced_accuracy_at_logit_half", "Balanced accuracy at the authors' threshold (logit 0.5), percent"),
    ("balanced_accuracy", "Balanced accuracy at probability 0.5, percent"),
)
_PAIRS: Final = (
    ("global-layers, authors", "local, authors"),
    ("global-layers, authors", "placebo, authors"),
    ("placebo, authors", "local, authors"),
    ("global-layers, authors", "global-layers, authors, equal start"),
    ("global-layers, authors, equal start", "local, authors"),
    ("global-layers, authors, equal start", "placebo, authors, equal start"),
    ("placebo, authors, equal start", "local, authors"),
    ("global-layers, authors", "fedavg, authors"),
    ("global-layers, authors", "fedavg, aligned"),
    ("global-layers, authors, every batch", "global-layers, authors, equal start"),
    ("global-layers, paper", "local, paper"),
    ("global-layers, declared", "local, declared"),
)
_OTHERS: Final = (
    "## The paper's other tables and figures",
    "",
    "* Tables 2 and 15 to 17: the tables above have their heart rows. Their other rows are on the "
    "[covertype page](covertype.md).",
    "* Table 1: the same rows train, validate and test here. A [test](../../../tests/benchmarks/experiments/data/"
    "test_heart.py) compares their numbers.",
    "* Tables 8 and 9: a [test](../../../tests/protos/test_architecture.py) compares the number of "
    "shared and of all parameters with the published numbers.",
    "* Tables 3 to 7 and 10 to 14 and figures 1 to 3 have no results: columns, classes, settings, sources, and "
    "drawings of the network. The table above shows where the settings are ambiguous.",
    "",
)
_READINGS: Final = Path(__file__).with_name("heart_readings.md")


def render_heart(rows: list[Row], path: Path) -> None:
    """Write the page of Global Layers' heart table."""
    present = [name for name in heart.variant_names() if any(row.variant == name for row in rows)]
    lines = begin_page("Heart: three hospitals with other columns, patients and outcomes", "heart", path)
    lines += _targets(rows, path)
    for metric, title in _METRICS:
        lines += [f"## {title}", "", *_metric(rows, present, metric)]
    lines += ["## Differences of AUROC on the same seeds, points", "", *_differences(rows, present)]
    lines += ["## Beside them on the same seeds: AUROC, percent", "", *_beside(SIMPLE, DEFAULT)]
    write_page(path, [*lines, _READINGS.read_text().rstrip() + "\n", *_OTHERS])
    _plot(rows, present, path)


def _targets(rows: list[Row], path: Path) -> list[str]:
    """Return lines that show whether the target values of this project are reached."""
    lines = ["## Targets", ""]
    for site in FILES:
        found = _mean(rows, "global-layers, authors", site, "auroc")
        gain = _difference(rows, "global-layers, authors", "local, authors", site)
        if found is None or gain is None:
            continue
        published = heart.PUBLISHED["global-layers, authors"][site][0]
        off = 100 * found.value - published
        lines.append(
            f"* {site}: {100 * found.value:.2f} AUROC over {found.runs} seeds, {off:+.2f} from the published "
            f"{published:.2f} ({'within' if abs(off) <= TOLERANCE else 'not within'} {TOLERANCE}); minus local "
            f"{gain.text()} ({'above 0' if gain.value > gain.half_width else 'not clearly above 0'})."
        )
    costs = read_costs(costs_beside(path))
    spent = {name: seconds_for(costs, name) for name in ("local, authors", "fedavg, authors", "global-layers, authors")}
    if all(seeds for _, seeds in spent.values()):
        a_seed = {name: seconds / seeds for name, (seconds, seeds) in spent.items()}
        total = 101 * sum(a_seed.values())
        each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in a_seed.items())
        lines.append(
            f"* Processor seconds for 101 seeds of the three methods: {total:,.0f}, {total / AUTHORS_SECONDS:.3f} of "
            f"the authors' {AUTHORS_SECONDS:,.0f} (a tenth would be {AUTHORS_SECONDS / 10:.0f}). A seed: {each}. "
            + ("Met." if total <= AUTHORS_SECONDS / 10 else "Missed: FedAvg's attention runs over 31 x 31 columns.")
        )
        lines.append(
            "* The default recipe against the best of three simple models, paired, is in the "
            "[recipe's page](../2026-11-21-default-recipe.md); at South Africa it is missed."
        )
    return [*lines, ""]


def _metric(rows: list[Row], present: Sequence[str], metric: str) -> list[str]:
    body = []
    for variant in present:
        cells, runs = [variant], 0
        for site in FILES:
            mean, known = _mean(rows, variant, site, metric), _published(variant, site, metric)
            beside = "" if known is None else f" (paper {known:.2f} ± {_interval(variant, site, metric):.2f})"
            cells.append(mean.text() + beside if mean else "-")
            runs = max(runs, mean.runs if mean else 0)
        body.append([*cells, str(runs)])
    return table_lines(["variant", *FILES, "seeds"], body)


def _differences(rows: list[Row], present: Sequence[str]) -> list[str]:
    body = []
    for first, second in _PAIRS:
        if first in present and second in present:
            found = [_difference(rows, first, second, site) for site in FILES]
            runs = max((mean.runs for mean in found if mean), default=0)
            body.append([f"{first} minus {second}", *(mean.text() if mean else "-" for mean in found), str(runs)])
    return table_lines(["difference", *FILES, "seeds"], body)


def _beside(simple: Path, default: Path) -> list[str]:
    """Return lines with the results of the simple models and of the default recipe, which other commands compute."""
    body = []
    for kind, path in (("", simple), ("default recipe, ", default)):
        found = _areas(path)
        for model in dict.fromkeys(model for model, _, _ in found):
            columns = [found.get((model, site, False)) for site in FILES] + [found.get((model, "faisalabad", True))]
            body.append([f"{kind}{model}", *(mean_of(values).text() if values else "-" for values in columns)])
    return table_lines(["model", *FILES, "faisalabad without `time`"], body)


def _areas(path: Path) -> dict[tuple[str, str, bool], list[float]]:
    """Return AUROCs by model, by site, and by whether the column that reveals the outcome is removed."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                key = line["model"], line["site"], line["without_time"] == "True"
                found.setdefault(key, []).append(float(line["auroc"]))
    return found


def _plot(rows: list[Row], present: Sequence[str], path: Path) -> None:
    panels = {}
    for site in FILES:
        dots = []
        for variant in present:
            mean, known = _mean(rows, variant, site, "auroc"), _published(variant, site, "auroc")
            if mean:
                percent = Mean(100 * mean.value, 100 * mean.half_width, mean.runs)
                dots.append(Dot(name=variant, mean=percent, published=known))
        panels[site] = dots
    if len({len(dots) for dots in panels.values()}) == 1 and all(panels.values()):
        title = "Heart: means over seeds, each hospital with its own columns and patients"
        plot_dots(path.with_suffix(".svg"), panels, title=title, axis="AUROC, percent")


def _mean(rows: list[Row], variant: str, site: str, metric: str) -> Mean | None:
    found = list(by_seed(rows, variant, site, metric).values())
    return mean_of(found) if found else None


def _difference(rows: list[Row], first: str, second: str, site: str) -> Mean | None:
    return difference(by_seed(rows, first, site, "auroc"), by_seed(rows, second, site, "auroc"))


def _interval(variant: str, site: str, metric: str) -> float:
    return heart.INTERVALS[variant][site][heart.METRICS.index(metric)]


def _published(variant: str, site: str, metric: str) -> float | None:
    if metric not in heart.METRICS or variant not in heart.PUBLISHED:
        return None
    return heart.PUBLISHED[variant][site][heart.METRICS.index(metric)]
