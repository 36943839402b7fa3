"""A site's report as one page: what was compared, how good it is, for whom, and how far one may trust it.

Drawn from the facts of `facts.py` alone, so that page and JSON cannot say different things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from site_agent.desk.findings.drawings import (
    class_curves,
    class_decisions,
    importance_plot,
    learning_plot,
    model_curves,
    predicted_and_observed,
    subgroup_plot,
)
from site_agent.desk.pages.page_document import Section, figure, figures, page, paragraph, table
from site_agent.desk.pages.plots import Row, intervals
from site_agent.trainer.comparison.gain import FEDERATED, PLACEBO, SILOED, headline_metric
from site_agent.trainer.simple_models import TITLES

# The facts are JSON: what is in them is known by their names, which the tests hold fast.
Facts: TypeAlias = Mapping[str, Any]
NAMES: Final = {
    FEDERATED: "federated",
    SILOED: "trained alone (siloed)",
    PLACEBO: "federated with copies of itself",
    "expert": "expert of this site",
    "majority_guess": "guess by prevalence",
    "mean_guess": "guess by the mean",
    **TITLES,
}
_METRICS: Final = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "brier": "Brier score",
    "log_loss": "log loss",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "r2": "R²",
}
_READING: Final = (
    "Intervals are 95% bootstrap intervals over the test patients; differences are paired, so both models meet the same"
    " resamples. A difference whose interval holds 0 may be none at all.",
    "AUROC: of pairs of one row with and one without the outcome, the share ranked the right way round. Brier score and"
    " log loss: how far probabilities are from what happened; lower is better.",
    "Calibration: of rows with a predicted probability of 20%, 20 in 100 should have the outcome. The integrated"
    " calibration index is the mean distance of the probabilities to a smooth curve through what happened.",
    "Decision curve: the net benefit of treating whoever has at least the threshold's probability, in true positives"
    " per row; a model is of use where its line is above those of treating all and treating nobody.",
    "Importance: how much worse the headline metric gets when one feature is shuffled. It says what the model leans on,"
    " not what causes the outcome.",
)


def report_page(facts: Facts) -> str:
    """The whole document, from what `site_facts` gave."""
    opening = [
        paragraph(facts["gain"]["sentence"], "lead"),
        *([paragraph(facts["prior"]["sentence"])] if "prior" in facts else []),
        *([paragraph(facts["recommendation"]["sentence"])] if facts.get("recommendation") else []),
        paragraph(facts["in_use"]),
        *(paragraph(text, "warning") for text in facts["warnings"]),
        paragraph(
            "Everything on this page was computed at this site and stays here. Research software: not a medical"
            " device, not validated for decisions about patients.",
            "soft",
        ),
    ]
    sections = [
        Section(heading="What was compared", parts=[_compared(facts)]),
        Section(heading="How good the models are", parts=_quality(facts)),
        Section(heading="Federated minus every other model", parts=_differences(facts)),
        Section(heading="Ranking", parts=_ranking(facts)),
        Section(heading="Calibration", parts=_calibration(facts)),
        Section(heading="Use for a decision", parts=_decision(facts)),
        Section(heading="Predicted and observed", parts=predicted_and_observed(facts)),
        Section(heading="Groups of patients", parts=_groups(facts)),
        Section(heading="What the model leans on", parts=_importance(facts)),
        Section(heading="Learning, and which model was kept", parts=_learning(facts)),
        Section(heading="How to read this", parts=[paragraph(text) for text in _READING]),
    ]
    return page(f"{facts['site']}: report of the run {facts['run']}", opening, sections)


def models_of(facts: Facts) -> dict[str, Any]:
    """Every model with metrics, by its name: networks first, simple models after."""
    networks = {name: facts[name] for name in (FEDERATED, SILOED, PLACEBO) if name in facts}
    found = networks | facts["simple_models"]
    return {name: one for name, one in found.items() if "intervals" in one}


def checkpoint_sentence(checkpoint: Facts, validation_rows: int) -> str:
    """Which round's model was kept, and why, in words."""
    number, loss, losses = checkpoint["round"], checkpoint["loss"], checkpoint["validation_losses"]
    if checkpoint["rule"] == "latest":
        return f"The model of round {number} was kept: the last one, as the plan says (checkpoint: latest)."
    opening = f"The model of round {number} was kept: "
    if checkpoint["rule"] == "global":
        own = "not finite" if loss is None else f"{loss:.4g}"
        return (
            f"{opening}the weighted sum of losses over all sites was lowest there (checkpoint: global); this site's own"
            f" loss was {own}."
        )
    shown = "" if loss is None else f", {loss:.4g},"
    return (
        f"{opening}its loss{shown} on this site's {validation_rows} validation rows was the lowest of {len(losses)}"
        " measured (checkpoint: local)."
    )


def _compared(facts: Facts) -> str:
    rows = facts["rows"]
    lines: list[list[str | float | None]] = [
        ["site", facts["site"]],
        ["run", facts["run"]],
        ["method", facts["method"]],
        *([[name.replace("_", " "), text] for name, text in (facts.get("question") or {}).items()]),
        ["plan digest", facts["plan_digest"]],
        ["task", facts["task"]],
        ["rows", f"{rows['training']} training, {rows['validation']} validation, {rows['test']} test"],
        ["models", ", ".join(NAMES.get(name, name) for name in models_of(facts))],
        ["bootstrap", f"{facts['resamples']} resamples of the test rows, whole patients at a time"],
    ]
    return table(["", ""], lines)


