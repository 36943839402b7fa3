"""Writes the page and the plot of PLayer-FL's heart results."""

from __future__ import annotations

import operator
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import friedmanchisquare, rankdata

from benchmarks.experiments.data.uci_centres import CENTRES
from benchmarks.experiments.layer_measures import MEASURES
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.sensitivity_readings import READINGS, chosen_layers
from benchmarks.experiments.statistics import Mean, by_seed, difference, mean_of
from benchmarks.experiments.tables import player
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.variants import Row

TITLE = "PLayer-FL on four heart centres, five classes"

_THRESHOLDS: Final = (1.5, 2.0, 3.0)
_READ_AS: Final = (
    "* *all rows*: a separate pass over all training rows, with the parameters after the epoch. Every run here uses "
    "this reading.",
    "* *last batch*: the gradient of the epoch's last batch, with the parameters after the epoch. This is how "
    "algorithms 1 and 2 read, because they compute F after the local training and no other gradient exists then.",
    "* *mean of batches*: the mean over the epoch's batches, each with its own gradient and the parameters before its "
    "step. Section 6 of the paper also allows this reading, because it computes F during the first epoch.",
    "* *random batch*: a separate pass over 32 random training rows, drawn with replacement, with the parameters after "
    "the epoch and without biases. The authors' published code measures layers in this way. So their code does not "
    "reuse the gradients of training either.",
    "",
)
_RATES: Final = (
    "The two lines *up to FC1* and *up to FC3* are the paper's PLayer-FL-1 and PLayer-FL+1. Table A.3 gives them five "
    "times the learning rate of PLayer-FL. So the rate can explain their difference as well as the layers.",
    "",
)
_LOSS: Final = "test_loss"
_ABOUT_LOSSES: Final = (
    "The focal loss of the test rows, times 100 (table A.10). Each centre weights the classes by its training rows, as "
    "in training. The column *loss, here* is weighted by a centre's test rows. The paper calls its figures medians "
    "over the clients. The column *median loss, here* has the median over the four centres in each run.",
    "",
    "The heading of table A.10 has the unit 0.0001. The unit is read here as 0.01, for two reasons. The variances of "
    "table A.11 are deviations of 0.11 to 0.51 between the centres. And a cross-entropy of 0.00347 on FashionMNIST "
    "does not fit an accuracy of 88.7%. The paper does not publish its class weights, so losses can differ by them.",
    "",
)
_NOTES: Final = (
    "## What is not here",
    "",
    "* Table 2 and the columns of ranks in all tables: the paper averages them over seven data sets, and six of them "
    "are not here.",
    "* Another version of this program can give other figures of FedLP. FedLP draws the layers that it leaves out from "
    "the plan's digest, and new keys of plans change the digest. The eleven other methods of the paper gave the same "
    "figures with the versions of 2026-11-23 and 2026-11-26. FedLP gave the same figures with the versions of "
    "2026-11-26 and 2026-11-27.",
    "* The data sets FashionMNIST, EMNIST, CIFAR-10, ISIC-2019 and Sent-140: these data are not available here.",
    "* The data set MIMIC-III: only people with permission can download it.",
    "",
)


_TITLES: Final = {
    player.MEASURED: "one epoch",
    player.MEASURED_ALONE: "final, alone",
    player.MEASURED_TOGETHER: "final, FedAvg",
}
# The paper's figures that show each measure.
_FIGURES: Final = {
    player.MEASURED: dict(zip(MEASURES, ("4", "1, A.1", "2, A.4", "3, A.7"), strict=True)),
    player.MEASURED_ALONE: dict(zip(MEASURES, ("A.9", "A.2", "A.5", "A.8"), strict=True)),
    player.MEASURED_TOGETHER: dict(zip(MEASURES[:3], ("A.10", "A.3", "A.6"), strict=True)),
}
_ABOUT_MEASURES: Final = (
    "Medians over the runs. All centres start equal. *One epoch* and *final, alone*: every centre trains alone, for "
    "one epoch or for 50. *final, FedAvg*: the last shared model after 50 epochs, at each centre's training rows. All "
    "three have PLayer-FL's learning rate. The paper shows these measures as figures without numbers. In its figures "
    "the first three measures rise from the input to the output, and the similarity of two centres' representations "
    "(linear CKA) falls. The paper divides the Hessian's trace by a layer's number of parameters, and shows the "
    "sensitivity in percent of the first layer.",
    "",
)


