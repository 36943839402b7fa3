"""Writes the page and the plot of the study "should I join?"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.experiments.plots import Curve, plot_curves
from benchmarks.experiments.statistics import Mean, corrected_mean_of, mean_of
from benchmarks.experiments.tables import composed, join
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

# By site and split, every figure of one variant.
Cells: TypeAlias = Mapping[tuple[str, int], Mapping[str, float]]
MEAN: Final = "mean of the sites"
# The target: never clearly worse than the best local model, and better by this number of points at small sites.
BAR: Final = 2.0
_SMALL_ROWS: Final = 100
_FEWEST_RUNS: Final = 2  # of a figure with an interval
_JOINED: Final = "federated-prior"
_LOCAL: Final = "best local"
_AGAINST: Final = (_LOCAL, "without others", "pooled")
_ABOUT: Final = """
One hospital at a time has so few training rows, and the others have all of theirs. Figures are AUROC points.

* *Best local* is the best model that this hospital could have alone. Inner cross-validation on its training rows
  chooses among logistic regression, random forest and gradient boosting.
* *Without others* is the same recipe without the others' score: own regression joined with own forest. It is the
  placebo of this method. So federated-prior minus it is what the others bring.
* *Pooled* is what no hospital can have: one model of all rows in one place, on the common columns. Covertype areas
  have none, because they have different classes.
* *Permuted* is a control. The others' outcomes are shuffled, and the figure is again minus without others.
* *No outcomes* is the AUROC of what a hospital receives that has no outcomes of its own. It is missing where fewer than
  three other hospitals are left, or where the guard found no use.
* *Weight* is the share of the others' score in the model.

A third of each class of a hospital's rows tests. Intervals are 95%, over patients and splits at once: Student's,
corrected for the overlap of splits (Nadeau and Bengio 2003). In simulations they covered the truth in 91% to 98%. If
a table has ten sites or more, each site is tested in one split, and the interval is Student's over the sites. The
recipe was fixed before, nothing was chosen by these figures, and no earlier study used these splits.
"""
_NETWORKS: Final = """
Networks are small, with 20 epochs of 5 batches at rate 0.001, and means are over the sites. *Placebo* is the same
federation with copies of the site itself, at the same sites. Methods with fewer splits have the first of the same ones.
Settings are the plan's defaults, but for three things that a method cannot do without. CHFL has its two columns of
layers, FENDA-FL and PerFCL have two extractors, and SCAFFOLD has plain steps at rate 0.1. The default rate of the
coordinator's optimisers (FedAdam, FedYogi, FedAdagrad) was chosen on four other splits of UCI heart and of the heart
studies. An earlier default failed in two of the splits shown here. *Local* has no others, so its difference to its
placebo shows what another start does.

Networks ran at all rows of a table, and at UCI heart also at 50. Other numbers of rows were not tried. At covertype
areas 100 steps are too few for thousands of rows. So all networks there stay far below the best local model, *local*
too. Left out are:

* CHFL where all sites record the same columns, because it needs a column that not all sites have;
* at covertype areas the methods that share the last layer, because the areas have different classes;
* the placebo at leukaemia and dialysis, because copies of 18 and of 29 sites would cost some 20 times as much.

