"""Writes the page and the plot of CHFL's experiment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.store import costs_beside, read_costs
from benchmarks.experiments.tables import chfl
from benchmarks.experiments.tables.markdown import begin_page, seconds_for, table_lines, write_page
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


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The accuracies of a setting.

    Attributes:
        setting: the number of clients and the share of common columns.
        chosen: if each client chooses its learning rate.
        fixed: if every client has the first learning rate.
    """

    setting: chfl.Setting
    chosen: Accuracies
    fixed: Accuracies

    @property
    def is_tuned(self) -> bool:
        """Whether all runs have both learning rates, so that the clients can choose."""
        return {name: set(runs) for name, runs in self.chosen.items()} == {
            name: set(runs) for name, runs in self.fixed.items()
        }

    @property
    def shown(self) -> Accuracies:
        """The accuracies with the chosen rate, or with the first rate as long as runs are missing."""
        return self.chosen if self.is_tuned else self.fixed

    @property
    def title(self) -> str:
        """The name on the page. It contains the rate if no client could choose."""
        return self.setting.title + ("" if self.is_tuned else f", rate {chfl.RATE:g}")


_PAIRS: Final = (
    ("mu above 0", "mu 0"),
    ("mu above 0", chfl.LOCAL),
    ("mu above 0", chfl.COMMON),
    ("mu 0", chfl.LOCAL),
    ("mu 0", chfl.CONCATENATED),
)

_BY_SPLIT: Final = (chfl.COMMON, chfl.LOCAL, "mu 0")
_RATES: Final = " and ".join(f"{rate:g}" for rate in chfl.RATES)


def render_chfl(rows: list[Row], path: Path) -> None:
    """Write table II's row of covertype, table III and figure 4, each beside the values of the paper."""
    found = {setting: _line(rows, setting) for setting in (*chfl.TABLE_III, *chfl.FIGURE_4)}
    fixed = found[chfl.TABLE_II].fixed
    lines = begin_page("CHFL on covertype: clients with common columns and columns of their own", "chfl", path)
    lines += [
        f"Mean test accuracy over the clients. All clients test on the same 3,024 rows. {chfl.ROUNDS} rounds of "
        f"{chfl.EPOCHS_PER_ROUND} epochs, because the paper does not state the number of rounds. Each client chooses "
        f"its learning rate among {_RATES}, and mu among "
        f"{', '.join(f'{value:g}' for value in chfl.STRENGTHS if value)}, on its validation rows. The paper also tunes "
        "both in this way, and does not state the values that were tried. The hillshade columns are computed from "
        "aspect and slope. The figures after ± are 95% intervals of the mean. *Deviation* is the standard deviation "
        "over the runs, as in the paper's tables.",
        "",
        *_exceptions(list(found.values())),
        "## Table II, covertype",
        "",
        "The five runs of a split share its rows and columns. So the intervals of fifteen runs are too narrow for a "
        "new split.",
        "",
        *_table([found[chfl.TABLE_II]]),
        *_differences([found[chfl.TABLE_II]], _PAIRS),
        "## Table III: number of clients",
        "",
        *_table([found[setting] for setting in chfl.TABLE_III]),
        *_differences([found[setting] for setting in chfl.TABLE_III], _PAIRS[:-1]),
        "## Figure 4: share of common columns",
        "",
        "The paper prints this figure without numbers.",
        "",
        *_table([found[setting] for setting in chfl.FIGURE_4]),
        *_differences([found[setting] for setting in chfl.FIGURE_4], _PAIRS[:-1]),
        *_gains_of_choice(list(found.values())),
        *_splits(rows),
        *_more_rounds(rows, fixed),
        *_NOTES,
        *_cost_of_the_rest(rows, list(found.values()), path),
    ]
    write_page(path, lines)
    _plot(found[chfl.TABLE_II].shown, path)


def _exceptions(lines: Sequence[_Line]) -> list[str]:
    if all(line.is_tuned for line in lines):
        return []
    return [f"In the lines that name the rate {chfl.RATE:g}, every client has this rate.", ""]


def _line(rows: list[Row], setting: chfl.Setting) -> _Line:
    return _Line(setting=setting, chosen=accuracies(rows, setting), fixed=accuracies(rows, setting, rates=(chfl.RATE,)))


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


def _gains_of_choice(lines: Sequence[_Line]) -> list[str]:
    """Return what the choice of the learning rate brings in each setting, on the same runs."""
    body = []
    for line in lines:
        if line.is_tuned and line.fixed:
            means = [difference(line.chosen.get(each, {}), line.fixed.get(each, {})) for each in METHODS]
            body.append([line.setting.title, *(mean.text(1.0, 3) if mean else "-" for mean in means)])
    return [
        "## What the choice of the learning rate brings",
        "",
        f"The accuracy if each client chooses among {_RATES}, minus the accuracy if every client has {chfl.RATE:g}, on "
        "the same runs:",
        "",
        *table_lines(["setting", *METHODS], body),
    ]


def _cost_of_the_rest(rows: list[Row], lines: Sequence[_Line], path: Path) -> list[str]:
    """Return which settings lack runs with the second learning rate, and what these runs would cost."""
    done, costs, seconds = {(row.variant, row.seed) for row in rows}, read_costs(costs_beside(path)), 0.0
    lacking = [line.setting for line in lines if not line.is_tuned]
    for setting in lacking:
        for first, second in pairwise(chfl.candidates(setting)):
            if first.method == second.method:
                of_first, seeds = seconds_for(costs, first.name)
                missing = sum((second.name, seed) not in done for seed in chfl.SEEDS)
                seconds += of_first / max(1, seeds) * missing
    if not lacking:
        return []
    return [
        f"* A second learning rate in the lines that name the rate {chfl.RATE:g}. The missing runs would cost about "
        f"{round(seconds, -2):,.0f} processor seconds.",
        "",
    ]


def _table(lines: Sequence[_Line]) -> list[str]:
    body = []
    for line in lines:
        cells = []
        for method in METHODS:
            values, setting = list(line.shown.get(method, {}).values()), line.setting
            known = chfl.PUBLISHED.get(setting, {}).get(method)
            beside = "" if known is None else f" (paper {known:.3f}, deviation {chfl.DEVIATIONS[setting][method]:.3f})"
            spread = f" (deviation {np.std(values, ddof=1):.3f})" if len(values) > 1 else ""
            cells.append(mean_of(values).text(1.0, 3) + spread + beside if values else f"-{beside}")
        runs = max((len(values) for values in line.shown.values()), default=0)
        body.append([line.title, *cells, str(runs)])
    return table_lines(["setting", *METHODS, "runs"], body)


def _differences(lines: Sequence[_Line], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the differences of pairs of methods in each setting, on the same runs."""
    body = []
    for line in lines:
        known = chfl.PUBLISHED.get(line.setting, {})
        for first, second in pairs:
            ours, theirs = line.shown.get(first, {}), line.shown.get(second, {})
            mean = difference(ours, theirs)
            if mean:
                paper = f"{known[first] - known[second]:+.3f}" if known else "-"
                wins = sum(ours[seed] > theirs[seed] for seed in ours.keys() & theirs.keys())
                cells = [paper, mean.text(1.0, 3), f"{wins} of {mean.runs}"]
                body.append([line.title, f"{first} minus {second}", *cells])
    return table_lines(["setting", "difference on the same rows and columns", "paper", "here", "runs above 0"], body)


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
