"""Draws the validation loss of a site's model in each round, from the file that the trainer writes during a study.

Only a user who may read the trainer's files sees curves. The drawing has numbers and no text of a file.
"""

from __future__ import annotations

import json
from pathlib import Path

from site_agent.state_folders import live_curves_path


def curve_files(state: Path) -> list[Path]:
    """Return the files with curves of runs, the latest first. Return none if this user may not read them."""
    try:
        files = list(live_curves_path(state, "x").parent.glob("*.json"))
        return sorted(files, key=lambda file: (-file.stat().st_mtime, file.name))
    except OSError:
        return []


def drawn_curve(state: Path, run: str) -> str:
    """Draw the curve of a run as an image in HTML. Return an empty text without a file, or with a damaged file."""
    from host.plots import Series, axis_over, plot

    try:
        found = json.loads(live_curves_path(state, run).read_bytes())
        points = {int(number): float(loss) for number, loss in found}
    except (OSError, ValueError, TypeError):
        return ""  # there is no such file yet
    if not points:
        return ""
    series = Series(label="validation rows", xs=list(points), ys=list(points.values()))
    return plot("Loss by round", axis_over("after round", series.xs), axis_over("loss", series.ys), [series])
