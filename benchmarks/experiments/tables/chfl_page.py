"""Writes the page and the plot of CHFL's experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.experiments.tables import chfl
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

# For each method on a page, the candidates' methods among which a client chooses.
METHODS: Final = {
    chfl.COMMON: (chfl.COMMON,),
    chfl.LOCAL: (chfl.LOCAL,),
    "mu 0": (chfl.strength_name(0.0),),
    "mu above 0": tuple(chfl.strength_name(value) for value in chfl.STRENGTHS if value),
    chfl.CONCATENATED: (chfl.CONCATENATED,),
}
Accuracies: TypeAlias = dict[str, dict[int, float]]
# A setting, how its learning rate was set, and its accuracies.
Line: TypeAlias = tuple[chfl.Setting, str, Accuracies]
_PAIRS: Final = (
    ("mu above 0", "mu 0"),
    ("mu above 0", chfl.LOCAL),
    ("mu above 0", chfl.COMMON),
    ("mu 0", chfl.LOCAL),
    ("mu 0", chfl.CONCATENATED),
)

_BY_SPLIT: Final = (chfl.COMMON, chfl.LOCAL, "mu 0")
_BOTH_RATES: Final = (
    f"Each line states how the learning rate was set. *Chosen* is the result of table II: each client chooses among "
    f"{' and '.join(f'{rate:g}' for rate in chfl.RATES)} on its validation rows, as in the paper. In all other lines "
    f"every client has {chfl.RATE:g}, because a second rate would double the computation. To compare settings, "
    f"use the lines with {chfl.RATE:g}. In the paper each client tunes its learning rate in every setting."
)


def render_chfl(rows: list[Row], path: Path) -> None:
    """Write table II's row of covertype, table III and figure 4, each beside the values of the paper."""
    found = {setting: accuracies(rows, setting) for setting in (*chfl.TABLE_III, *chfl.FIGURE_4)}
    fixed = accuracies(rows, chfl.TABLE_II, rates=(chfl.RATE,))
    lines = begin_page("CHFL on covertype: clients with common columns and columns of their own", "chfl", path)
    lines += [
        f"Mean test accuracy over the clients. All clients test on the same 3,024 rows. {chfl.ROUNDS} rounds of "
        f"{chfl.EPOCHS_PER_ROUND} epochs, because the paper does not state the number of rounds. Each client chooses "
        f"mu among {', '.join(f'{value:g}' for value in chfl.STRENGTHS if value)} on its validation rows. In table II "
        f"it also chooses the learning rate, among {' and '.join(f'{rate:g}' for rate in chfl.RATES)}. The hillshade "
        "columns are computed from aspect and slope. The figures after ± are 95% intervals of the mean. *Deviation* is "
        "the standard deviation over the runs, as in the paper's tables.",
        "",
        "## Table II, covertype",
        "",
        "The five runs of a split share its rows and columns. So the intervals of fifteen runs are too narrow for a "
        "new split.",
        "",
        *_table([(chfl.TABLE_II, "chosen", found[chfl.TABLE_II])]),
        *_differences(found[chfl.TABLE_II]),
        "## Table III: number of clients",
        "",
        _BOTH_RATES,
        "",
        *_table(_both_rates(found, fixed, chfl.TABLE_III)),
        "## Figure 4: share of common columns",
        "",
        f"The paper prints this figure without numbers. {_BOTH_RATES}",
        "",
        *_table(_both_rates(found, fixed, chfl.FIGURE_4)),
        *_splits(rows),
        *_more_rounds(rows, fixed),
        *_NOTES,
        *_cost_of_tuning(path),
    ]
    write_page(path, lines)
    _plot(found[chfl.TABLE_II], path)


