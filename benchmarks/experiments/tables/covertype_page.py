"""The page and the plot of Global Layers on covertype."""

from __future__ import annotations

from pathlib import Path

from benchmarks.experiments.data.covertype import AREAS
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.tables import covertype
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

_METRICS = (
    ("auroc", "AUROC over the classes present, on probabilities, percent"),
    ("auroc_of_authors", "AUROC as the authors compute it (raw logits, an absent class counts 0.5), percent"),
    ("balanced_accuracy", "Balanced accuracy, percent; the paper calls it accuracy"),
    ("auprc", "AUPRC over the classes present, percent"),
)


def render_covertype(rows: list[Row], path: Path) -> None:
    """Validation rows in place of test rows, so published figures stand beside but do not compare."""
    lines = begin_page("Global Layers on covertype: not comparable with published figures", "covertype", path)
    lines += [
        "The published test rows are not available. These figures are of half of the published validation rows, which "
        f"took part in nothing; classes are balanced in them. {covertype.EPOCHS} epochs where the paper has "
        f"{covertype.PUBLISHED_EPOCHS}. Encoded as in the authors' experiment: eleven columns, the wilderness area "
        "among them although it is constant at a site, because the published counts of parameters need it.",
        "",
    ]
    for metric, title in _METRICS:
        lines += [f"## {title}", "", *_metric(rows, metric)]
    lines += ["## global-layers minus local on the same seeds, points", "", *_differences(rows)]
    write_page(path, lines)
    _plot(rows, path)


def _metric(rows: list[Row], metric: str) -> list[str]:
    body = []
    for name in covertype.METHODS:
        found = [list(by_seed(rows, name, area, metric).values()) for area in AREAS]
        if all(found):
            body.append([name, *(mean_of(values).text() for values in found), str(len(found[0]))])
    place = {"auroc": 0, "auroc_of_authors": 0, "balanced_accuracy": 1}.get(metric)
    if place is not None:
        published = [f"{covertype.PUBLISHED[area][place]:.2f}" for area in AREAS]
        body.append(["paper, global-layers, other rows", *published, "21"])
    return table_lines(["method", *AREAS, "seeds"], body)


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