def render_player(rows: list[Row], path: Path) -> None:
    """Tables 1 and A.5 to A.12 of the paper for heart, the measures of layers and the layers that follow."""
    lines = begin_page(TITLE, "player", path)
    lines += [
        "Macro-F1 and accuracy are in percent and weighted by a centre's test rows. Rank: the mean over the runs of a "
        "method's rank by F1 among the paper's twelve, 1 is the best. *Paper* is the published figure.",
        "",
        "The paper calls its accuracies medians over the clients (table A.7). The last column of accuracy has the "
        "median over the four centres in each run. These medians are much further from the paper than the means, "
        "so the medians do not explain why the accuracies here are lower.",
        "",
        "The column *rate* is the learning rate. Table A.3 lists none for FedLP, FedLAMA, pFedLA and the random "
        "prefix. Here FedLP, FedLAMA and pFedLA have FedAvg's learning rate, and the random prefix has PLayer-FL's.",
        "",
        *_scores(rows),
        "pFedMe and FedBABU are 11 points below the paper with the plan's defaults. The paper publishes neither the "
        "step of pFedMe's shared model nor FedBABU's epochs of fine-tuning. The lines *shared step 0.1* (default 0.01) "
        "and *tuned 10 epochs* (default 1) show what these two change. *tuned 10 epochs, rate 0.01* also has a smaller "
        "learning rate. These three lines were added after the test figures of the defaults were known. The runner "
        "does not choose their settings on validation rows, so their test figures can be too high.",
        "",
        *_friedman(rows),
    ]
    lines += [
        "## Fairness and incentive, by F1",
        "",
        "Variance: of the four centres' mean F1, smaller is fairer (equation A.5). Incentive: the percentage of "
        "centres with a mean F1 above their own alone and above FedAvg's (equation A.6).",
        "",
        *_each_centre(rows, "macro_f1"),
        "## Fairness and incentive, by accuracy",
        "",
        "The same by accuracy (tables A.8 and A.9).",
        "",
        *_each_centre(rows, "accuracy"),
        *_losses(rows),
    ]
    lines += ["## F1 at each centre, percent", "", *_centres(rows)]
    lines += ["## Differences on the same seeds, points of F1", "", *_differences(rows), *_RATES]
    lines += ["## What the layers show", "", *_measures(rows)]
    lines += ["## Sensitivities and the chosen layers", "", *_layers(rows), *_readings(rows), *_NOTES]
    write_page(path, lines)
    _plot(rows, path)


def weighted_by_seed(rows: list[Row], variant: str, metric: str = "macro_f1") -> dict[int, float]:
    """Return for each seed the mean of a metric over the centres, weighted by test rows."""
    scores: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row.variant == variant and row.site != player.FEDERATION and metric in row.metrics:
            scores.setdefault(row.seed, []).append((row.metrics[metric], row.metrics["rows"]))
    return {
        seed: float(np.average([score for score, _ in pairs], weights=[weight for _, weight in pairs]))
        for seed, pairs in scores.items()
    }


def _present(rows: list[Row]) -> list[str]:
    there = {row.variant for row in rows}
    return [name for name in player.METHODS if name in there]


def _published(rows: list[Row]) -> list[str]:
    """Return the paper's twelve methods, as far as they have results."""
    return [name for name in _present(rows) if player.METHODS[name].f1 is not None]


def _ranks(rows: list[Row]) -> tuple[list[str], np.ndarray]:
    """Return the paper's methods and their ranks by F1, (runs, methods), for runs that all methods have."""
    names = _published(rows)
    found = [weighted_by_seed(rows, name) for name in names]
    seeds = sorted(set.intersection(*map(set, found))) if found else []
    return names, np.array([rankdata([-scores[seed] for scores in found]) for seed in seeds])


