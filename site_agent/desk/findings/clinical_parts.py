"""Writes the first parts of a site's report for a clinician: the patients, the outcome and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from host.plots import Axis, Series, plot
from host.printed_page import Cell, figure, figures, pairs, paragraph, table
from site_agent.desk.comparison.bootstrap_intervals import is_lower_better
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
