"""Draws a forest plot of ratios, and survival curves with the numbers at risk, from the records of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from host.plots import DASHES, GREY, INCHES, PALETTE, image

Records = Sequence[Mapping[str, Any]]
_OWN: Final = PALETTE[1]
_WIDEST: Final = 100.0  # a ratio beyond it is at the edge of the plot
_LONGEST_LABEL: Final = 34  # characters
_TICKS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def forest(about: str, label: str, pooled: Records, own: Mapping[str, Mapping[str, Any]], *, is_ratio: bool) -> str:
    """Draw a row for each term: the pooled estimate with its interval and, below it, this site's own if there is one.

    Args:
        pooled: with the keys term, value, low, high and text; on the scale of ratios if `is_ratio`.
        own: by term, with the same keys but the term.
    """
    height = 92 + (36 if own else 26) * len(pooled)
    figure = Figure(figsize=(760 * INCHES, height * INCHES), layout="constrained")
    axes = figure.add_subplot(xlabel=label)
    names, texts = [], []
    for place, one in enumerate(pooled):
        mine = own.get(one["term"])
        shift = 0.16 if mine else 0.0
        _interval(axes, one, place - shift, PALETTE[0], "s", is_ratio=is_ratio)
        text = str(one["text"])
        if mine:
            _interval(axes, mine, place + shift, _OWN, "o", is_ratio=is_ratio)
            text += f"\n{mine['text']}"
        term = str(one["term"])
        names.append(term if len(term) <= _LONGEST_LABEL else f"{term[: _LONGEST_LABEL - 1]}…")
        texts.append(text)
    axes.axvline(1.0 if is_ratio else 0.0, color=GREY, linestyle=":", linewidth=1.2)
    axes.set_ylim(len(pooled) - 0.4, -0.6)
    axes.set_yticks(range(len(pooled)), names)
    axes.tick_params(axis="y", length=0)
    if is_ratio:
        _log_axis(axes)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(pooled)), texts)
    right.tick_params(length=0, labelsize=8.5)
    for side in ("top", "left"):
        axes.spines[side].set_visible(False)
    right.spines["right"].set_visible(False)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.5)
    axes.set_axisbelow(True)
    if own:
        axes.plot([], [], "s", color=PALETTE[0], label="all hospitals together")
        axes.plot([], [], "o", color=_OWN, markerfacecolor="white", label="this hospital alone")
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)
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
    inside = [tick for tick in _TICKS if low <= tick <= high]
    if len(inside) < 3:
        inside = [tick for tick in (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, *_TICKS) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(sorted(set(inside)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def survival(about: str, label: str, groups: Records) -> str:
    """Draw survival curves with their intervals, and below them the numbers at risk.

    Each record has the keys group, patients, times, survival, low, high and at_risk of SurvivalCurve's result.
    """
    height = 400 + 20 * len(groups)
    figure = Figure(figsize=(760 * INCHES, height * INCHES), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[320, 34 + 20 * len(groups)])
    grid = max((one["times"] for one in groups), key=len) or [0.0, 1.0]
    end, locator = grid[-1], MaxNLocator(nbins=7, steps=[1, 1.2, 2, 3, 6, 10], integer=True)
    # Only the ends of intervals, where the numbers at risk are known. Every 12 months is one of the steps.
    marked = [int(tick) for tick in locator.tick_values(0, len(grid) - 1) if 0 <= tick < len(grid)]
    for place, one in enumerate(groups):
        colour = PALETTE[place % len(PALETTE)]
        times, levels = [0.0, *one["times"]], [1.0, *one["survival"]]
        low, high = ([1.0, *(value if value is not None else 0.0 for value in one[key])] for key in ("low", "high"))
        dashes = DASHES[place % len(DASHES)]
        axes.step(times, levels, where="post", color=colour, linestyle=dashes, linewidth=1.6, label=one["group"])
        axes.fill_between(times, low, high, step="post", color=colour, alpha=0.13, linewidth=0)
        for tick in marked:  # a dash after the end of the curve, where few are at risk
            still = f"{one['at_risk'][tick]:,}" if tick < len(one["times"]) else "–"
            below.text(grid[tick], place, still, ha="center", va="center", fontsize=9, color=colour)
    axes.set_ylim(0.0, 1.02)
    axes.set_ylabel("share without the event")
    axes.set_xticks([grid[tick] for tick in marked], [f"{grid[tick]:.4g}" for tick in marked])
    axes.tick_params(axis="x", labelbottom=True)
    axes.set_xlabel(label)
    axes.grid(color="#d0d7de", linewidth=0.5)
    axes.set_xlim(-0.05 * end, 1.02 * end)
    below.set_yticks(range(len(groups)), [str(one["group"]) for one in groups])
    below.set_ylim(len(groups) - 0.4, -0.6)
    below.set_title("Number at risk", fontsize=9, loc="left")
    below.tick_params(length=0, labelbottom=False)
    for spine in (*below.spines.values(), axes.spines["top"], axes.spines["right"]):
        spine.set_visible(False)
    if len(groups) > 1:
        figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return image(about, figure)
