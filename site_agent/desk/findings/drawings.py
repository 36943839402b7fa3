"""Draws the plots of a site's report from the facts of this report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from host.plots import Axis, Series, plot
from host.printed_page import figure, figures
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
        groups = "groups of about equal size"
        series.append(Series(label=groups, xs=found["xs"], ys=found["ys"], kind="points"))
    return figure(f"{title}, {label}", plot(f"{title} of {label}: {up} against {across}", x, y, series))
