"""Tables in Markdown, beside the published figures."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.experiments.data.heart import FILES
from benchmarks.experiments.data.uci_centres import CENTRES
from benchmarks.experiments.statistics import by_seed, difference, mean_of
from benchmarks.experiments.tables import fed_heart, heart
from benchmarks.experiments.variants import Row


def render_heart(rows: list[Row], path: Path) -> None:
    """Global Layers' heart table."""
    present = list(dict.fromkeys(row.variant for row in rows))
    lines = ["# Heart: three hospitals with other columns, patients and outcomes", "", *_origin("heart"), ""]
    for metric, title in (
        ("auroc", "AUROC, percent"),
        ("auprc", "AUPRC, percent"),
        ("balanced_accuracy_at_logit_half", "Balanced accuracy at the authors' threshold (logit 0.5), percent"),
        ("balanced_accuracy", "Balanced accuracy at probability 0.5, percent"),
    ):
        lines += [f"## {title}", "", *_heart_metric(rows, present, metric), ""]
    lines += ["## Differences of AUROC on the same seeds, points", "", *_heart_differences(rows, present), ""]
    path.write_text("\n".join(lines))


def _heart_metric(rows: list[Row], present: Sequence[str], metric: str) -> list[str]:
    published = heart.METRICS.index(metric) if metric in heart.METRICS else None
    body = []
    for variant in present:
        cells = [variant]
        for site in FILES:
            found = by_seed(rows, variant, site, metric)
            known = heart.PUBLISHED.get(variant, {}).get(site) if published is not None else None
            beside = f" (paper {known[published]:.2f})" if known is not None and published is not None else ""
            cells.append(mean_of(list(found.values())).text() + beside if found else "-")
        body.append(cells)
    return _markdown(["variant", *FILES], body)


def _heart_differences(rows: list[Row], present: Sequence[str]) -> list[str]:
    pairs = (
        ("global-layers, authors", "local, authors"),
        ("global-layers, authors", "placebo, authors"),
        ("placebo, authors", "local, authors"),
        ("global-layers, authors", "fedavg, authors"),
        ("global-layers, authors", "fedavg, aligned"),
        ("global-layers, paper", "local, paper"),
        ("global-layers, declared", "local, declared"),
    )
    body = []
    for first, second in pairs:
        if first in present and second in present:
            cells = [f"{first} minus {second}"]
            for site in FILES:
                found = difference(by_seed(rows, first, site, "auroc"), by_seed(rows, second, site, "auroc"))
                cells.append(found.text() if found else "-")
            body.append(cells)
    return _markdown(["difference", *FILES], body)


def render_fed_heart(rows: list[Row], path: Path) -> None:
    """FENDA-FL's tables 2 and 5."""
    lines = ["# Fed-Heart-Disease: four centres, accuracy", "", *_origin("fed-heart"), ""]
    lines += ["## Mean over the centres", "", *_checkpoints(rows), "", "## Per centre, checkpoint local", ""]
    body = []
    names = [*fed_heart.ENTRIES, "central", "placebo of fenda-fl"]
    for variant in (*(f"{name}, local" for name in names), "majority"):
        found = [list(by_seed(rows, variant, site, "accuracy").values()) for site in CENTRES]
        if all(found):
            body.append([variant, *(mean_of(values).text(1.0, 3) for values in found)])
    lines += [*_markdown(["method", *CENTRES], body), "", "## Differences on the same runs", ""]
    body = []
    for first, second in (
        ("fenda-fl, local", "siloed, local"),
        ("fenda-fl, local", "siloed, network of fenda-fl, local"),
        ("fenda-fl, local", "placebo of fenda-fl, local"),
        ("fedper, local", "siloed, local"),
        ("ditto, local", "siloed, local"),
        ("apfl, local", "siloed, local"),
        ("perfcl, local", "siloed, local"),
    ):
        found_difference = difference(by_seed(rows, first, None, "accuracy"), by_seed(rows, second, None, "accuracy"))
        if found_difference:
            body.append([f"{first} minus {second}", found_difference.text(1.0, 3)])
    lines += [*_markdown(["difference", "mean over the centres"], body), ""]
    path.write_text("\n".join(lines))


def _checkpoints(rows: list[Row]) -> list[str]:
    body = []
    for name in (*fed_heart.ENTRIES, "central"):
        cells = [name]
        for place, checkpoint in enumerate(fed_heart.CHECKPOINTS):
            found = by_seed(rows, f"{name}, {checkpoint}", None, "accuracy")
            known = fed_heart.PUBLISHED.get(name, (None, None, None))[place]
            beside = f" (paper {known:.3f})" if known is not None else ""
            cells.append(mean_of(list(found.values())).text(1.0, 3) + beside if found else "-")
        body.append(cells)
    majority = by_seed(rows, "majority", None, "accuracy")
    if majority:
        body.append(["majority guess", mean_of(list(majority.values())).text(1.0, 3), "-", "-"])
    return _markdown(["method", *(f"checkpoint {name}" for name in fed_heart.CHECKPOINTS)], body)


def _origin(table: str) -> list[str]:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    today = datetime.now(UTC).date().isoformat()
    python = ".".join(map(str, sys.version_info[:3]))
    return [
        f"`python -m benchmarks.papers {table} --data FOLDER` on {today}; Python {python}, {versions}, "
        f"{platform.machine()}. Means over runs with 95% intervals (Student).",
    ]


def _markdown(header: Iterable[str], body: Iterable[Sequence[str]]) -> list[str]:
    head = list(header)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cells) + " |" for cells in body]