def _scores(rows: list[Row]) -> list[str]:
    names, ranks = _ranks(rows)
    rank = dict(zip(names, ranks.mean(0), strict=True)) if len(ranks) else {}
    body = []
    for name in _present(rows):
        entry, found = player.METHODS[name], weighted_by_seed(rows, name)
        accuracy = mean_of(list(weighted_by_seed(rows, name, "accuracy").values()))
        median = mean_of(_medians(rows, name))
        shown = [_pair(entry.f1), mean_of(list(found.values())).text(), _pair(entry.accuracy)]
        shown += [accuracy.text(), median.text()]
        body.append([name, f"{entry.rate:g}", *shown, f"{rank[name]:.1f}" if name in rank else "-", str(len(found))])
    accuracies = ["accuracy, paper", "accuracy, here", "median accuracy, here"]
    return table_lines(["method", "rate", "F1, paper", "F1, here", *accuracies, "rank", "runs"], body)


def _medians(rows: list[Row], name: str, metric: str = "accuracy") -> list[float]:
    """The median of a metric over the centres in each run."""
    centres = [by_seed(rows, name, site, metric) for site in CENTRES]
    return [float(np.median([centre[seed] for centre in centres if seed in centre])) for seed in sorted(centres[0])]


def _friedman(rows: list[Row]) -> list[str]:
    names, ranks = _ranks(rows)
    if len(names) < 3 or len(ranks) < 3:
        return []
    _, chance = friedmanchisquare(*ranks.T)
    shown = "below .001" if chance < 0.001 else f"{chance:.3f}"
    return [
        f"Friedman's test of equal ranks over {len(ranks)} runs: p {shown}. The paper's test is over seven tables, of "
        "which this is one. The runs share one split, so this p is about the methods on these patients only.",
        "",
    ]


def _each_centre(rows: list[Row], metric: str) -> list[str]:
    alone, shared = _means(rows, "local", metric), _means(rows, "fedavg", metric)
    sign = -1.0 if metric == _LOSS else 1.0
    body = []
    for name in _present(rows):
        entry, own = player.METHODS[name], _means(rows, name, metric)
        if not own:
            continue
        known, gained = {
            "macro_f1": (entry.variance, entry.incentive),
            "accuracy": (entry.accuracy_variance, entry.accuracy_incentive),
            _LOSS: (entry.loss_variance, entry.loss_incentive),
        }[metric]
        incentive = "-"
        if name not in ("local", "fedavg") and alone and shared:
            better = [sign * own[site] > max(sign * alone[site], sign * shared[site]) for site in CENTRES]
            incentive = f"{100 * np.mean(better):.0f}"
        published = "-" if known is None else f"{known:.3f}", "-" if gained is None else f"{gained:.0f}"
        body.append([name, published[0], f"{np.var(list(own.values())):.3f}", published[1], incentive])
    return table_lines(["method", "variance, paper", "variance, here", "incentive, paper", "incentive, here"], body)


def _losses(rows: list[Row]) -> list[str]:
    """Return tables A.10 to A.12, if the rows have the loss."""
    body = []
    for name in _present(rows):
        found = weighted_by_seed(rows, name, _LOSS)
        if found:
            median = mean_of(_medians(rows, name, _LOSS))
            shown = [_pair(player.METHODS[name].loss), mean_of(list(found.values())).text(), median.text()]
            body.append([name, *shown, str(len(found))])
    if not body:
        return []
    return [
        "## Test loss",
        "",
        *_ABOUT_LOSSES,
        *table_lines(["method", "loss, paper", "loss, here", "median loss, here", "runs"], body),
        "Variance and incentive by the loss (tables A.11 and A.12). A smaller loss is better.",
        "",
        *_each_centre(rows, _LOSS),
    ]


def _means(rows: list[Row], name: str, metric: str) -> dict[str, float]:
    """A method's mean over the runs at each centre."""
    found = {site: list(by_seed(rows, name, site, metric).values()) for site in CENTRES}
    return {site: float(np.mean(values)) for site, values in found.items() if values}


