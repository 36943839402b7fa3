"""The page and the plot of the study "should I join?"."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.experiments.plots import Curve, plot_curves
from benchmarks.experiments.statistics import Mean, difference, mean_of
from benchmarks.experiments.tables import join
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

# By site and seed.
Scores: TypeAlias = dict[tuple[str, int], float]
AXES: Final = (join.ROWS, join.SITES, join.CLASSES, join.OVERLAP)


def render_join(rows: list[Row], path: Path) -> None:
    """Federated minus alone and minus placebo, setting by setting."""
    scores = _scores(rows)
    lines = begin_page("Should I join?", "join", path)
    lines += [
        "Differences of AUROC in points at equal epochs, means over sites, intervals over seeds. *Alone* is the same "
        "network trained by each site; *placebo* is the same federation with copies of the site itself. What other "
        "sites bring is federated minus placebo.",
        "",
    ]
    for axis in AXES:
        lines += [f"## By {axis}", "", *_axis(scores, axis, "")]
    lines += [
        "## Heart by training rows a site, each at its own best epoch",
        "",
        *_axis(scores, join.ROWS, join.BEST_EPOCH),
    ]
    write_page(path, lines)
    _plot(scores, path)


def differences(scores: dict[str, Scores], variant: str, against: str) -> Mean | None:
    """A federated variant minus its other role, over the sites that both have, in points."""
    end = join.BEST_EPOCH if variant.endswith(join.BEST_EPOCH) else ""
    stem = variant.removesuffix(end) if end else variant
    other = f"{stem.removesuffix('federated')}{against}{end}"
    return difference(*_means(scores.get(variant, {}), scores.get(other, {})))


def _means(first: Scores, second: Scores) -> tuple[dict[int, float], dict[int, float]]:
    """By seed, the means over the sites that both have."""
    both = first.keys() & second.keys()
    seeds = sorted({seed for _, seed in both})
    return tuple(  # type: ignore[return-value]
        {seed: 100 * float(np.mean([each[key] for key in both if key[1] == seed])) for seed in seeds}
        for each in (first, second)
    )


def _scores(rows: Iterable[Row]) -> dict[str, Scores]:
    found: dict[str, Scores] = {}
    for row in rows:
        if "auroc" in row.metrics:
            found.setdefault(row.variant, {})[row.site, row.seed] = row.metrics["auroc"]
    return found


def _axis(scores: dict[str, Scores], axis: str, end: str) -> list[str]:
    body = []
    for setting in (each for each in join.settings() if each.axis == axis):
        for method in setting.methods:
            name = f"{setting.name}, {method}, federated{end}"
            if name not in scores:
                continue
            by_seed, _ = _means(scores[name], scores[name])
            level = mean_of(list(by_seed.values()))
            found = [differences(scores, name, against) for against in ("alone", "placebo")]
            cells = [mean.text(1.0) if mean else "-" for mean in found]
            body.append([setting.data, f"{setting.value:g}", method, level.text(1.0), *cells, str(level.runs)])
    header = ["data", axis, "method", "federated AUROC", "minus alone", "minus placebo", "seeds"]
    return table_lines(header, body)


def _plot(scores: dict[str, Scores], path: Path) -> None:
    panels: dict[str, list[Curve]] = {}
    for title, axis, method in (
        (f"{join.ROWS}, global-layers", join.ROWS, "global-layers"),
        (f"{join.ROWS}, fedavg", join.ROWS, "fedavg"),
        *((axis, axis, None) for axis in AXES[1:]),
    ):
        curves = _curves(scores, axis, method)
        if curves:
            panels[title] = curves
    if panels:
        title = "Should I join? Federated minus alone (solid) and minus placebo (dashed), 95% intervals"
        plot_curves(path.with_suffix(".svg"), panels, title=title, axis="AUROC, points")


def _curves(scores: dict[str, Scores], axis: str, method: str | None) -> list[Curve]:
    """Along an axis, of one method by data, or of every method."""
    found: dict[tuple[str, str], list[tuple[float, Mean]]] = {}
    for setting in (each for each in join.settings() if each.axis == axis):
        for each in setting.methods if method is None else {method} & set(setting.methods):
            for against in ("alone", "placebo"):
                mean = differences(scores, f"{setting.name}, {each}, federated", against)
                if mean:
                    found.setdefault((setting.data if method else each, against), []).append((setting.value, mean))
    return [
        Curve(name=name, points=points, is_dashed=against == "placebo") for (name, against), points in found.items()
    ]
