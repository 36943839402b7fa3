"""The page and the plot of CHFL's experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.tables import chfl
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

CHOSEN = "chfl, mu above 0"


def render_chfl(rows: list[Row], path: Path) -> None:
    """CHFL's table with paired differences."""
    found = accuracies(rows)
    is_common = {row.seed: row.metrics["elevation_is_common"] > 0 for row in rows}
    lines = begin_page("CHFL on covertype: five sites, 30% of the columns in common", "chfl", path)
    lines += [
        f"Mean accuracy over the sites. {chfl.ROUNDS} rounds of {chfl.EPOCHS_PER_ROUND} epochs; the paper does not say "
        "how many. Splits and columns are the seed's, so published means are not comparable: "
        "the hillshade columns are lost, and all depends on whether elevation is common.",
        "",
        *_splits(found, is_common),
        "## Differences on the same splits",
        "",
        *_differences(found),
        "## The choice of mu",
        "",
        *_choices(rows),
    ]
    write_page(path, lines)
    _plot(found, path)


def accuracies(rows: list[Row]) -> dict[str, dict[int, float]]:
    """Each variant's mean accuracy over the sites by seed; mu above 0 as the rows that choose would have it."""
    names = [chfl.COMMON, chfl.LOCAL, chfl.UNCONNECTED]
    found = {name: by_seed(rows, name, None, "accuracy") for name in names}
    found[CHOSEN] = {seed: by_seed(rows, name, None, "accuracy")[seed] for seed, name in chosen_strengths(rows).items()}
    return {name: values for name, values in found.items() if values}


def chosen_strengths(rows: list[Row]) -> dict[int, str]:
    """For each seed that has them all, the variant with the best mean accuracy on the rows that choose."""
    names = [chfl.strength_name(strength) for strength in chfl.STRENGTHS]
    validation = {name: by_seed(rows, name, None, "validation_accuracy") for name in names}
    complete = set.intersection(*(set(values) for values in validation.values()))
    return {seed: max(names, key=lambda name: validation[name][seed]) for seed in sorted(complete)}


def _splits(found: Mapping[str, Mapping[int, float]], is_common: Mapping[int, bool]) -> list[str]:
    seeds = sorted({seed for values in found.values() for seed in values})
    body = []
    for name, values in found.items():
        cells = [f"{values[seed]:.3f}" if seed in values else "-" for seed in seeds]
        body.append([name, f"{chfl.PUBLISHED[name]:.3f}", mean_of(list(values.values())).text(1.0, 3), *cells])
    titles = [f"seed {seed}{', elevation common' if is_common[seed] else ''}" for seed in seeds]
    return table_lines(["variant", "paper", "mean", *titles], body)


def _differences(found: Mapping[str, Mapping[int, float]]) -> list[str]:
    pairs = ((CHOSEN, chfl.UNCONNECTED), (CHOSEN, chfl.LOCAL), (chfl.UNCONNECTED, chfl.LOCAL), (CHOSEN, chfl.COMMON))
    body = []
    for first, second in pairs:
        mean = difference(found.get(first, {}), found.get(second, {}))
        if mean:
            known = chfl.PUBLISHED[first] - chfl.PUBLISHED[second]
            wins = sum(found[first][seed] > found[second][seed] for seed in found[first].keys() & found[second].keys())
            body.append([f"{first} minus {second}", f"{known:+.3f}", mean.text(1.0, 3), f"{wins} of {mean.runs}"])
    return table_lines(["difference", "paper", "here", "splits above 0"], body)


def _choices(rows: list[Row]) -> list[str]:
    body = []
    for seed, chosen in chosen_strengths(rows).items():
        cells = [str(seed), chosen]
        for strength in chfl.STRENGTHS:
            name = chfl.strength_name(strength)
            validation, test = (by_seed(rows, name, None, m)[seed] for m in ("validation_accuracy", "accuracy"))
            cells.append(f"{validation:.3f}, {test:.3f}")
        body.append(cells)
    header = ["seed", "chosen", *(f"mu {strength:g}: choosing, test" for strength in chfl.STRENGTHS)]
    return table_lines(header, body)


def _plot(found: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Means scatter with the splits; what the methods differ in is seen only split by split."""
    reference = found.get(chfl.UNCONNECTED, {})
    levels, paired = [], []
    for name, values in found.items():
        levels.append(Dot(name=name, mean=mean_of(list(values.values())), published=chfl.PUBLISHED[name]))
        mean = difference(values, reference)
        if mean:
            known = chfl.PUBLISHED[name] - chfl.PUBLISHED[chfl.UNCONNECTED]
            paired.append(Dot(name=name, mean=mean, published=known))
    if levels and len(levels) == len(paired):
        panels = {"mean accuracy over the sites": levels, f"minus {chfl.UNCONNECTED}, split by split": paired}
        plot_dots(path.with_suffix(".svg"), panels, title="CHFL on covertype", axis="accuracy")
