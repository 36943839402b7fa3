"""Serves a page that shows for each round the loss and the main metric of a site's model, and the gain at the end.

The page is made from the trainer's files. It loads no code that reads patients' tables, and opens no connection. The
trainer's user serves it, only on this computer. On a port every user of this computer can open it, also the agent's
user. On a Unix socket only users with access to the socket can.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, TypeAlias

from host.local_page import curves, live_answer

Points: TypeAlias = list[tuple[int, float]]
_MOST_POINTS: Final = 400
_MOST_LINES: Final = 20
_NOTHING: Final = "<p>No round of this run has been evaluated yet.</p>"
_NAMES: Final = {"auroc": "AUROC", "rmse": "Root mean square error", "dice": "Dice coefficient"}


def live_path(state: Path, run: str) -> Path:
    """Return the path of the file that has a run's learning curves, in the site's state folder."""
    return state / "reports" / "live" / f"{run}.json"


class LivePage:
    """A page with the curves of a site's own models, read again from the files for every request."""

    def __init__(self, site: str, state: Path) -> None:
        """Store the name of the site, and the state folder whose runs are shown."""
        self._site, self._state = site, state

    def main(self) -> str:
        """Return the part of the page that changes, as HTML: the newest run's curves, and the other runs' names."""
        files = sorted((self._state / "reports" / "live").glob("*.json"), key=_age)
        if not files:
            return (
                '<section id="none"><h2>Own curves</h2><p>No study has trained a model at this site yet, or this user '
                "account may not read the reports of the trainer.</p></section>"
            )
        facts = _read(files[0]) or {}
        others = ", ".join(escape(file.stem) for file in files[1:]) or "none"
        return (
            _section("run", f"Run {files[0].stem}", _gain(self._state, files[0].stem))
            + _section("loss", "Loss", _losses(facts))
            + _section("metric", _title(facts), _metric(facts))
            + _section("figures", "Figures", _skipped(facts) + _figures(facts))
            + _section("others", "Other runs", f"<p>{others}</p>")
        )

    async def _live(self) -> str:
        return self.main()

    async def respond(self, request: bytes) -> bytes:
        """Return the whole HTTP response to a request."""
        return await live_answer(request, f"Own models of {self._site}", self._live)


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(title)}</h2>{content}</section>'


def _gain(state: Path, run: str) -> str:
    words = (
        "The study is still running, or it ended without a report. A report shows how much this site gained by joining."
    )
    report = _read(state / "reports" / f"{run}.json")
    if report is not None and isinstance(report.get("gain"), dict):
        words = str(report["gain"].get("sentence", words))
    soft = (
        "The metrics are computed on this site's own rows, with the shared model after each round. Only the user "
        "account of the trainer may read the file with the metrics. But every user of this computer who can open the "
        "address of this page can see this page. On a port, every user of this computer can open the page. When you no "
        "longer need this page, stop the command that shows it."
    )
    return f'<p>{escape(words)}</p><p class="soft">{soft}</p>'


def _losses(facts: Mapping[str, Any]) -> str:
    lines = {"validation rows": _points(facts, "validation"), "training rows": _points(facts, "training")}
    return curves(lines, what="Loss", lowest_is_best=True) or _NOTHING


def _title(facts: Mapping[str, Any]) -> str:
    return f"{_NAMES.get(str(facts.get('metric')), 'Metric')} on the validation rows"


def _metric(facts: Mapping[str, Any]) -> str:
    is_error = facts.get("metric") == "rmse"
    drawn = curves(
        {"validation rows": _points(facts, "values")}, what=_title(facts).partition(" on ")[0], lowest_is_best=is_error
    )
    return drawn or "<p>No round of this run has been evaluated yet, or this metric is not defined for these rows.</p>"


def _skipped(facts: Mapping[str, Any]) -> str:
    """Return sentences that explain why the page does not show some rounds."""
    losses, values = _all_points(facts, "validation"), _all_points(facts, "training")
    if not losses and not values:
        return _NOTHING
    sentences = [f"The loss on the validation rows was measured after {_rounds(len(losses))}."]
    skipped = len({number for number, _ in losses} - {number for number, _ in values})
    if skipped:
        sentences.append(
            f"In {_rounds(skipped)} the loss on the training rows was not measured, to save time. The program measures "
            "this loss for at most five seconds, or for 5% of the training time if 5% is longer."
        )
    measured = facts.get("measured")
    if isinstance(measured, int) and measured > len(losses):
        sentences.append(
            f"After {_rounds(measured - len(losses))} the loss was not a finite number. The charts do not show such "
            "rounds."
        )
    if max(len(losses), len(values)) > _MOST_POINTS:
        sentences.append(f"The charts show only about {_MOST_POINTS} rounds of each line, at equal distances.")
    return f"<p>{' '.join(sentences)}</p>"


def _figures(facts: Mapping[str, Any]) -> str:
    """Return the newest rounds as a table, for people who cannot see charts and for short runs."""
    columns = {
        "loss, training rows": dict(_all_points(facts, "training")),
        "loss, validation rows": dict(_all_points(facts, "validation")),
        _title(facts).replace(" on the ", ", "): dict(_all_points(facts, "values")),
    }
    rounds = sorted({number for column in columns.values() for number in column}, reverse=True)[:_MOST_LINES]
    if not rounds:
        return ""
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in ("after round", *columns))
    lines = "".join(
        f'<tr><th scope="row" class="number">{number}</th>'
        + "".join(f'<td class="number">{_figure(column.get(number))}</td>' for column in columns.values())
        + "</tr>"
        for number in rounds
    )
    return (
        '<div class="scroll" tabindex="0" role="group" aria-labelledby="h-figures"><table>'
        f"<caption>The newest {_rounds(len(rounds))}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
        "</table></div>"
    )


def _figure(value: float | None) -> str:
    return "skipped" if value is None else f"{value:.4f}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _points(facts: Mapping[str, Any], key: str) -> Points:
    return _thinned(_all_points(facts, key))


def _all_points(facts: Mapping[str, Any], key: str) -> Points:
    try:
        return [(int(number), float(value)) for number, value in facts.get(key, ())]
    except (TypeError, ValueError):
        return []


def _thinned(points: Sequence[tuple[int, float]]) -> Points:
    """Return about _MOST_POINTS points, evenly spaced, always with the first, newest, lowest and highest point."""
    step = -(-len(points) // _MOST_POINTS) or 1
    heights = [value for _, value in points]
    extremes = {heights.index(min(heights)), heights.index(max(heights))} if heights else set()
    kept = {*range(0, len(points), step), len(points) - 1, *extremes} - {-1}
    return [points[place] for place in sorted(kept)]


def _age(file: Path) -> tuple[float, str]:
    try:
        return -file.stat().st_mtime, file.name
    except FileNotFoundError:
        return 0.0, file.name


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None  # the file does not exist yet, or is being replaced at this moment
    return found if isinstance(found, dict) else None
