"""Draws the plots of a site's report from the facts of this report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from host.plots import (
    COLOURS,
    OTHER_REFERENCE,
    REFERENCE,
    Axis,
    Series,
    plot,
)
from host.printed_page import figure, figures, paragraph
from site_agent.desk.comparison.gain import FEDERATED, PLACEBO, SILOED
from site_agent.desk.results.simple_models import TITLES

# The facts are JSON. Tests check the names of their keys.
Facts: TypeAlias = Mapping[str, Any]
_TITLES: Final = {
    FEDERATED: "federated",
    SILOED: "trained alone (siloed)",
    PLACEBO: "federated with copies of itself",
    "majority_guess": "guess by prevalence",
    "mean_guess": "guess by the mean",
    **TITLES,
}
_SHARE: Final = {"low": 0.0, "high": 1.0}
_KINDS: Final = {
    "calibration": ("Calibration", "predicted probability", "share that had the outcome"),
    "decision": ("Decision curve", "threshold probability", "net benefit per row"),
}
_LAST_THRESHOLD: Final = 0.6


def title_of(name: str) -> str:
    """Return the name of a model as the reader of a report sees it."""
    return _TITLES.get(name, name)


def decision_plot(facts: Facts) -> list[str]:
    """Draw the decision curve with a line for each model, beside the two choices without a model."""
    title, across, up = _KINDS["decision"]

    def within(line: Facts) -> tuple[list[float], list[float]]:
        points = [(x, y) for x, y in zip(line["xs"], line["ys"], strict=True) if x <= _LAST_THRESHOLD]
        return [x for x, _ in points], [y for _, y in points]

    chosen, all_treated = _shown(facts)[:COLOURS], facts["treat_all"]
    lines = {title_of(name): facts["curves"][name]["decision"] for name in chosen}
    highest = max(0.01, *(max(within(line)[1]) for line in [*lines.values(), all_treated]))
    x = Axis(label=across, low=0.0, high=_LAST_THRESHOLD)
    y = Axis(label=up, low=-0.25 * highest, high=1.1 * highest)
    xs, ys = within(all_treated)
    series = [
        Series(label="treat nobody", xs=[0, _LAST_THRESHOLD], ys=[0, 0], colour=REFERENCE),
        Series(label="treat all", xs=xs, ys=ys, colour=OTHER_REFERENCE),
    ]
    for colour, (label, line) in enumerate(lines.items()):
        xs, ys = within(line)
        series.append(Series(label=label, xs=xs, ys=ys, colour=colour))
    return [figures(figure(title, plot(f"{title}: {up} against {across}", x, y, series))), *_without(facts, chosen)]


def calibration_plots(facts: Facts) -> list[str]:
    """Draw the calibration of each model."""
    shown = _shown(facts)
    drawn = [_calibration(title_of(name), facts["curves"][name]) for name in shown]
    return [figures(*drawn), *_without(facts, shown)]


def _shown(facts: Facts) -> list[str]:
    return [name for name in facts["curves"] if not name.endswith("guess")]


def _without(facts: Facts, shown: Sequence[str]) -> list[str]:
    hidden = [title_of(name) for name in facts["curves"] if name not in shown]
    return [paragraph(f"These models have no line in the plots: {', '.join(hidden)}.", "soft")] if hidden else []


def _calibration(label: str, line: Facts) -> str:
    title, across, up = _KINDS["calibration"]
    x, y = Axis(label=across, **_SHARE), Axis(label=up, **_SHARE)
    series = [Series(label="perfect", xs=[0, 1], ys=[0, 1], colour=REFERENCE)]
    if (found := line["calibration"]) is not None:
        groups = "groups of about equal size"
        series.append(Series(label=groups, xs=found["xs"], ys=found["ys"], colour=0, kind="points"))
    return figure(f"{title}, {label}", plot(f"{title} of {label}: {up} against {across}", x, y, series))