def accuracies(
    rows: list[Row],
    setting: chfl.Setting,
    rates: Sequence[float] = chfl.RATES,
    seeds: Collection[int] = chfl.SEEDS,
) -> Accuracies:
    """Return for each method and seed the mean accuracy over the clients. Each client chooses on its validation rows.

    Args:
        rows: of all variants.
        setting: the number of clients and the share of common columns.
        rates: the learning rates among which a client chooses, as far as the setting has them.
        seeds: the runs to read.
    """
    by_name: dict[str, dict[tuple[int, str], Row]] = {}
    for row in rows:
        if row.seed in seeds:
            by_name.setdefault(row.variant, {})[row.seed, row.site] = row
    found: Accuracies = {}
    for method, choices in METHODS.items():
        tried = [each for each in chfl.candidates(setting) if each.method in choices and each.rate in rates]
        own = [by_name.get(each.name, {}) for each in tried]
        scores: dict[int, list[float]] = {}
        for seed, site in sorted(set.intersection(*map(set, own))) if own else ():
            best = max((rows[seed, site].metrics for rows in own), key=lambda metrics: metrics["validation_accuracy"])
            scores.setdefault(seed, []).append(best["accuracy"])
        if scores:
            found[method] = {seed: float(np.mean(values)) for seed, values in scores.items()}
    return found


def _splits(rows: list[Row]) -> list[str]:
    """Return table II's setting by split of the columns, if there are results of the further splits."""
    splits = {split: range(split * chfl.RUNS, (split + 1) * chfl.RUNS) for split in range(3)}
    further = {split: range(split * chfl.RUNS, (split + 1) * chfl.RUNS) for split in chfl.SPLITS_WITH_ELEVATION}
    body = []
    for split, seeds in (splits | further).items():
        found = accuracies(rows, chfl.TABLE_II, (chfl.RATE,), seeds)
        if split in further and not found:
            continue
        cells = [mean_of(list(found[name].values())).text(1.0, 3) if name in found else "-" for name in _BY_SPLIT]
        gain = difference(found.get("mu 0", {}), found.get(chfl.LOCAL, {}))
        runs = max((len(values) for values in found.values()), default=0)
        holders = "all clients" if split in further else "one client"
        body.append([str(split), holders, *cells, gain.text(1.0, 3) if gain else "-", str(runs)])
    if len(body) <= len(splits):
        return []
    return [
        "## Table II by split: who has the column elevation",
        "",
        "The accuracy depends mostly on who has the column elevation. In the three splits of the tables above only one "
        "of five clients has it. In the next two splits (`--seeds 15-16,20-21`) all clients have it. The paper does "
        "not publish its splits. Its deviations are about four to six times as large as those here, and its accuracies "
        "are between those of the two kinds of splits. So its splits probably differ in this column. The paper's gain "
        "of mu 0 over local (0.034) is larger than in every split here. All lines have the learning rate "
        f"{chfl.RATE:g}.",
        "",
        *table_lines(["split", "elevation at", *_BY_SPLIT, "mu 0 minus local", "runs"], body),
    ]


def _more_rounds(rows: list[Row], fixed: Accuracies) -> list[str]:
    """Return table II with more rounds beside the same runs with the usual number, if there are such runs."""
    longer: Accuracies = {}
    for candidate in chfl.with_more_rounds():
        method = next(name for name, methods in METHODS.items() if methods == (candidate.method,))
        values = by_seed(rows, candidate.name, None, "accuracy")
        if values:
            longer[method] = values
    if not longer:
        return []
    body = []
    for method, values in longer.items():
        usual = fixed.get(method, {})
        cells = [[each[seed] for seed in sorted(values.keys() & usual.keys())] for each in (usual, values)]
        mean = difference(values, usual)
        if mean:
            known = chfl.PUBLISHED[chfl.TABLE_II][method]
            shown = [mean_of(each).text(1.0, 3) for each in cells]
            body.append([method, *shown, f"{known:.3f}", mean.text(1.0, 3), str(mean.runs)])
    lines = [
        f"## Table II with {chfl.MORE_ROUNDS} rounds",
        "",
        f"The paper does not state the number of rounds. The same runs with {chfl.ROUNDS} and with {chfl.MORE_ROUNDS} "
        f"rounds, at the learning rate {chfl.RATE:g}:",
        "",
        *table_lines(
            ["method", f"{chfl.ROUNDS} rounds", f"{chfl.MORE_ROUNDS} rounds", "paper", "difference", "runs"], body
        ),
    ]
    gains = [difference(each.get("mu 0", {}), each.get(chfl.LOCAL, {})) for each in (fixed, longer)]
    if gains[0] and gains[1]:
        known = chfl.PUBLISHED[chfl.TABLE_II]["mu 0"] - chfl.PUBLISHED[chfl.TABLE_II][chfl.LOCAL]
        lines += [
            f"Mu 0 minus local is {gains[1].text(1.0, 3)} with {chfl.MORE_ROUNDS} rounds ({gains[1].runs} runs) and "
            f"{gains[0].text(1.0, 3)} with {chfl.ROUNDS} rounds ({gains[0].runs} runs). The paper has {known:+.3f}.",
            "",
        ]
    return lines


