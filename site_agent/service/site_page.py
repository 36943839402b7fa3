"""Shows a web page about a site: what its agent does, and what this site has sent according to its audit log.

The page is read-only, on loopback or a Unix socket, from a process of its own that runs as the agent's user. It shows
no data of patients.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from host.local_page import live_answer
from site_agent.service.released_volume import GrowingLog
from site_agent.service.status_socket import read_status
from site_agent.state_folders import audit_log_path

_MOST_RECORDS: Final = 15
_HANDED_OVER: Final = "contribution_handed_over"
# The events that are most important for a data protection officer. `site-agent audit show` shows the whole log.
_TOLD: Final = frozenset({
    "approval_refused", "data_accepted", "enrolled", "enrolment_requested", "model_adopted", "model_handed_over",
    "plan_approved", "plan_withdrawn", "release_refused", "run_finished", "state_restored",
    "older_state_restored",
})  # fmt: skip


@dataclass
class RunLeft:
    """The amount of data that was sent in one run. A repeated upload is counted again."""

    name: str
    first: str
    last: str = ""
    contributions: int = 0
    handed_bytes: int = 0


class LogView:
    """Reads an audit log's records of sent data. Each call reads only the new lines.

    The log is not verified.
    """

    def __init__(self, path: Path) -> None:
        self._log = GrowingLog(path)
        self._begin()

    def look(self) -> None:
        """Read the lines of the audit log that are new since the previous call of this function."""
        self._log.read(self._take, self._begin)

    def _begin(self) -> None:
        self.runs: dict[str, RunLeft] = {}
        self.releases: deque[Mapping[str, Any]] = deque(maxlen=_MOST_RECORDS)
        self.acts: deque[Mapping[str, Any]] = deque(maxlen=_MOST_RECORDS)
        self.damaged = 0

    def _take(self, line: bytes) -> None:
        try:
            facts = json.loads(line)["facts"]
            event, time = str(facts["event"]), str(facts["time"])
            if event in _TOLD:
                self.acts.appendleft(facts)
            elif event == _HANDED_OVER:
                run = self.runs.setdefault(str(facts["run"]), RunLeft(str(facts["run"]), time))
                run.last, run.contributions = time, run.contributions + 1
                run.handed_bytes += int(facts["bytes"])
                self.releases.appendleft(facts)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.damaged += 1  # the verification shows which line is damaged


class SitePage:
    """Computes the content of the page again for every request."""

    def __init__(self, site: str, state: Path) -> None:
        """Load the page's template. `state` is the site's state directory."""
        self._site, self._state = site, state
        self._view = LogView(audit_log_path(state))
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._template = environment.get_template("site.html")

    async def main(self) -> str:
        """Return the HTML of the part of the page that changes while the site runs."""
        told = await read_status(self._state)
        status: dict[str, Any] = json.loads(told) if told else {}
        self._view.look()
        return self._template.render(site=self._site, status=status, view=self._view)

    async def respond(self, request: bytes) -> bytes:
        """Return the complete HTTP response to a request of a browser."""
        return await live_answer(request, f"Site {self._site}", self.main)
