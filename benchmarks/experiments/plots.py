"""Draws the tables as SVG plots: dots with their 95% intervals, and published values as hollow marks.

The same rows give the same bytes: the file has no date, and its ids follow from a fixed salt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmarks.experiments.statistics import Mean

# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_ROUND: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_MOST_TICKS: Final = 6
STYLE: Final[dict[Any, Any]] = {  # Any: matplotlib has a type for each of its settings
    "svg.hashsalt": "global-layers",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
}


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One line of a panel: a mean with its interval, and the published value."""

    name: str
    mean: Mean
    published: float | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve of means along an axis.

    Attributes:
        name: in the legend, once for curves of the same name, which have one colour.
        points: places on the axis and means.
        is_dashed: drawn with hollow marks and dashes.
    """

    name: str
    points: Sequence[tuple[float, Mean]]
    is_dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A dashed line in every panel: its meaning, and its position in each panel."""

    name: str
    values: Mapping[str, float]


def plot_dots(
    path: Path, panels: Mapping[str, Sequence[Dot]], *, title: str, axis: str, reference: Reference | None = None
) -> None:
    """Draw one panel for each site, with one line for each variant, in the same order in all panels.

    Args:
        path: of the SVG.
        panels: lines by the panel's name.
        title: above all.
        axis: what is measured, in which unit.
        reference: what a guess would reach, for example.
    """
    names = [dot.name for dot in next(iter(panels.values()))]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1,
            len(panels),
            figsize=(2.2 + 2.6 * len(panels), 1.3 + 0.27 * len(names)),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for place, (panel, dots) in zip(axes[0], panels.items(), strict=True):
            _dots(place, panel, dots)
            place.set_xlabel(axis)
            if reference is not None and panel in reference.values:
                place.axvline(reference.values[panel], color="#444444", linestyle="--", linewidth=0.9)
        axes[0][0].set_yticks(range(len(names)), names)
        axes[0][0].set_ylim(len(names) - 0.4, -0.6)
        has_published = any(dot.published is not None for dots in panels.values() for dot in dots)
        handles = _legend(has_published=has_published, reference=reference)
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        figure.suptitle(title)
        save(figure, path)


def plot_curves(path: Path, panels: Mapping[str, Sequence[Curve]], *, title: str, axis: str) -> None:
    """Draw panels with curves over a logarithmic or linear axis, and a line at zero.

    Args:
        path: of the SVG.
        panels: curves by the panel's name, which is written below it.
        title: above all.
        axis: what is measured, in which unit.
    """
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, columns, figsize=(4.0 * columns, 3.1 * rows), squeeze=False, layout="constrained"
        )
        for place, (panel, curves) in zip(axes.flat, panels.items(), strict=False):
            _curves(place, curves)
            place.set_xlabel(panel)
            place.set_ylabel(axis)
        for place in list(axes.flat)[len(panels) :]:
            place.set_visible(False)
        figure.suptitle(title)
        save(figure, path)


def _legend(*, has_published: bool, reference: Reference | None) -> list[Line2D]:
    handles = [Line2D([], [], marker="o", color=_COLOURS[0], label="here, mean and 95% interval")]
    if has_published:
        handles.append(Line2D([], [], marker="D", color=_COLOURS[1], mfc="none", ls="", label="published"))
    if reference is not None:
        handles.append(Line2D([], [], color="#444444", linestyle="--", linewidth=0.9, label=reference.name))
    return handles


def _dots(place: Axes, panel: str, dots: Sequence[Dot]) -> None:
    place.set_title(panel, fontsize=10)
    place.grid(axis="y", visible=False)
    place.xaxis.set_major_locator(MaxNLocator(4))
    for line, dot in enumerate(dots):
        width = dot.mean.half_width if math.isfinite(dot.mean.half_width) else 0.0
        place.errorbar(dot.mean.value, line, xerr=width, fmt="o", color=_COLOURS[0], markersize=4.5, capsize=2.5)
        if dot.published is not None:
            place.plot(dot.published, line, marker="D", color=_COLOURS[1], mfc="none", ls="", markersize=6.5)


def _curves(place: Axes, curves: Sequence[Curve]) -> None:
    place.axhline(0.0, color="#444444", linewidth=0.9)
    every = sorted({at for curve in curves for at, _ in curve.points})
    is_wide = bool(every) and every[0] > 0 and every[-1] / every[0] >= 4
    names = list(dict.fromkeys(curve.name for curve in curves))
    for number, curve in enumerate(curves):
        # Slightly apart, so that intervals at the same place do not hide one another.
        apart = number - (len(curves) - 1) / 2
        xs = [at * 1.03**apart if is_wide else at + 0.01 * apart * (every[-1] - every[0]) for at, _ in curve.points]
        colour = names.index(curve.name)
        place.errorbar(
            xs,
            [mean.value for _, mean in curve.points],
            yerr=[mean.half_width if math.isfinite(mean.half_width) else 0.0 for _, mean in curve.points],
            label=None if curve.is_dashed else curve.name,
            color=_COLOURS[colour],
            marker=_MARKS[colour],
            linestyle="--" if curve.is_dashed else "-",
            markerfacecolor="white" if curve.is_dashed else _COLOURS[colour],
            markersize=4.5,
            linewidth=1.2,
            elinewidth=0.9,
            capsize=2.0,
        )
    if is_wide:
        place.set_xscale("log")
        place.minorticks_off()
    ticks = [at for at in _ROUND if every[0] <= at <= every[-1]] if len(every) > _MOST_TICKS else every
    place.set_xticks(ticks, [f"{at:g}" for at in ticks])
    place.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names))


def save(figure: Figure, path: Path) -> None:
    """Write a figure without its date, so that the same figure has the same bytes."""
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)
