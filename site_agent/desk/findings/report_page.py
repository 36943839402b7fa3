"""Shows a site's report as one page and as lines for a terminal.

It shows what was compared, how good each model is, for whom, and how reliable. A site that only received a model has
another report, because the model was not tested there. Both use only the facts of `facts.py`, so page and JSON cannot
differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from host.plots import Axis, Series, plot
from host.printed_page import Cell, Section, figure, figures, page, pairs, paragraph, table
from site_agent.desk.comparison.bootstrap_intervals import is_lower_better
from site_agent.desk.comparison.evaluation import METRIC_NAMES, headline_metric
from site_agent.desk.comparison.gain import FEDERATED, PLACEBO, SILOED
from site_agent.desk.findings.facts import RECEIVING
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


def title_of(name: str) -> str:
    """Return the name of a model as the reader of a report sees it."""
    return _TITLES.get(name, name)


def calibration_plots(facts: Facts) -> list[str]:
    """Draw the calibration of each model."""
    curves = facts["calibration_curves"]
    shown = [name for name in curves if not name.endswith("guess")]  # the constant guess has no curve
    return [figures(*(_calibration(title_of(name), curves[name]) for name in shown))]


def _calibration(label: str, found: Facts | None) -> str:
    title, across, up = "Calibration", "predicted probability", "share that had the outcome"
    x, y = Axis(label=across, **_SHARE), Axis(label=up, **_SHARE)
    series = [Series(label="perfect", xs=[0, 1], ys=[0, 1], kind="reference")]
    if found is not None:
        series.append(Series(label="groups of about equal size", xs=found["xs"], ys=found["ys"], kind="points"))
    return figure(f"{title}, {label}", plot(f"{title} of {label}: {up} against {across}", x, y, series))


def compared(facts: Facts, models: Sequence[str]) -> str:
    """Return a table that describes the comparison of models: site, run, sites, outcome, rows and models."""
    rows, sites = facts["rows"], facts["sites"]
    return pairs(
        "What was compared",
        [
            ("site", facts["site"]),
            ("date", f"{facts['date'][:16].replace('T', ' ')} UTC"),
            ("run", facts["run"]),
            ("sites", f"{len(sites)}: {', '.join(sites)}"),
            ("method", facts["method"]),
            *((f"plan, {key.replace('_', ' ')}", text) for key, text in (facts.get("question") or {}).items()),
            ("outcome here", facts["outcome"]),
            *([("with the outcome", _prevalence(facts["prevalence"]))] if "prevalence" in facts else []),
            ("task", facts["task"]),
            ("rows", f"{rows['training']} training, {rows['validation']} validation, {rows['test']} test"),
            ("rows without an outcome, not used", str(facts["rows_without_outcome"])),
            ("rows that cannot be read, put aside by a person", str(facts["rows_put_aside"])),
            ("models", ", ".join(title_of(name) for name in models)),
            ("bootstrap", f"{facts['resamples']} resamples of the test rows, whole patients at a time"),
            ("differential privacy of the sent numbers", _promise(facts)),
            ("plan digest", facts["plan_digest"]),
        ],
    )


def _promise(facts: Facts) -> str:
    promise = facts.get("privacy") or facts.get("prior", {}).get("privacy")
    if promise is None:
        return "none"
    return f"epsilon {promise['epsilon']:g}, delta {promise['delta']:g} for each {promise['unit']}"


def calibration(facts: Facts, models: Facts) -> list[str]:
    """Return a calibration plot for each model, and a table. Return nothing unless the outcome is yes or no."""
    if facts["task"] != "binary":
        return []
    lines: list[list[Cell]] = []
    for name, one in models.items():
        found = one["calibration"]
        shares = [f"{found[key]:.1%}" for key in ("predicted", "observed")]
        lines.append([title_of(name), *shares, found["intercept"], found["slope"]])
    head = ["model", "mean predicted", "observed", "intercept", "slope"]
    words = (
        "A perfectly calibrated model predicts the observed share on average, and has an intercept of 0 and a slope of "
        "1. With a slope below 1 the predictions are too extreme. Even the numbers of a perfect model differ by "
        "chance, and more so with few rows."
    )
    return [*calibration_plots(facts), table("Calibration", head, lines), paragraph(words, "soft")]


def verdict(metric: str, difference: float, interval: Sequence[float] | None) -> str:
    """Return whether the first of two models is better, as a short text, from its metric minus the second one's."""
    if interval is None or interval[0] <= 0.0 <= interval[1]:
        return "no clear difference"
    return "better" if (difference > 0.0) != is_lower_better(metric) else "worse"