def _cost_of_tuning(path: Path) -> list[str]:
    """Return the estimated cost of the learning rates that are not tried, from the runs made here."""
    names = {
        candidate.name
        for setting in dict.fromkeys((*chfl.TABLE_III, *chfl.FIGURE_4))
        for candidate in chfl.candidates(setting)
        if setting != chfl.TABLE_II
    }
    seconds = sum(cost.processor_seconds for cost in read_costs(costs_beside(path)) if cost.variant in names)
    if not seconds:
        return []
    return [
        "* A second learning rate for each client in table III and figure 4: this would cost about "
        f"{round(seconds, -2):,.0f} processor seconds.",
        "",
    ]


def _both_rates(
    found: Mapping[chfl.Setting, Accuracies], fixed: Accuracies, settings: Sequence[chfl.Setting]
) -> list[Line]:
    """Return every setting with the fixed learning rate, and table II's setting also with the chosen rate."""
    lines: list[Line] = []
    for setting in settings:
        is_tuned = setting == chfl.TABLE_II
        lines.append((setting, f"{chfl.RATE:g}", fixed if is_tuned else found[setting]))
        lines += [(setting, "chosen", found[setting])] if is_tuned else []
    return lines


def _table(lines: Sequence[Line]) -> list[str]:
    body = []
    for setting, rate, found in lines:
        cells = []
        for method in METHODS:
            values = list(found.get(method, {}).values())
            known = chfl.PUBLISHED.get(setting, {}).get(method)
            beside = "" if known is None else f" (paper {known:.3f}, deviation {chfl.DEVIATIONS[setting][method]:.3f})"
            spread = f" (deviation {np.std(values, ddof=1):.3f})" if len(values) > 1 else ""
            cells.append(mean_of(values).text(1.0, 3) + spread + beside if values else f"-{beside}")
        runs = max((len(values) for values in found.values()), default=0)
        body.append([setting.title, rate, *cells, str(runs)])
    return table_lines(["setting", "learning rate", *METHODS, "runs"], body)


def _differences(found: Accuracies) -> list[str]:
    body = []
    for first, second in _PAIRS:
        mean = difference(found.get(first, {}), found.get(second, {}))
        if mean:
            known = chfl.PUBLISHED[chfl.TABLE_II][first] - chfl.PUBLISHED[chfl.TABLE_II][second]
            wins = sum(found[first][seed] > found[second][seed] for seed in found[first].keys() & found[second].keys())
            body.append([f"{first} minus {second}", f"{known:+.3f}", mean.text(1.0, 3), f"{wins} of {mean.runs}"])
    return table_lines(["difference on the same rows and columns", "paper", "here", "runs above 0"], body)


def _plot(found: Accuracies, path: Path) -> None:
    """Draw paired differences, because the means vary so much with the splits that differences would not be visible."""
    levels, paired = [], []
    for name, values in found.items():
        known = chfl.PUBLISHED[chfl.TABLE_II]
        levels.append(Dot(name=name, mean=mean_of(list(values.values())), published=known[name]))
        mean = difference(values, found.get("mu 0", {}))
        if mean:
            paired.append(Dot(name=name, mean=mean, published=known[name] - known["mu 0"]))
    if levels and len(levels) == len(paired):
        panels = {"mean accuracy over the clients": levels, "minus mu 0, run by run": paired}
        plot_dots(path.with_suffix(".svg"), panels, title="CHFL on covertype", axis="accuracy")


_NOTES: Final = (
    "## What is not here",
    "",
    "* Table II's rows sensorless, aloi, helena and jannis, and with them table IV: these data are not available here.",
    "* Table I and figures 1 to 3 have no results: sizes of the data sets, and drawings of tables and networks.",
)