def _centres(rows: list[Row]) -> list[str]:
    body = [
        [name, *(mean_of(list(by_seed(rows, name, site, "macro_f1").values())).text() for site in CENTRES)]
        for name in _present(rows)
    ]
    return table_lines(["method", *CENTRES], body)


def _differences(rows: list[Row]) -> list[str]:
    body = []
    for first, second in (
        ("player-fl", "fedavg"),
        ("player-fl", "local"),
        ("player-fl", "player-fl-random"),
        ("player-fl", "player-fl up to FC1"),
        ("player-fl", "player-fl up to FC3"),
        ("fedavg", "local"),
    ):
        found = difference(weighted_by_seed(rows, first), weighted_by_seed(rows, second))
        if found:
            body.append([f"{first} minus {second}", found.text()])
    return table_lines(["difference", "points"], body)


def _measures(rows: list[Row]) -> list[str]:
    """Return the medians of all measures, after one epoch and of final models."""
    body = []
    for variant in _TITLES:
        measured = [row for row in rows if row.variant == variant and row.site == player.FEDERATION]
        if not measured:
            continue
        for kind, figures in _FIGURES[variant].items():
            found = np.median([[row.metrics[f"{kind} {layer}"] for layer in player.LAYERS] for row in measured], axis=0)
            shown = {kind: found}
            if kind == "sensitivity":
                shown["sensitivity, percent of FC1"] = 100 * found / found[0]
            if kind == "Hessian trace":
                shown["Hessian trace by parameter"] = found / np.array(player.SIZES)
            for title, values in shown.items():
                figure = figures if title == list(shown)[-1] else "-"
                cells = [f"{value:,.0f}" if "percent" in title else f"{value:.3g}" for value in values]
                body.append([_TITLES[variant], title, *cells, figure, str(len(measured))])
    header = ["models", "measure", *player.LAYERS, "figure", "runs"]
    return [*_ABOUT_MEASURES, *table_lines(header, body)] if body else []


def _layers(rows: list[Row]) -> list[str]:
    of_federation = (row for row in rows if row.variant == player.CHOSEN_BY and row.site == player.FEDERATION)
    measured = sorted(of_federation, key=_seed)
    if not measured:
        return []
    body, ratios, chosen = [], [], Counter[str]()
    for row in measured:
        found = [row.metrics[f"F {layer}"] for layer in player.LAYERS]
        ratios.append([after / before for before, after in pairwise(found)])
        last = player.LAYERS[int(row.metrics["layers"]) - 1]
        chosen[last] += 1
        cells = [str(row.seed), *(f"{value:.3g}" for value in found), *(f"{ratio:.2f}" for ratio in ratios[-1])]
        body.append([*cells, f"up to {last}"])
    medians = ", ".join(f"{value:.2f}" for value in np.median(ratios, axis=0))
    before = ", ".join(f"{value:.2f}" for value in player.MEASURED_RATIOS)
    counts = ", ".join(f"up to {layer} in {count}" for layer, count in sorted(chosen.items()))
    lines = [
        f"Medians of F_(l+1) / F_l over {len(measured)} seeds: {medians} (an independent measurement: {before}). "
        f"With a threshold of 2 the sites federate {counts} of {len(measured)} runs; the paper's answer is FC2. "
        "How steeply F rises depends on the start: the authors' weights start as Kaiming's rule has it, 2.4 times as "
        "large as torch's, with biases of 0. A plan cannot choose that start.",
        "",
    ]
    steps = [f"{after} / {before}" for before, after in pairwise(player.LAYERS)]
    return lines + table_lines(["seed", *(f"F {layer}" for layer in player.LAYERS), *steps, "federated"], body)


