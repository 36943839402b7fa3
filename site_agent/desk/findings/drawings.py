"""The plots of a site's report, from its facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from site_agent.desk.pages.page_document import figure, figures, paragraph
from site_agent.desk.pages.plots import (
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
from site_agent.trainer.comparison.gain import FEDERATED, PLACEBO, SILOED

Facts: TypeAlias = Mapping[str, Any]
_MOST_FEATURES: Final = 20
_SHARE: Final = {"low": 0.0, "high": 1.0}
_KINDS: Final = {
    "receiver_operating_characteristic": ("ROC curve", "false positive rate (1 - specificity)", "sensitivity"),
    "precision_recall": ("Precision and recall", "sensitivity (recall)", "positive predictive value (precision)"),
    "calibration": ("Calibration", "predicted probability", "share that had the outcome"),
    "decision": ("Decision curve", "threshold probability", "net benefit per row"),
}
# The curves of a calibration of many models would hide each other; of the networks both are shown.
_CALIBRATED: Final = (FEDERATED, SILOED)


def model_curves(facts: Facts, kinds: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Curves of one outcome, a line for each model, with what is left out; nothing where there is no outcome."""
    if not facts["curves"]:
        return []
    outcome = next(iter(facts["treat_all"]))
    drawn, hidden = [], dict[str, None]()
    for kind in kinds:
        chosen = [name for name in facts["curves"] if not name.endswith("guess")][:COLOURS]
        chosen = [name for name in chosen if name in _CALIBRATED] if kind == "calibration" else chosen
        lines = {names.get(name, name): facts["curves"][name][outcome] for name in chosen}
        drawn.append(_drawing(kind, lines, facts["treat_all"][outcome], facts["prevalence"]))
        hidden |= dict.fromkeys(names.get(name, name) for name in facts["curves"] if name not in chosen)
    left_out = [paragraph(f"Without a line here: {', '.join(hidden)}.", "soft")] if hidden else []
    return [figures(*drawn), *left_out]


def class_curves(facts: Facts, kinds: Sequence[str]) -> list[str]:
    """Curves of the federated model, a line for each of the first classes against the rest."""
    outcomes = list(facts["treat_all"])
    lines = {f"class {name}": facts["curves"][FEDERATED][name] for name in outcomes[:COLOURS]}
    words = (
        "These are curves of the federated model, of each class against the rest; the other models are in the table."
    )
    return [figures(*(_drawing(kind, lines, None, None) for kind in kinds)), *_left_out(outcomes, words)]


def class_decisions(facts: Facts, names: Mapping[str, str]) -> list[str]:
    """A decision curve for each of the first classes: treating all is another line for each of them."""
    outcomes = list(facts["treat_all"])
    drawn = []
    for outcome in outcomes[:COLOURS]:
        lines = {
            names.get(name, name): facts["curves"][name][outcome] for name in _CALIBRATED if name in facts["curves"]
        }
        drawn.append(_drawing("decision", lines, facts["treat_all"][outcome], None, f", class {outcome}"))
    return [figures(*drawn), *_left_out(outcomes, "Each class is treated against the rest.")]


def _left_out(outcomes: Sequence[str], words: str) -> list[str]:
    more = f" Only the first {COLOURS} of {len(outcomes)} classes are drawn." if len(outcomes) > COLOURS else ""
    return [paragraph(words + more, "soft")]


def predicted_and_observed(facts: Facts) -> list[str]:
    """A regression's test rows, predicted against observed."""
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
    """The headline metric in each subgroup."""
    rows = []
    for one in found:
        low, high = one["interval"] or (None, None)
        few = " (few)" if one["is_small"] else ""
        rows.append(Row(label=f"{one['group']}: {one['value']}{few}", value=one[metric], low=low, high=high))
    return figure(f"{label} by group", intervals(f"{label} in every subgroup", label, rows), is_wide=True)


def importance_plot(found: Sequence[Facts], label: str) -> str:
    """The features with the greatest importance; the span is one standard deviation of the shuffles."""
    rows = [
        Row(
            label=one["feature"],
            value=one["loss"],
            low=one["loss"] - one["deviation"],
            high=one["loss"] + one["deviation"],
        )
        for one in found[:_MOST_FEATURES]
    ]
    words = f"loss in {label} when shuffled (± one standard deviation)"
    return figure("Permutation importance", intervals(words, words, rows, reference=0.0), is_wide=True)


def learning_plot(facts: Facts, names: Mapping[str, str]) -> str:
    """Validation loss by round of each network, and the round that was kept."""
    series, kept = [], []
    for colour, name in enumerate(one for one in (FEDERATED, SILOED, PLACEBO) if "checkpoint" in facts.get(one, {})):
        checkpoint = facts[name]["checkpoint"]
        points = [(number, loss) for number, loss in checkpoint["validation_losses"] if loss is not None]
        xs, ys = [float(number) for number, _ in points], [loss for _, loss in points]
        label = names.get(name, name)
        series.append(Series(label=label, xs=xs, ys=ys, colour=colour))
        if checkpoint["loss"] is not None:
            at = Series(label="", xs=[checkpoint["round"]], ys=[checkpoint["loss"]], colour=colour, kind="points")
            kept.append(at)
    everywhere = [*series, *kept]
    x = axis_over("round (the dot is the one that was kept)", [x for one in everywhere for x in one.xs])
    y = axis_over("loss on the validation rows", [y for one in everywhere for y in one.ys])
    return figure("Learning curves", plot("Validation loss by round", x, y, everywhere))


def _drawing(
    kind: str, lines: Mapping[str, Facts], all_treated: Facts | None, prevalence: float | None, of: str = ""
) -> str:
    title, across, up = _KINDS[kind]
    x, y = Axis(label=across, **_SHARE), Axis(label=up, **_SHARE)
    series: list[Series] = []
    if kind in ("receiver_operating_characteristic", "calibration"):
        series.append(Series(label="chance" if kind[0] == "r" else "perfect", xs=[0, 1], ys=[0, 1], colour=REFERENCE))
    if kind == "precision_recall" and prevalence is not None:
        series.append(Series(label="chance", xs=[0, 1], ys=[prevalence, prevalence], colour=REFERENCE))
    if kind == "decision":
        drawn = [*(line[kind] for line in lines.values()), *([all_treated] if all_treated is not None else [])]
        highest = max([0.05, *(max(line["ys"]) for line in drawn)])
        y = Axis(label=up, low=-0.25 * highest, high=1.1 * highest)
        series.append(Series(label="treat nobody", xs=[0, 1], ys=[0, 0], colour=REFERENCE))
        if all_treated is not None:
            xs, ys = all_treated["xs"], all_treated["ys"]
            series.append(Series(label="treat all", xs=xs, ys=ys, colour=OTHER_REFERENCE))
    for colour, (label, line) in enumerate(lines.items()):
        series.extend(_series(kind, label, line, colour))
    return figure(title + of, plot(f"{title}{of}: {up} against {across}", x, y, series))


def _series(kind: str, label: str, line: Facts, colour: int) -> list[Series]:
    found = line[kind]
    if found is None:
        return []
    if kind != "calibration":
        return [Series(label=label, xs=found["xs"], ys=found["ys"], colour=colour)]
    smooth, groups = found["smooth"], found["groups"]
    points = Series(label="", xs=groups["xs"], ys=groups["ys"], colour=colour, kind="points")
    if smooth is None:
        return [points]
    return [Series(label=label, xs=smooth["xs"], ys=smooth["ys"], colour=colour), points]
