"""Writes the page and the plot of Global Layers on covertype."""

from __future__ import annotations

from pathlib import Path

from benchmarks.experiments.data.covertype import AREAS
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.experiments.tables import covertype
from benchmarks.experiments.tables.markdown import begin_page, seconds_for, table_lines, write_page
from benchmarks.experiments.variants import Row

_METRICS = (
    ("auroc", "AUROC over the classes present, on probabilities, percent"),
    ("auroc_of_authors", "AUROC as the authors compute it (raw logits, an absent class counts 0.5), percent"),
    ("balanced_accuracy", "Balanced accuracy, percent; the paper calls it accuracy"),
    ("auprc", "AUPRC over the classes present, percent"),
    ("auprc_of_authors", "AUPRC as the authors compute it (an absent class counts 0), percent"),
)


_OTHERS = (
    "## The paper's other tables and figures",
    "",
    "* The published test rows in table 1 (565,892 of 581,012) are not available here. Only the 15,120 rows for "
    "training and validation are.",
    "* Table 8: a [test](../../../tests/protos/test_architecture.py) compares the number of shared "
    "and of all parameters with the published numbers.",
    "* The heart rows of all tables are on the [heart page](heart.md), with what it says on the other tables and "
    "figures.",
    "",
)


def render_covertype(rows: list[Row], path: Path) -> None:
    """Write the page.

    Models are tested on validation rows, so the published values are shown but cannot be compared.
    """
    lines = begin_page("Global Layers on covertype: not comparable with published figures", "covertype", path)
    lines += [
        "The published test rows are not available. These figures are of half of the published validation rows, which "
        f"took part in nothing; classes are balanced in them. {covertype.EPOCHS} epochs where the paper has "
        f"{covertype.PUBLISHED_EPOCHS}. Encoded as in the authors' experiment: eleven columns, the wilderness area "
        "among them although it is constant at a site, because the published counts of parameters need it. FedAvg has "
        "equal weights and shares all parameters. Centralized has all rows in one place, encoded together.",
        "",
        "The paper's FedAvg has all seven classes at every site, and its local networks and Global Layers have the "
        "site's classes only. So the published AUROC and AUPRC of FedAvg belong beside the figures *as the authors "
        "compute it*, and those of the other two beside the figures *over the classes present*. "
        "[Why FedAvg is published so low](covertype-fedavg.md) has each step.",
        "",
        *_whole_cost(path),
    ]
    for metric, title in _METRICS:
        lines += [f"## {title}", "", *_metric(rows, metric)]
    lines += ["## global-layers minus local on the same seeds, points", "", *_differences(rows)]
    write_page(path, [*lines, *_OTHERS])
    _plot(rows, path)


def _whole_cost(path: Path) -> list[str]:
    """The estimated cost of the paper's epochs and seeds, from the runs made here."""
    costs, methods = read_costs(costs_beside(path)), (*covertype.METHODS, covertype.CENTRAL)
    spent = [seconds_for(costs, name) for name in methods]
    seeds = sum(count for _, count in spent)
    if not seeds:
        return []
    an_epoch = sum(seconds for seconds, _ in spent) / seeds / covertype.EPOCHS
    hours = len(methods) * an_epoch * covertype.PUBLISHED_EPOCHS * covertype.PUBLISHED_SEEDS / 3600
    return [
        f"All {covertype.PUBLISHED_EPOCHS} epochs of {covertype.PUBLISHED_SEEDS} seeds and {len(methods)} methods "
        f"would cost about {hours:.1f} processor hours on one thread.",
        "",
    ]


def _metric(rows: list[Row], metric: str) -> list[str]:
    place = {"auroc": 0, "auroc_of_authors": 0, "balanced_accuracy": 1, "auprc": 2, "auprc_of_authors": 2}[metric]
    body = []
    for name in (*covertype.METHODS, covertype.CENTRAL):
        known = covertype.PUBLISHED[name]
        found = {site: list(by_seed(rows, name, site, metric).values()) for site in known}
        runs = max(map(len, found.values()))
        cells = [mean_of(found[site]).text() if found.get(site) else "-" for site in (*AREAS, "central")]
        width = covertype.INTERVALS[name]
        published = [
            f"{known[site][place]:.2f} ± {width[site][place]:.2f}" if site in known else "-"
            for site in (*AREAS, "central")
        ]
        body += [[name, *cells, str(runs)], [f"paper, {name}, other rows", *published, str(covertype.PUBLISHED_SEEDS)]]
    return table_lines(["method", *AREAS, "all areas", "seeds"], body)


def _differences(rows: list[Row]) -> list[str]:
    body = []
    for metric, _ in _METRICS:
        cells = [metric]
        for area in AREAS:
            mine, alone = (by_seed(rows, name, area, metric) for name in ("global-layers", "local"))
            found = difference(mine, alone)
            cells.append(found.text() if found else "-")
        body.append(cells)
    return table_lines(["metric", *AREAS], body)


def _plot(rows: list[Row], path: Path) -> None:
    panels: dict[str, list[Dot]] = {}
    for area in AREAS:
        for name in covertype.METHODS:
            values = [100 * value for value in by_seed(rows, name, area, "auroc").values()]
            if values:
                panels.setdefault(area, []).append(Dot(name=name, mean=mean_of(values)))
    if len(panels) == len(AREAS) and len({len(dots) for dots in panels.values()}) == 1:
        title = f"Covertype, validation rows, {covertype.EPOCHS} epochs; not comparable with the paper"
        plot_dots(path.with_suffix(".svg"), panels, title=title, axis="AUROC, percent")