def _readings(rows: list[Row]) -> list[str]:
    """Return the sensitivities and the chosen layers, for each choice of the gradients."""
    of_federation = (row for row in rows if row.variant == player.READ and row.site == player.FEDERATION)
    read = sorted(of_federation, key=_seed)
    if not read:
        return []
    lines = [
        "## Gradients of training, or a separate pass?",
        "",
        f"`python -m benchmarks.papers player --data FOLDER --variant {player.READ}`",
        "",
        "The paper computes the sensitivities with gradients of training, and does not say with which ones. The same "
        f"{len(read)} runs as above, read in four ways:",
        "",
        *_READ_AS,
    ]
    found = {
        reading: np.array([[row.metrics[f"{reading} {layer}"] for layer in player.LAYERS] for row in read])
        for reading in READINGS
    }
    lines += ["Geometric means of F over the runs, with 95% intervals, in millionths:", ""]
    body = [[name, *(_geometric(1e6 * column) for column in values.T)] for name, values in found.items()]
    lines += table_lines(["gradients", *(f"F {layer}" for layer in player.LAYERS)], body)
    lines += [
        "Geometric means of the ratios, and the number of runs that federate up to FC2. In brackets: up to FC1, and "
        "up to FC3.",
        "",
    ]
    steps = [f"{after} / {before}" for before, after in pairwise(player.LAYERS)]
    body = []
    for name, values in found.items():
        ratios = [_geometric(column) for column in (values[:, 1:] / values[:, :-1]).T]
        body.append([name, *ratios, *(_cuts(values, threshold) for threshold in _THRESHOLDS)])
    lines += table_lines(["gradients", *steps, *(f"threshold {each:g}" for each in _THRESHOLDS)], body)
    return [*lines, *_agreement(found)]


def _agreement(found: dict[str, np.ndarray]) -> list[str]:
    """Return in how many runs another interpretation chooses the same layers as the run."""
    cuts = {
        name: [[chosen_layers(run.tolist(), each) for run in values] for each in _THRESHOLDS]
        for name, values in found.items()
    }
    own, runs = cuts[READINGS[0]], len(found[READINGS[0]])
    differing = [
        f"{name}: " + ", ".join(str(sum(map(operator.ne, *pair))) for pair in zip(own, cuts[name], strict=True))
        for name in READINGS[1:]
    ]
    default = sum(cut != mine for name in READINGS[1:] for cut, mine in zip(cuts[name][1], own[1], strict=True))
    said = (
        "With the plan's threshold of 2 every reading federates the same layers in every run."
        if default == 0
        else f"With the plan's threshold of 2 another reading federates other layers in {default} cases."
    )
    limits = ", ".join(f"{each:g}" for each in _THRESHOLDS)
    return [
        f"{said} Runs of {runs} in which a reading chooses other layers than *all rows*, at the thresholds {limits}: "
        f"{'; '.join(differing)}. Gradients of single batches make F larger. They change the ratios much less, and "
        "only the ratios choose the layers. So the separate pass stays, because it does not depend on the order of the "
        "batches.",
        "",
    ]


def _geometric(values: np.ndarray) -> str:
    mean = mean_of(np.log(values).tolist())
    if mean.runs < 2:
        return f"{np.exp(mean.value):.3g}"
    low, high = np.exp(mean.value - mean.half_width), np.exp(mean.value + mean.half_width)
    return f"{np.exp(mean.value):.3g} ({low:.3g} to {high:.3g})"


def _cuts(values: np.ndarray, threshold: float) -> str:
    counts = Counter(chosen_layers(found.tolist(), threshold) for found in values)
    return f"{counts[2]} ({counts[1]}, {counts[3]})"


def _seed(row: Row) -> int:
    return row.seed


def _pair(published: tuple[float, float] | None) -> str:
    return "-" if published is None else f"{published[0]:.1f} ± {published[1]:.1f}"


def _plot(rows: list[Row], path: Path) -> None:
    names = _present(rows)
    if not names:
        return
    panels = {
        "weighted by rows": [
            Dot(
                name=name,
                mean=_percent(weighted_by_seed(rows, name)),
                published=None if (known := player.METHODS[name].f1) is None else known[0],
            )
            for name in names
        ]
    }
    for site in CENTRES:
        panels[site] = [Dot(name=name, mean=_percent(by_seed(rows, name, site, "macro_f1"))) for name in names]
    plot_dots(path.with_suffix(".svg"), panels, title=TITLE, axis="macro-F1, percent")


def _percent(values: dict[int, float]) -> Mean:
    return mean_of([100 * value for value in values.values()])
