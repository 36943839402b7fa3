"""Draws plots for an HTML page as SVG graphics: lines, points, bars and intervals, with labelled axes.

A plot is text and uses the colours of the page's style. So one page is readable on a bright screen, on a dark screen
and on paper. The rules:

* lines also differ in their dashes, for readers who cannot see colours;
* every plot has a description in words, for people who use a screen reader;
* nothing is loaded: no font, no script, no picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["line", "points"]
COLOURS: Final = 8
REFERENCE: Final = -1
OTHER_REFERENCE: Final = -2
_WIDTH: Final = 460
_HEIGHT: Final = 330
_LEFT: Final = 58
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 46
_ROW: Final = 26
_SHORTEST_LABELS: Final = 120
_LONGEST_LABEL: Final = 48  # characters
_CHARACTER: Final = 7.8  # the width of a wide character
_ON_BORDER: Final = 2  # half the width of a line on the border of a plot
_FIGURES: Final = 190


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line or one series of points in a plot.

    Attributes:
        label: its text in the legend; empty for none.
        xs, ys: of the points, of equal length.
        colour: from 0, one of COLOURS; REFERENCE or OTHER_REFERENCE for the grey of a line for comparison.
        kind: how the points are drawn.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int
    kind: Kind = "line"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a plot: its label and its two ends."""

    label: str
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of an interval plot: a number and its interval. If `words` is set, it is shown in place of the limits."""

    label: str
    value: float | None
    interval: Sequence[float] | None = None
    words: str | None = None


def plot(about: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return a plot with lines and points between two axes, and a legend, as SVG. The last series is drawn on top.

    Parts outside the range of the axes are not visible.
    """
    frame = f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
    lines = "".join(_drawn(one, x, y) for one in series)
    left, top = _LEFT - _ON_BORDER, _TOP - _ON_BORDER
    width, height = _WIDTH - _RIGHT - left + _ON_BORDER, _HEIGHT - _BOTTOM - top + _ON_BORDER
    # A browser shows no part of an inner svg outside its own room.
    size = f'width="{width}" height="{height}" viewBox="{left} {top} {width} {height}"'
    parts = [frame, *_grid(x, y), f'<svg x="{left}" y="{top}" {size} aria-hidden="true">{lines}</svg>']
    legend = "".join(
        f'<span class="key"><svg width="26" height="10" aria-hidden="true">{_mark(one)}</svg>{escape(one.label)}</span>'
        for one in series
        if one.label
    )
    return f'{_svg(about, _WIDTH, _HEIGHT, parts)}<div class="legend">{legend}</div>'


def intervals(about: str, label: str, rows: Sequence[Row], reference: float | None = None) -> str:
    """Draw a row for each number, with the number's interval. A vertical line is drawn at `reference` for comparison.

    Args:
        rows: from top to bottom. A row without a value shows "not defined".
    """
    shown = [number for row in rows for number in (row.value, *(row.interval or ())) if number is not None]
    low, high = _room([*shown, *([] if reference is None else [reference])])
    longest = min(_LONGEST_LABEL, max((len(row.label) for row in rows), default=0))
    left = max(_SHORTEST_LABELS, round(_CHARACTER * longest) + 14)
    width, height = left + 340 + _FIGURES, _ROW * len(rows) + 52
    floor = height - 44

    def place(value: float) -> float:
        return left + 340 * (value - low) / (high - low)

    parts = [f'<path class="axis" d="M{left} {floor}H{left + 340}"/>']
    for tick in ticks(low, high):
        parts.append(f'<path class="grid" d="M{place(tick):.1f} 4V{floor}"/>')
        parts.append(f'<text class="tick" x="{place(tick):.1f}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    if reference is not None:
        parts.append(f'<path class="reference" d="M{place(reference):.1f} 4V{floor}"/>')
    for number, row in enumerate(rows):
        parts.extend(_interval_row(row, 18 + _ROW * number, left, place))
    parts.append(_words(left + 170, height - 8, label, "middle"))
    return _svg(about, width, height, parts)


def ticks(low: float, high: float) -> list[float]:
    """Return four to ten round numbers in a range. They become the marks of an axis."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step - 1e-9)
    count = math.floor((high - first * step) / step + 1e-9)
    return [round((first + number) * step, 12) for number in range(count + 1)]


def axis_over(label: str, numbers: Sequence[float]) -> Axis:
    """Return an axis of a plot, with a range that includes all given numbers."""
    low, high = _room(list(numbers))
    return Axis(label=label, low=low, high=high)


def _room(numbers: Sequence[float]) -> tuple[float, float]:
    if not numbers:
        return 0.0, 1.0
    low, high = min(numbers), max(numbers)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin


def _svg(about: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(about)}">'
        f"<title>{escape(about)}</title>{''.join(parts)}</svg>"
    )


def _grid(x: Axis, y: Axis) -> list[str]:
    bottom, parts = _HEIGHT - _BOTTOM, []
    for tick in ticks(x.low, x.high):
        at = f"{_across(tick, x):.1f}"
        parts.append(f'<path class="grid" d="M{at} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in ticks(y.low, y.high):
        at = f"{_up(tick, y):.1f}"
        parts.append(f'<path class="grid" d="M{_LEFT} {at}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{float(at) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(_words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x.label, "middle"))
    parts.append(
        f'<text class="words" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    return parts


def _drawn(one: Series, x: Axis, y: Axis) -> str:
    points = [(f"{_across(across, x):.1f}", f"{_up(up, y):.1f}") for across, up in zip(one.xs, one.ys, strict=True)]
    if one.kind == "points":
        style = f"dot c{one.colour % COLOURS}"
        return "".join(f'<circle class="{style}" cx="{across}" cy="{up}" r="3"/>' for across, up in points)
    return f'<path class="{_style(one)}" d="M{"L".join(map(" ".join, points))}"/>' if points else ""


def _interval_row(row: Row, middle: int, left: int, place: Callable[[float], float]) -> list[str]:
    label = row.label if len(row.label) <= _LONGEST_LABEL else f"{row.label[: _LONGEST_LABEL - 1]}…"
    parts = [_words(left - 10, middle + 4, label, "end")]
    if row.value is None:
        return [*parts, _words(left + 350, middle + 4, "not defined", "start")]
    figures = _short(row.value)
    if row.interval is not None:
        low, high = row.interval
        parts.append(f'<path class="span" d="M{place(low):.1f} {middle}H{place(high):.1f}"/>')
        figures += f" ({row.words or f'{_short(low)} to {_short(high)}'})"
    parts.append(f'<circle class="dot c0" cx="{place(row.value):.1f}" cy="{middle}" r="4"/>')
    return [*parts, _words(left + 350, middle + 4, figures, "start")]


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _words(across: float, up: float, text: str, anchor: str) -> str:
    return f'<text class="words" x="{across:.0f}" y="{up:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _mark(one: Series) -> str:
    """Return the small line or point that is drawn before a name in the legend."""
    if one.kind == "points":
        return f'<circle class="dot c{one.colour % COLOURS}" cx="13" cy="5" r="3"/>'
    return f'<path class="{_style(one)}" d="M1 5H25"/>'


def _style(one: Series) -> str:
    if one.colour < 0:
        return "line reference" if one.colour == REFERENCE else "line all"
    return f"line c{one.colour % COLOURS} d{one.colour % COLOURS}"


def _across(value: float, axis: Axis) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (value - axis.low) / (axis.high - axis.low)


def _up(value: float, axis: Axis) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - axis.low) / (axis.high - axis.low)