def figure_with_interval(value: float | None, interval: Sequence[float] | None, sign: str = "") -> str | None:
    """Return a number as text with three decimals, followed by its interval in brackets."""
    if value is None:
        return None
    # The number is rounded before it is formatted, because -0.0004 would otherwise be shown as -0.000.
    text, *span = (f"{round(number, 3) + 0.0:{sign}.3f}" for number in (value, *(interval or ())))
    return f"{text} {_span(*span)}" if span else text


def _span(low: str, high: str) -> str:
    return f"({low} to {high})".replace(" ", "\u00a0")


def _prevalence(share: Facts) -> str:
    low, high = share["interval"]
    return f"{share['value']:.1%} of the test rows (95% interval {low:.1%} to {high:.1%})"


_READING: Final = (
    "All intervals are 95% bootstrap intervals over the test patients. Each difference is paired: both models are "
    "measured on the same resamples of the test patients. The report writes 'better' or 'worse' only if the interval "
    "of the difference excludes zero. If two models do not really differ, 1 of 20 such intervals excludes zero by "
    "chance.",
    "AUROC: take all pairs of one row with the outcome and one row without it. AUROC is the fraction of these pairs "
    "that the model ranks correctly. Brier score and log loss: the distance between the predicted probabilities and "
    "the observed outcomes. A lower Brier score or log loss is better.",
    "Calibration: if the predicted probability is 20%, 20 of 100 such rows should have the outcome.",
)

_NEXT: Final = (
    "This model was not tested at this hospital, so its predictions are only a first guess. `site-agent predict` uses "
    "this model. When outcomes are known, compare its predictions with them before the model is "
    "used."
)


def report_page(facts: Facts) -> str:
    """Return a site's report as an HTML page, from the result of `site_facts`."""
    models = models_of(facts)
    opening = [
        paragraph(facts["gain"]["sentence"], "lead"),
        *([paragraph(facts["prior"]["sentence"])] if "prior" in facts else []),
        *(paragraph(text, "warning") for text in facts["warnings"]),
        paragraph(
            "Everything on this page was computed at this site and stays at this site. This is research software. It "
            "is not a medical device, and it is not validated for decisions about patients.",
            "soft",
        ),
    ]
    sections = [
        Section(heading="What was compared", parts=[compared(facts, tuple(models))]),
        Section(heading="How good the models are", parts=_quality(facts)),
        Section(heading="Federated minus every other model", parts=_differences(facts)),
        Section(heading="Calibration", parts=calibration(facts, models)),
        Section(heading="Groups of patients", parts=_groups(facts)),
        Section(heading="Which model was kept", parts=[paragraph(kept_sentence(facts))]),
        Section(heading="How to read this", parts=[paragraph(text) for text in _READING]),
    ]
    return page(f"{facts['site']}: report of the run {facts['run']}", opening, sections)


def models_of(facts: Facts) -> dict[str, Any]:
    """Return every tested model by its name: first the neural networks, then the simple models."""
    networks = {name: facts[name] for name in (FEDERATED, SILOED, PLACEBO) if name in facts}
    return {name: one for name, one in (networks | facts["simple_models"]).items() if "intervals" in one}


def kept_sentence(facts: Facts) -> str:
    """Return a sentence that explains which round's model was kept. The model of federated-prior is of no round."""
    if "prior" not in facts or "newton_rounds" not in facts["prior"]:
        return checkpoint_sentence(facts[FEDERATED]["checkpoint"], facts["rows"]["validation"])
    if not (fitted := facts["prior"]["newton_rounds"]):
        return "The run had 1 round, in which the hospitals added up noisy sums. The model was fitted to these sums."
    return (
        f"The run had {fitted + 2} rounds: 1 for the means of the columns, {fitted} for the common "
        "regression, and 1 that tested this regression. The model was made after the last round. No round was chosen."
    )


def checkpoint_sentence(checkpoint: Facts, validation_rows: int) -> str:
    """Return a sentence that explains which round's model was kept, and why."""
    number, loss, losses = checkpoint["round"], checkpoint["loss"], checkpoint["validation_losses"]
    if checkpoint["rule"] == "latest":
        return (
            f"The plan has the setting `checkpoint: latest`. So the model of the last round, round {number}, was kept."
        )
    opening = f"The model after round {number} was kept: "
    if checkpoint["rule"] == "global":
        own = "not finite" if loss is None else f"{loss:.4g}"
        return (
            f"{opening}the validation loss over all sites was lowest after this round (checkpoint: global). This "
            f"site's own validation loss after this round was {own}."
        )
    shown = "" if loss is None else f" ({loss:.4g})"
    return (
        f"{opening}of the {len(losses)} models that were measured, this model had the lowest loss{shown} on this "
        f"site's {validation_rows} validation rows (checkpoint: local)."
    )


