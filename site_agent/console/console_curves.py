"""Draws the loss and the metric of a site's model in each round, from the file that the trainer writes during a study.

Only a user who may read the trainer's files sees curves. The drawing has numbers and round numbers, and no text of a
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from site_agent.state_folders import live_curves_path

_NAMES: Final = {"auroc": "AUROC", "rmse": "Root mean square error"}
_MOST_LINES: Final = 20


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The curves of a run: images as HTML, the newest rounds as a table, and the verdict if there is one."""

    images: tuple[str, ...]
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    verdict: str


def curve_files(state: Path) -> list[Path]:
    """Return the files with curves of runs, the latest first. Return none if this user may not read them."""
    try:
        files = list(live_curves_path(state, "x").parent.glob("*.json"))
        return sorted(files, key=lambda file: (-file.stat().st_mtime, file.name))
    except OSError:
        return []


def drawn_curves(state: Path, run: str) -> Drawn:
    """Draw the curves of a run. Without a file, or with a damaged file, there is no image."""
    from host.plots import Series, axis_over, plot

    facts, report = _read(live_curves_path(state, run)), _read(state / "reports" / f"{run}.json")
    metric = _NAMES.get(str(facts.get("metric")), "Metric")
    lines = {name: _points(facts, key) for name, key in _LINES.items()}
    values = _points(facts, "values")
    images = []
    for title, shown in (("Loss", lines), (metric, {"validation rows": values})):
        series = [
            Series(label=name, xs=list(points), ys=list(points.values()), colour=colour)
            for colour, (name, points) in enumerate(shown.items())
            if points
        ]
        if series:
            x = axis_over("after round", [x for one in series for x in one.xs])
            y = axis_over(title, [y for one in series for y in one.ys])
            images.append(plot(f"{title} by round", x, y, series))
    rounds = sorted({number for one in (*lines.values(), values) for number in one}, reverse=True)[:_MOST_LINES]
    columns = (*lines.values(), values)
    rows = [(str(number), *(_figure(column.get(number)) for column in columns)) for number in rounds]
    gain = report.get("gain")
    verdict = str(gain.get("sentence", "")) if isinstance(gain, dict) else ""
    head = ("after round", *(f"loss, {name}" for name in lines), f"{metric}, validation rows")
    return Drawn(images=tuple(images), head=head, rows=rows, verdict=verdict)


_LINES: Final = {"validation rows": "validation", "training rows": "training"}


def _figure(value: float | None) -> str:
    return "skipped" if value is None else f"{value:.4f}"


def _points(facts: Mapping[str, Any], key: str) -> dict[int, float]:
    try:
        return {int(number): float(value) for number, value in facts.get(key, ())}
    except (TypeError, ValueError):
        return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}  # there is no such file yet
    return found if isinstance(found, dict) else {}
