"""The page of a site's own curves: losses and the headline metric round by round, and at the end what was gained.

Made from the files that the trainer writes. It loads nothing that reads patients' tables, opens no connection, and
whoever serves it does so as the trainer's user, on this computer alone. On a port every user of this computer may ask
for it, the agent's too; on a Unix socket only who may open that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, TypeAlias

from host.http_answers import Page, answer, is_asked_here
from host.local_page import curves, document

Points: TypeAlias = list[tuple[int, float]]
_HTML: Final = "text/html; charset=utf-8"
_MOST_POINTS: Final = 400
_NAMES: Final = {"auroc": "AUROC", "rmse": "Root mean square error"}


def live_path(state: Path, run: str) -> Path:
    """The file of a run's curves below a site's state folder."""
    return state / "reports" / "live" / f"{run}.json"


class LivePage:
    """What the page shows, looked up anew whenever it is asked for."""

    def __init__(self, site: str, state: Path) -> None:
        """`state` is the site's state folder."""
        self._site, self._state = site, state

    def main(self) -> str:
        """The live part, as HTML: the newest run first, the others by name."""
        files = sorted((self._state / "reports" / "live").glob("*.json"), key=_age)
        if not files:
            return (
                '<section id="none"><h2>Own curves</h2><p>No study has trained here yet, or this user may not read '
                "the trainer's reports.</p></section>"
            )
        facts = _read(files[0]) or {}
        others = ", ".join(escape(file.stem) for file in files[1:]) or "none"
        return (
            _section("run", f"Run {files[0].stem}", _gain(self._state, files[0].stem))
            + _section("loss", "Loss", _losses(facts))
            + _section("metric", _title(facts), _metric(facts))
            + _section("others", "Other runs", f"<p>{others}</p>")
        )

    async def respond(self, request: bytes) -> bytes:
        """The whole response to a request."""
        if not is_asked_here(request):
            return answer(b"", {})  # a name that is not this computer's: see is_asked_here
        main = self.main() if request.split(b" ", 2)[1:2] in ([b"/"], [b"/main"]) else ""
        return answer(
            request,
            {
                "/": lambda: Page(200, _HTML, document(f"Own models of {self._site}", main)),
                "/main": lambda: Page(200, _HTML, main.encode()),
            },
        )


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(title)}</h2>{content}</section>'


def _gain(state: Path, run: str) -> str:
    """The verdict of the run's report, where there is one."""
    words = "Under way, or ended without a report: what joining brings is told when the study is over."
    report = _read(state / "reports" / f"{run}.json")
    if report is not None and isinstance(report.get("gain"), dict):
        words = str(report["gain"].get("sentence", words))
    soft = (
        "Measured on this site's own rows, of the model as it was received in a round. Where agent and trainer are two "
        "users, as the packages make them, only the trainer may read the file. The page is told to whoever on this "
        "computer may open its address: on a port that is every user, so end it when you have looked."
    )
    return f'<p>{escape(words)}</p><p class="soft">{soft}</p>'


def _losses(facts: Mapping[str, Any]) -> str:
    lines = {"validation rows": _points(facts, "validation"), "training rows": _points(facts, "training")}
    return curves(lines, what="Loss", lowest_is_best=True) or "<p>Fewer than two rounds were measured.</p>"


def _title(facts: Mapping[str, Any]) -> str:
    return f"{_NAMES.get(str(facts.get('metric')), 'Metric')} on the validation rows"


def _metric(facts: Mapping[str, Any]) -> str:
    is_error = facts.get("metric") == "rmse"
    drawn = curves(
        {"validation rows": _points(facts, "values")}, what=_title(facts).partition(" on ")[0], lowest_is_best=is_error
    )
    return drawn or "<p>Fewer than two rounds were measured, or it is not defined on these rows.</p>"


def _points(facts: Mapping[str, Any], key: str) -> Points:
    try:
        points = [(int(number), float(value)) for number, value in facts.get(key, ())]
    except (TypeError, ValueError):
        return []
    return _thinned(points)


def _thinned(points: Sequence[tuple[int, float]]) -> Points:
    """So many of them, evenly, the newest always among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    return list(points[::-step][::-1])


def _age(file: Path) -> tuple[float, str]:
    try:
        return -file.stat().st_mtime, file.name
    except FileNotFoundError:
        return 0.0, file.name


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None  # not there yet, or replaced in this moment
    return found if isinstance(found, dict) else None
