"""Draws plots for an HTML page with matplotlib: lines and points, as SVG images inside the page.

Equal numbers give equal bytes. Nothing is loaded: no font, no script, no file. Lines also differ in their dashes, and
every image has a description in words for people who use a screen reader.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, TypeAlias

from matplotlib import rc_context
from matplotlib.figure import Figure

Kind: TypeAlias = Literal["line", "points", "reference"]  # a reference is a dotted grey line for comparison
# The colours of Okabe and Ito 2008, which people with colour blindness can distinguish.
PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#806600", "#7a3e9d", "#b3003b", "#2b6b6b")
DASHES: Final = ("-", "--", ":", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
GREY: Final = "#57606a"
INCHES: Final = 1 / 96
WIDTH: Final = 432  # pixels; letters have 13, and 11 on a telephone


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line or one series of points, with `xs` and `ys` of equal length. Without a label it is not in the legend."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: Kind = "line"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a plot: its label and its two ends."""

    label: str
    low: float
    high: float


def plot(about: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return a plot with lines and points as an HTML image. `about` describes it. The last series is on top."""
    figure = Figure(figsize=(WIDTH * INCHES, 400 * INCHES), layout="constrained")
    axes = figure.add_subplot(xlabel=x.label, ylabel=y.label)
    for one in series:
        colour = GREY if one.kind == "reference" else PALETTE[0]
        look = {"line": "-", "points": "o", "reference": ":"}[one.kind]
        axes.plot(one.xs, one.ys, look, color=colour, linewidth=1.5, markersize=4, label=one.label or "_")
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    axes.grid(color="#d0d7de", linewidth=0.5)
    if any(one.label for one in series):
        figure.legend(loc="outside lower left", frameon=False)
    return image(about, figure)


def axis_over(label: str, numbers: Sequence[float]) -> Axis:
    """Return an axis whose range includes all numbers, with a margin."""
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return Axis(label=label, low=low - margin, high=high + margin)


def image(about: str, figure: Figure) -> str:
    """Return a drawn figure as an HTML image. `about` describes it in words."""
    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "global-layers", "svg.fonttype": "path"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    source = base64.b64encode(content.getvalue()).decode()
    width = round(figure.get_figwidth() / INCHES)
    return (
        f'<img class="plot" width="{width}" alt="{escape(about)}" title="{escape(about)}" '
        f'src="data:image/svg+xml;base64,{source}">'
    )