def _quality(facts: Facts) -> list[str]:
    metric, models = headline_metric(facts["task"]), models_of(facts)
    label = _METRICS[metric] + (f", {facts['unit']}" if metric == "rmse" and facts["unit"] else "")
    rows = [
        _row(NAMES.get(name, name), one["metrics"][metric], one["intervals"][metric]) for name, one in models.items()
    ]
    drawing = intervals(f"{label} of every model with its 95% interval", label, rows)
    names = list(models[FEDERATED]["metrics"])
    lines = [
        [NAMES.get(name, name), *(_figure(one["metrics"][key], one["intervals"][key]) for key in names)]
        for name, one in models.items()
    ]
    return [
        figures(figure(f"{label} on the test rows", drawing, is_wide=True)),
        table(["model", *(_METRICS[key] for key in names)], lines),
        *(
            paragraph(f"{NAMES.get(name, name)}: training came to no finite model, so there are no figures.", "soft")
            for name in (SILOED, PLACEBO)
            if name in facts and name not in models
        ),
    ]


def _differences(facts: Facts) -> list[str]:
    metric = headline_metric(facts["task"])
    found = {name: one for name, one in facts["differences"].items() if one.get(metric) is not None}
    if not found:
        return []
    rows = [
        _row(NAMES.get(name, name), one[metric]["difference"], one[metric]["interval"]) for name, one in found.items()
    ]
    label = f"difference in {_METRICS[metric]} (federated minus the other)"
    side = "Left" if metric == "rmse" else "Right"
    drawing = intervals(f"{label}, with paired 95% intervals", label, rows, reference=0.0)
    names = list(next(iter(found.values())))
    lines = [
        [
            NAMES.get(name, name),
            *(_figure(one[key]["difference"], one[key]["interval"], sign="+") if one[key] else None for key in names),
        ]
        for name, one in found.items()
    ]
    return [
        figures(figure(f"{side} of the dotted line the federated model is the better one", drawing, is_wide=True)),
        table(["federated minus", *(_METRICS[key] for key in names)], lines),
    ]


def _ranking(facts: Facts) -> list[str]:
    if facts["task"] == "multi-class":
        return class_curves(facts, ("receiver_operating_characteristic", "precision_recall"))
    return model_curves(facts, ("receiver_operating_characteristic", "precision_recall"), NAMES)


def _calibration(facts: Facts) -> list[str]:
    if facts["task"] == "regression":
        return []
    drawn = class_curves if facts["task"] == "multi-class" else None
    plots = drawn(facts, ("calibration",)) if drawn else model_curves(facts, ("calibration",), NAMES)
    keys = ["in_the_large", "intercept", "slope", "expected_calibration_error", "integrated_calibration_index"]
    lines = [
        [NAMES.get(name, name), outcome, *(found[key] for key in keys)]
        for name, one in models_of(facts).items()
        for outcome, found in one["calibration"].items()
    ]
    head = ["model", "outcome", "in the large", "intercept", "slope", "expected error", "integrated index (ICI)"]
    return [*plots, table(head, lines)]


def _decision(facts: Facts) -> list[str]:
    if facts["task"] == "multi-class":
        return class_decisions(facts, NAMES)
    return model_curves(facts, ("decision",), NAMES)


def _groups(facts: Facts) -> list[str]:
    found = facts["subgroups"]
    if not found:
        return [paragraph("The contract declares no groups; name features with --group to see subgroups.", "soft")]
    metric = headline_metric(facts["task"])
    head = ["group", "test rows", _METRICS[metric], ""]
    lines: list[list[str | float | None]] = []
    for one in found:
        small = "too few to conclude" if one["is_small"] else ""
        lines.append([f"{one['group']}: {one['value']}", one["rows"], _figure(one[metric], one["interval"]), small])
    if facts["task"] == "binary":
        head[2:2] = ["with the outcome", "calibration in the large"]
        for line, one in zip(lines, found, strict=True):
            line[2:2] = [one["positive"], one["in_the_large"]]
    return [figures(subgroup_plot(found, metric, _METRICS[metric])), table(head, lines)]


def _importance(facts: Facts) -> list[str]:
    return (
        [figures(importance_plot(facts["importance"], _METRICS[headline_metric(facts["task"])]))]
        if facts["importance"]
        else []
    )


def _learning(facts: Facts) -> list[str]:
    kept = checkpoint_sentence(facts[FEDERATED]["checkpoint"], facts["rows"]["validation"])
    return [paragraph(kept), figures(learning_plot(facts, NAMES))]


def _row(label: str, value: float | None, interval: Sequence[float] | None) -> Row:
    if interval is None:
        return Row(label=label, value=value)
    return Row(label=label, value=value, low=interval[0], high=interval[1])


def _figure(value: float | None, interval: Sequence[float] | None, sign: str = "") -> str | None:
    if value is None:
        return None
    # Rounded before it is written, as -0.0004 would stand there as -0.000.
    text, *span = (f"{round(number, 3) + 0.0:{sign}.3f}" for number in (value, *(interval or ())))
    return f"{text} ({' to '.join(span)})" if span else text