Another version of this program can give other figures of FedLP ([reason](player.md#what-is-not-here)). The version of
2026-11-27 computed the lines of FedLP.
"""
_TOGETHER: Final = """
Does federated-prior bring more together with Global Layers? On the same splits, means over the sites. What each costs
alone in time and bytes is measured in [benchmarks](../../README.md#recipe_costpy-federated-prior-beside-networks).

* *Linear path* is Global Layers' network with a linear path beside the layers. In *prior path* the others' score is one
  more private column of every site, so that the path leads from it to the output.
* *Join of four* has the network as a fourth model beside regression, forest and the others' score. Its weight follows
  from training rows that it did not see: the network is trained five times more, without a fifth of the rows each time.
"""
_MISSING: Final = """
## Tables that are not here

* Seriously ill patients by diagnosis group, hospital stays by region, insurance by town: these groups are no hospitals.
* Contraception by district: a survey of households.
* The pancreatitis trial of the R package medicaldata: only two of its four sites have ten patients with the outcome.
* eICU, MIMIC and other tables of many hospitals need an agreement with their owners.
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The results for one table and number of training rows, at one site or over the sites.

    Attributes:
        table, rows, site: where.
        used: mean training rows.
        values: the mean of each figure.
        less: federated-prior minus each other model, and `permuted` minus without others, in points.
        splits: the number of splits, or of sites if the interval is over the sites.
    """

    table: str
    rows: int
    site: str
    used: float
    values: Mapping[str, float]
    less: Mapping[str, Mean]
    splits: int


def render_join(rows: list[Row], path: Path) -> None:
    """Write the gain from joining for each table, and whether the target is reached."""
    cells = _cells(rows)
    figures = list(figures_of(cells))
    lines = begin_page("Should I join?", "join", path)
    lines += [
        *_ABOUT.strip().splitlines(),
        "",
        "## Does it hold?",
        "",
        *bar_lines(figures),
        _guard_line(cells),
        _gaps(figures, cells),
        "",
    ]
    for table in dict.fromkeys(figure.table for figure in figures):
        lines += [f"## {table[0].upper()}{table[1:]}", "", *_table([one for one in figures if one.table == table])]
    lines += ["## Methods with networks, the same splits", "", *_networks(cells)]
    lines += ["## Together with Global Layers", "", *_composed(cells), *_MISSING.strip().splitlines()]
    write_page(path, lines)
    _plot(figures, path)


def figures_of(cells: Mapping[str, Cells]) -> Iterator[Figure]:
    """Yield the results at every site and the mean over sites, for every number of training rows."""
    for table, setting in join.SETTINGS.items():
        for rows in sorted(setting.levels, key=lambda level: level or np.inf):
            found = cells.get(f"{table}, {rows}", {})
            sites = list(dict.fromkeys(site for site, _ in sorted(found)))
            if len(set(found)) < _FEWEST_RUNS * len(sites) and not setting.is_over_sites:
                continue
            if sites and not setting.is_over_sites:
                yield from (_figure(table, rows, site, found, [site]) for site in sites)
            if len(sites) > 1:
                yield _figure(table, rows, MEAN, found, sites)


def bar_lines(figures: Sequence[Figure]) -> list[str]:
    """Return lines with the cases in which federated-prior is better or worse than the best local model."""
    single = [one for one in figures if one.site != MEAN]
    below = [one for one in figures if one.less[_LOCAL].value + one.less[_LOCAL].half_width < 0]
    above = [one for one in figures if one.less[_LOCAL].value - one.less[_LOCAL].half_width > 0]
    brought = [one for one in figures if one.less["without others"].value - one.less["without others"].half_width > 0]
    taken = [one for one in figures if one.less["without others"].value + one.less["without others"].half_width < 0]
    va = [one for one in single if one.site == "va"]
    small = [one for one in figures if one.site == MEAN and 0 < one.rows <= _SMALL_ROWS]
    misled = [one for one in figures if "permuted" in one.less and _is_below(one.less["permuted"])]
    return [
        f"* Below the best local model beyond noise: {_names(below, _LOCAL)}",
        f"* Above it beyond noise: {_names(above, _LOCAL)}",
        f"* Above it by more than {BAR:g} points at VA: {_reached(va)}",
        f"* Above it by more than {BAR:g} points on average at {_SMALL_ROWS} training rows or fewer: {_reached(small)}",
        f"* The others bring something beyond noise: {_names(brought, 'without others')}",
        f"* The others take something away beyond noise: {_names(taken, 'without others')}",
        f"* Others with shuffled outcomes do harm beyond noise: {_names(misled, 'permuted')}",
        f"* Beyond noise means that the 95% interval excludes zero. Of {len(figures)} intervals about "
        f"{0.025 * len(figures):.1f} would lie above zero by chance if nothing were true, and as many below.",
    ]


def _guard_line(cells: Mapping[str, Cells]) -> str:
    """Return how often the guard accepted the others' score, and how often a score from shuffled outcomes."""
    found = [one for each in cells.values() for one in each.values() if "guard" in one]
    true, shuffled = (sum(one[name] > 0 for one in found) for name in ("guard", "guard of permuted"))
    return (
        f"* The guard let the others' score through in {true} of {len(found)} runs, and in {shuffled} with shuffled "
        "outcomes."
    )


def _gaps(figures: Sequence[Figure], cells: Mapping[str, Cells]) -> str:
    """Return the numbers of training rows without a result, and whether two sites could have a result."""
    there = {(figure.table, figure.rows) for figure in figures}
    absent: dict[bool, list[str]] = {True: [], False: []}
    for table, setting in join.SETTINGS.items():
        most = max((one["rows"] for one in cells.get(f"{table}, {join.ALL}", {}).values()), default=np.inf)
        for is_possible in (False, True):
            levels = [
                str(rows or "all")
                for rows in setting.levels
                if (table, rows) not in there and (rows < join.NEARLY_ALL * most) == is_possible
            ]
            absent[is_possible] += [f"{table} at {', '.join(levels)}"] if levels else []
    words = {False: "No site has clearly more training rows than", True: "Measured at one site at most"}
    parts = [f"{text}: {'; '.join(absent[is_possible])}." for is_possible, text in words.items() if absent[is_possible]]
    return f"* Without a figure. {' '.join(parts)}" if parts else "* Every number of rows has its figure."


def _is_below(mean: Mean) -> bool:
    return mean.value + mean.half_width < 0


def _names(figures: Iterable[Figure], against: str) -> str:
    found = [f"{_place(one)} ({_text(one.less[against])})" for one in figures]
    return f"{'; '.join(found)}." if found else "nowhere."


def _reached(figures: Sequence[Figure]) -> str:
    parts = []
    for word, is_met in (("yes", True), ("no", False)):
        some = [one for one in figures if (one.less[_LOCAL].value > BAR) == is_met]
        if some:
            parts.append(f"{word} at {_names(some, _LOCAL).removesuffix('.')}")
    return f"{'; '.join(parts)}." if parts else "not measured."


def _place(figure: Figure) -> str:
    return f"{figure.table}, {figure.site}, {figure.rows or 'all'} rows"


def _figure(table: str, rows: int, site: str, cells: Cells, sites: Sequence[str]) -> Figure:
    some = {key: one for key, one in cells.items() if key[0] in sites}
    everywhere = set.intersection(*(set(one) for one in some.values()))
    less = {name: _difference(table, some, _JOINED, name) for name in _AGAINST if name in everywhere}
    less["permuted"] = _difference(table, some, "permuted", "without others")
    first = next(iter(less.values()))
    return Figure(
        table=table,
        rows=rows,
        site=site,
        used=float(np.mean([one["rows"] for one in some.values()])),
        values={name: float(np.mean([one[name] for one in some.values()])) for name in sorted(everywhere)},
        less=less,
        splits=first.runs,
    )


def _difference(table: str, cells: Cells, first: str, second: str) -> Mean:
    """Return a difference in points, with the mean over splits, or over sites if the table has many sites."""
    is_over_sites = join.SETTINGS[table].is_over_sites
    found: dict[object, list[float]] = {}
    for (site, seed), one in cells.items():
        found.setdefault(site if is_over_sites else seed, []).append(100 * (one[first] - one[second]))
    means = [float(np.mean(values)) for values in found.values()]
    return mean_of(means) if is_over_sites else corrected_mean_of(means, join.TEST_SHARE)


def _table(figures: Sequence[Figure]) -> list[str]:
    body = []
    for one in figures:
        no_outcomes = one.values.get("no outcomes")
        body.append([
            one.site,
            f"{one.rows}" if one.rows else f"all ({one.used:.0f})",
            f"{100 * one.values[_JOINED]:.1f}",
            *(_text(one.less[name]) if name in one.less else "-" for name in (*_AGAINST, "permuted")),
            "-" if no_outcomes is None else f"{100 * no_outcomes:.1f}",
            f"{one.values['weight']:.2f}",
            f"{one.splits}",
        ])  # fmt: skip
    counted = "sites" if join.SETTINGS[figures[0].table].is_over_sites else "splits"
    names = [f"minus {name}" for name in _AGAINST]
    return table_lines(
        ["site", "training rows", _JOINED, *names, "permuted", "no outcomes", "weight", counted], body
    )  # fmt: skip


def _networks(cells: Mapping[str, Cells]) -> list[str]:
    body, absent = [], []
    for table, setting in join.SETTINGS.items():
        for rows in setting.network_levels:
            local, missing = cells.get(f"{table}, {rows}", {}), []
            for method in join.methods_at(table):
                own = cells.get(f"{table}, {rows}, {method}", {})
                both = {key: {**local[key], **own[key]} for key in own if key in local}
                if both:
                    body.append(_network_line(table, rows, method, both))
                else:
                    missing.append(method)
            names = "every method" if len(missing) == len(join.methods_at(table)) else ", ".join(missing)
            absent += [f"{names} at {table}, {rows or 'all'} rows"] if missing else []
    against = ["minus best local", "minus placebo", "minus federated-prior"]
    header = ["table", "training rows", "method", "AUROC", *against, "splits or sites"]
    unmeasured = f"Not measured: {'; '.join(absent) or 'nothing else'}."
    return [*_NETWORKS.strip().splitlines(), "", unmeasured, "", *table_lines(header, body)]


def _composed(cells: Mapping[str, Cells]) -> list[str]:
    """Return both combinations of federated-prior and Global Layers, minus each method alone."""
    body, helped = [], []
    for table, rows in composed.LEVELS:
        found = cells.get(composed.variant_name(table, rows), {})
        for name in (*composed.PARTS, *composed.WAYS) if found else ():
            less = [_difference(table, found, name, part) for part in composed.PARTS]
            if name in composed.COMPOSED and all(one.value - one.half_width > 0 for one in less):
                helped.append(f"{name} at {table}, {rows or 'all'} rows")
            auroc = 100 * float(np.mean([one[name] for one in found.values()]))
            texts = ["-" if part == name else _text(one) for part, one in zip(composed.PARTS, less, strict=True)]
            body.append([table, str(rows or "all"), name, f"{auroc:.1f}", *texts, str(less[0].runs)])
    header = ["table", "training rows", "model", "AUROC", *(f"minus {part}" for part in composed.PARTS), "runs"]
    verdict = f"Better than both parts beyond noise: {', '.join(helped) or 'nowhere'}."
    return [*_TOGETHER.strip().splitlines(), "", verdict, "", *table_lines(header, body)]


def _network_line(table: str, rows: int, method: str, cells: Cells) -> list[str]:
    auroc = 100 * float(np.mean([one["federated"] for one in cells.values()]))
    has_placebo = all("placebo" in one for one in cells.values())
    against = (_LOCAL, "placebo", _JOINED)
    less = {name: _difference(table, cells, "federated", name) for name in against if has_placebo or name != "placebo"}
    texts = [_text(less[name]) if name in less else "-" for name in against]
    return [table, str(rows or "all"), method, f"{auroc:.1f}", *texts, str(less[_LOCAL].runs)]


def _text(mean: Mean) -> str:
    half = f" ± {mean.half_width:.1f}" if mean.runs > 1 else ""
    return f"{mean.value:+.1f}{half}"


def _cells(rows: Iterable[Row]) -> dict[str, dict[tuple[str, int], Mapping[str, float]]]:
    found: dict[str, dict[tuple[str, int], Mapping[str, float]]] = {}
    for row in rows:
        found.setdefault(row.variant, {})[row.site, row.seed] = row.metrics
    return found


def _plot(figures: Sequence[Figure], path: Path) -> None:
    panels: dict[str, list[Curve]] = {}
    for table in dict.fromkeys(figure.table for figure in figures):
        own = [one for one in figures if one.table == table]
        sites = list(dict.fromkeys(one.site for one in own))
        shown = [MEAN] if sites == [MEAN] else [site for site in sites if site != MEAN]
        panels[f"training rows, {table}"] = [
            Curve(
                name=site,
                points=[(float(f"{one.used:.2g}"), one.less[against]) for one in own if one.site == site],
                is_dashed=against != _LOCAL,
            )
            for site in shown
            for against in (_LOCAL, "without others")
        ]
    if panels:
        title = "federated-prior minus best local (solid) and minus the recipe without others (dashed), 95% intervals"
        plot_curves(path.with_suffix(".svg"), panels, title=title, axis="AUROC, points")
