"""Draws the plots of a site's report from the facts of this report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from host.plots import (
    COLOURS,
    OTHER_REFERENCE,
    REFERENCE,
    Axis,
    Row,
    Series,
    axis_over,
    intervals,
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
    "roc": ("ROC curve", "false positive rate (1 - specificity)", "sensitivity"),
    "calibration": ("Calibration", "predicted probability", "share that had the outcome"),
    "decision": ("Decision curve", "threshold probability", "net benefit per row"),
}
# If there are several classes, only these models have decision curves, one curve for each class.
_CALIBRATED: Final = (FEDERATED, SILOED)
_BEYOND: Final = 1.2
_BIN: Final = 0.011  # a little more than the step between two thresholds


def title_of(name: str) -> str:
    """Return the name of a model as the reader of a report sees it."""
    return _TITLES.get(name, name)


def ranking_plots(facts: Facts) -> list[str]:
    """Draw the ROC curve with a line for each model. List the models without a line.

    If there are several classes, the lines are those of the federated model, of each of the first classes against all
    other classes.
    """
    if not facts["curves"]:
        return []
    outcomes = list(facts["treat_all"])
    if facts["task"] == "multi-class":
        lines = {f"class {name}": facts["curves"][FEDERATED][name] for name in outcomes[:COLOURS]}
        words = (
            "The curve shows the federated model, for each class against all other classes. The table has the other "
            "models."
        )
        return [figures(_ranking(lines)), *_left_out(outcomes, words)]
    chosen = _shown(facts)[:COLOURS]
    lines = {title_of(name): facts["curves"][name][outcomes[0]] for name in chosen}
    return [figures(_ranking(lines)), *_without(facts, chosen)]


def decision_plots(facts: Facts) -> list[str]:
    """Draw a decision curve for each of the first outcomes, up to slightly above the highest chosen threshold."""
    outcomes, last = list(facts["treat_all"]), min(1.0, _BEYOND * max(facts["thresholds"]))
    is_several = len(outcomes) > 1
    chosen = _shown(facts)
    chosen = [name for name in chosen if name in _CALIBRATED] if is_several else chosen[:COLOURS]
    drawn = []
    for outcome in outcomes[:COLOURS]:
        lines = {title_of(name): facts["curves"][name][outcome]["decision"] for name in chosen}
        of = f", class {outcome}" if is_several else ""
        drawn.append(_decision(lines, facts["treat_all"][outcome], last, of))
    if is_several:
        return [
            figures(*drawn),
            *_left_out(outcomes, "Each class has its own decision curve, against all other classes."),
        ]
    return [figures(*drawn), *_without(facts, chosen)]


def calibration_plots(facts: Facts) -> list[str]:
    """Draw the calibration of each model. If there are several classes, draw only the federated model, by class."""
    outcomes = list(facts["treat_all"])
    if len(outcomes) > 1:
        lines = {f"class {name}": facts["curves"][FEDERATED][name] for name in outcomes[:COLOURS]}
        words = (
            "The plots show the federated model, for each class against all other classes. The table has all models."
        )
        return [figures(*(_calibration(label, one) for label, one in lines.items())), *_left_out(outcomes, words)]
    shown = _shown(facts)
    drawn = [_calibration(title_of(name), facts["curves"][name][outcomes[0]]) for name in shown]
    return [figures(*drawn), *_without(facts, shown)]


def _shown(facts: Facts) -> list[str]:
    """Return the names of the models whose curves are drawn. The constant guess has no curve."""
    return [name for name in facts["curves"] if not name.endswith("guess")]


def _without(facts: Facts, shown: Sequence[str]) -> list[str]:
    hidden = [title_of(name) for name in facts["curves"] if name not in shown]
    return [paragraph(f"These models have no line in the plots: {', '.join(hidden)}.", "soft")] if hidden else []


def _decision(lines: Mapping[str, Facts], all_treated: Facts, last: float, of: str) -> str:
    title, across, up = _KINDS["decision"]

    def within(line: Facts) -> tuple[list[float], list[float]]:
        points = [(x, y) for x, y in zip(line["xs"], line["ys"], strict=True) if x <= last + _BIN]
        return [x for x, _ in points], [y for _, y in points]

    highest = max(0.01, *(max(within(line)[1]) for line in [*lines.values(), all_treated]))
    x, y = Axis(label=across, low=0.0, high=last), Axis(label=up, low=-0.25 * highest, high=1.1 * highest)
    xs, ys = within(all_treated)
    series = [
        Series(label="treat nobody", xs=[0, last], ys=[0, 0], colour=REFERENCE),
        Series(label="treat all", xs=xs, ys=ys, colour=OTHER_REFERENCE),
    ]
    for colour, (label, line) in enumerate(lines.items()):
        xs, ys = within(line)
        series.append(Series(label=label, xs=xs, ys=ys, colour=colour))
    return figure(title + of, plot(f"{title}{of}: {up} against {across}", x, y, series))


def _calibration(label: str, line: Facts) -> str:
    title, across, up = _KINDS["calibration"]
    x, y = Axis(label=across, **_SHARE), Axis(label=up, **_SHARE)
    series = [Series(label="perfect", xs=[0, 1], ys=[0, 1], colour=REFERENCE)]
    if (found := line["calibration"]) is not None:
        groups = "groups of about equal size"
        series.append(Series(label=groups, xs=found["xs"], ys=found["ys"], colour=0, kind="points"))
    return figure(f"{title}, {label}", plot(f"{title} of {label}: {up} against {across}", x, y, series))


def _left_out(outcomes: Sequence[str], words: str) -> list[str]:
    more = f" Only the first {COLOURS} of {len(outcomes)} classes are drawn." if len(outcomes) > COLOURS else ""
    return [paragraph(words + more, "soft")]


def predicted_and_observed(facts: Facts) -> list[str]:
    """Draw a regression's predictions for the test rows against the observed values."""
    points = facts.get("predicted_and_observed")
    if points is None:
        return []
    unit = f", {facts['unit']}" if facts["unit"] else ""
    both = axis_over("", [*points["xs"], *points["ys"]])
    x = Axis(label=f"predicted{unit}", low=both.low, high=both.high)
    y = Axis(label=f"observed{unit}", low=both.low, high=both.high)
    ends = [both.low, both.high]
    series = [
        Series(label="equal", xs=ends, ys=ends, colour=REFERENCE),
        Series(label="test rows", xs=points["xs"], ys=points["ys"], colour=0, kind="points"),
    ]
    return [
        figures(figure("Predicted and observed", plot("Predicted against observed values of test rows", x, y, series)))
    ]


def subgroup_plot(found: Sequence[Facts], metric: str, label: str) -> str:
    """Draw the main metric, such as AUROC, for each group of patients."""
    rows = []
    for one in found:
        few = " (few)" if one["is_small"] else ""
        rows.append(Row(label=f"{one['group']}: {one['value']}{few}", value=one[metric], interval=one["interval"]))
    return figure(f"{label} by group", intervals(f"{label} in every subgroup", label, rows), is_wide=True)


def _ranking(lines: Mapping[str, Facts]) -> str:
    title, across, up = _KINDS["roc"]
    series = [Series(label="chance", xs=[0, 1], ys=[0, 1], colour=REFERENCE)]
    for colour, (label, line) in enumerate(lines.items()):
        if (found := line["roc"]) is not None:
            series.append(Series(label=label, xs=found["xs"], ys=found["ys"], colour=colour))
    about = f"{title}: {up} against {across}"
    return figure(title, plot(about, Axis(label=across, **_SHARE), Axis(label=up, **_SHARE), series))