def _quality(facts: Facts) -> list[str]:
    models = models_of(facts)
    names = list(models[FEDERATED]["metrics"])
    lines = [
        [title_of(name), *(figure_with_interval(one["metrics"][key], one["intervals"][key]) for key in names)]
        for name, one in models.items()
    ]
    return [
        table("Every model", ["model", *(METRIC_NAMES[key] for key in names)], lines),
        *(
            paragraph(
                f"{title_of(name)}: the training of this model ended with infinite or undefined numbers, so the "
                "model has no results.",
                "soft",
            )
            for name in (SILOED, PLACEBO)
            if name in facts and name not in models
        ),
    ]


def _differences(facts: Facts) -> list[str]:
    metric = headline_metric(facts["task"])
    found = {name: one for name, one in facts["differences"].items() if one.get(metric) is not None}
    if not found:
        return []
    names = list(next(iter(found.values())))
    lines = [[title_of(name), *(_difference(key, one[key]) for key in names)] for name, one in found.items()]
    return [table("Differences", ["federated minus", *(METRIC_NAMES[key] for key in names)], lines)]


def _difference(metric: str, found: Facts | None) -> str | None:
    if found is None:
        return None
    shown = figure_with_interval(found["difference"], found["interval"], sign="+")
    return f"{shown}: {verdict(metric, found['difference'], found['interval'])}"


def _groups(facts: Facts) -> list[str]:
    if not (found := facts["subgroups"]):
        return [
            paragraph(
                "The contract declares no groups of patients. To see results for groups, write `group: true` at a "
                "column with codes.",
                "soft",
            )
        ]
    metric = headline_metric(facts["task"])
    head = ["group", "test rows", METRIC_NAMES[metric], "remark"]
    lines: list[list[str | float | None]] = []
    for one in found:
        small = "too few for a conclusion" if one["is_small"] else ""
        lines.append(
            [f"{one['group']}: {one['value']}", one["rows"], figure_with_interval(one[metric], one["interval"]), small]
        )
    if facts["task"] == "binary":
        head[2:2] = ["with the outcome", "mean predicted"]
        for line, one in zip(lines, found, strict=True):
            line[2:2] = [one["positive"], None if one["predicted"] is None else f"{one['predicted']:.1%}"]
    return [table("Groups", head, lines)]


def report_lines(facts: Facts) -> Iterator[str]:
    """Yield the main results of a site's report as lines for the terminal."""
    metric = headline_metric(facts["task"])
    yield f"{facts['site']}: run {facts['run']}, method {facts['method']}, {facts['rows']['test']} test rows"
    yield facts["gain"]["sentence"]
    yield from (f"Warning: {warning}" for warning in facts["warnings"])
    yield f"{metric} on the test rows, with 95% intervals:"
    for name, one in models_of(facts).items():
        yield f"  {title_of(name):<34}{_figure(one['metrics'][metric], one['intervals'][metric])}"
    yield kept_sentence(facts)


def _figure(value: Any, interval: Sequence[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f}  ({interval[0]:.3f} to {interval[1]:.3f})"


def received_lines(facts: Facts) -> Iterator[str]:
    """Yield the report about a model that was received from other hospitals, as lines for the terminal."""
    found = facts[RECEIVING]
    yield f"{facts['site']}: run {facts['run']}, method {facts['method']}, {facts['rows']['table']} rows in the table"
    yield found["sentence"]
    if not found["has_model"]:
        return
    used = [one["is_recorded_here"] for one in found["coefficients"] if one["is_used"]]
    yield f"This site records {sum(used)} of the {len(used)} columns that the model uses."
    if facts["task"] == "binary":
        share, origin = found["prevalence"], found["prevalence_is_of"]
        is_of = f"the share of patients with the outcome at {origin}"
        told = is_of if share is None else f"{share:.1%}, the value in {origin}"
        yield f"The model was adjusted, so that its mean predicted probability for this site's patients is {told}."
    yield _NEXT


def received_page(facts: Facts) -> str:
    """Return the report about a model that was received from other hospitals as one printable page."""
    opening = [paragraph(line, "lead" if place == 1 else "") for place, line in enumerate(received_lines(facts))]
    rows = [
        [one["column"], f"{one['all_sites']:+.3f}", f"{one['standard_error']:.3f}", _where(one)]
        for one in facts[RECEIVING]["coefficients"]
    ]
    heading = "What the other hospitals found"
    columns = ["column", "coefficient of all sites", "standard error", "here"]
    sections = [Section(heading=heading, parts=[table(heading, columns, rows)])]
    return page(f"{facts['site']}: the model that was received in the run {facts['run']}", opening, sections)


def _where(one: Mapping[str, Any]) -> str:
    if not one["is_used"]:
        return "not used: a site has too few values of this column"
    return "recorded" if one["is_recorded_here"] else "not recorded: the mean of all sites is used"
