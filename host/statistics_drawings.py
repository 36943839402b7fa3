"""Draws a forest plot of ratios, and survival curves with the numbers at risk, from the records of a result.

A figure is as narrow as a telephone can show with letters of 11 pixels, so names are above their numbers, not beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from host.plots import DASHES, GREY, INCHES, PALETTE, WIDTH, image

Records = Sequence[Mapping[str, Any]]
_OWN: Final = PALETTE[1]
_WIDEST: Final = 100.0  # a ratio beyond it is at the edge of the plot
_LINE: Final = 18  # pixels
_TICKS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_MONTHS: Final = (1, 2, 3, 6, 12, 24, 36, 60, 120)
_STEPS: Final = tuple(one * 10**zeros for zeros in range(9) for one in (1, 2, 5))


def forest(about: str, label: str, pooled: Records, own: Mapping[str, Mapping[str, Any]], *, is_ratio: bool) -> str:
    """Draw a row for each term: the pooled estimate with its interval and, below it, this site's own if there is one.

    Args:
        pooled: with the keys term, label, value, low, high and text; on the scale of ratios if `is_ratio`.
        own: by term, with the keys value, low and high.
    """
    names = ["\n".join(wrap(one["label"], 30)) for one in pooled]
    above = _LINE * max(name.count("\n") + 1 for name in names) + 8  # pixels, as all heights here
    pitch = above + 20
    figure = Figure(figsize=(WIDTH * INCHES, (80 + pitch * len(pooled)) * INCHES), layout="constrained")
    axes = figure.add_subplot(xlabel=label)
    for place, (one, name) in enumerate(zip(pooled, names, strict=True)):
        at, mine = place * pitch, own.get(one["term"])
        _interval(axes, one, at - 5 * bool(mine), PALETTE[0], "s", is_ratio=is_ratio)
        if mine:
            _interval(axes, mine, at + 5, _OWN, "o", is_ratio=is_ratio)
        for x, text, side in ((0, name, "left"), (1, one["text"], "right")):
            axes.text(x, at - 11, text, ha=side, va="bottom", transform=axes.get_yaxis_transform())
    axes.axvline(1.0 if is_ratio else 0.0, color=GREY, linestyle=":", linewidth=1.2)
    axes.set_ylim(pitch * (len(pooled) - 1) + 16, -above - 8)
    axes.yaxis.set_visible(False)
    if is_ratio:
        _log_axis(axes)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.5)
    axes.set_axisbelow(True)
    if own:
        axes.plot([], [], "s", color=PALETTE[0], label="all hospitals")
        axes.plot([], [], "o", color=_OWN, markerfacecolor="white", label="this hospital alone")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return image(about, figure)


def _interval(axes: Any, one: Mapping[str, Any], at: float, colour: str, marker: str, *, is_ratio: bool) -> None:
    low, value, high = (one[key] for key in ("low", "value", "high"))
    if is_ratio:
        low, value, high = (min(max(number, 1 / _WIDEST), _WIDEST) for number in (low, value, high))
    axes.plot([low, high], [at, at], color=colour, linewidth=2)
    face = colour if marker == "s" else "white"
    axes.plot([value], [at], marker, color=colour, markerfacecolor=face, markersize=6, markeredgewidth=1.6)


def _log_axis(axes: Any) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low, high = min(low, 0.8), max(high, 1.25)
    inside = sum(low <= tick <= high for tick in _TICKS)
    ticks = _TICKS[::3] if inside > 8 else _TICKS if inside > 2 else (*_TICKS, 0.6, 0.8, 1.2, 1.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())


def survival(about: str, label: str, groups: Records, *, is_monthly: bool) -> str:
    """Draw survival curves with their intervals, and below them the numbers at risk, beside the dashes of each group.

    Each record has the keys group, times, survival, low, high and at_risk of SurvivalCurve's result. An axis of a
    monthly grid has months.
    """
    names = [wrap(one["group"], 36) for one in groups]
    deep = sum(len(name) + 1.25 for name in names)
    figure = Figure(figsize=(WIDTH * INCHES, (320 + _LINE * (deep + 1)) * INCHES), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[290, _LINE * (deep + 1)])
    grid = max((one["times"] for one in groups), key=len) or [0.0, 1.0]
    end, at = grid[-1], 0.0
    # Only the ends of intervals, where the numbers at risk are known.
    step = next((one for one in (_MONTHS if is_monthly else _STEPS) if len(grid) <= 6 * one), len(grid))
    marked = range(0, len(grid), step)
    for place, (one, name) in enumerate(zip(groups, names, strict=True)):
        look: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "linestyle": DASHES[place % len(DASHES)]}
        times, levels = [0.0, *one["times"]], [1.0, *one["survival"]]
        low, high = ([1.0, *(value if value is not None else 0.0 for value in one[key])] for key in ("low", "high"))
        axes.step(times, levels, where="post", linewidth=1.6, **look)
        axes.fill_between(times, low, high, step="post", color=look["color"], alpha=0.13, linewidth=0)
        below.plot([0.0, 0.08], [at, at], linewidth=1.6, transform=below.get_yaxis_transform(), clip_on=False, **look)
        below.text(0.1, at - 0.5, "\n".join(name), va="top", transform=below.get_yaxis_transform())
        at += len(name)
        for tick in marked:  # a dash after the end of the curve, where few are at risk
            still = f"{one['at_risk'][tick]:,}" if tick < len(one["times"]) else "–"
            below.text(grid[tick], at, still, ha="center", va="center", color=look["color"])
        at += 1.25
    axes.set_ylim(0.0, 1.02)
    axes.set_ylabel("share without the event")
    axes.set_xticks([grid[tick] for tick in marked], [f"{tick if is_monthly else grid[tick]:.4g}" for tick in marked])
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_xlabel(label)
    axes.grid(color="#d0d7de", linewidth=0.5)
    axes.set_xlim(-0.05 * end, 1.04 * end)
    below.set_ylim(at - 0.4, -0.6)
    below.set_title("Number at risk", fontsize=10, loc="left")
    below.set_axis_off()
    axes.spines[["top", "right"]].set_visible(False)
    return image(about, figure)
