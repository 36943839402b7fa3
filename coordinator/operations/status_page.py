"""Serves the status page of a coordinator, read-only, on loopback or a Unix socket, in a separate process.

The process sends the running coordinator the request of `coordinator status`, and reads its journals and register. So a
person who looks cannot delay a round, and the page works while no coordinator runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coordinator.configuration import CoordinatorConfiguration
from coordinator.operations.page_facts import JournalView, PageFacts, checkpoints_in, site_rows
from coordinator.serve import read_status
from coordinator.storage.history import KnownRun, known_runs
from host.local_page import curve, live_answer
from pki.authority import Authority
from pki.register import Register
from pki.register_tables import certificate_ends
from protos.errors import UnavailableError

_TEMPLATES: Final = Path(__file__).parent / "templates"
# Counting all runs reads their whole journals, which is slow. The result is stored for this time.
_RUNS_SECONDS: Final = 30.0


class StatusPage:
    """Computes the content of the status page again for every request."""

    def __init__(
        self,
        configuration: CoordinatorConfiguration,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Load the authority and the page's template. `now` returns aware UTC times."""
        self._configuration, self._now = configuration, now
        self._authority = Authority.load(Path(configuration.authority))
        self._views: dict[str, JournalView] = {}
        self._runs: tuple[datetime, tuple[KnownRun, ...]] | None = None
        environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._template = environment.get_template("status.html")

    async def facts(self) -> PageFacts:
        """Return all current facts of the status page."""
        now, state = self._now(), Path(self._configuration.state)
        status: dict[str, Any] = {}
        with suppress(UnavailableError):
            status = json.loads(await read_status(self._configuration))
        run, runs = status.get("run"), self._known_runs(state, now)
        name = run["run"] if run else runs[0].name if runs else None
        view = self._view(state, name) if name else None
        with Register(self._authority.register_path) as register:
            states = {str(site.name): site.state.value for site in register.sites()}
        ends = certificate_ends(self._authority.register_path)
        end = self._authority.coordinator_leaf().not_valid_after_utc
        return PageFacts(
            federation=str(self._authority.federation),
            now=now,
            is_running=bool(status),
            is_paused=bool(status.get("paused")),
            run=run,
            pace=status.get("pace"),
            waits_for=tuple(status.get("waits_for", ())),
            unaware=tuple(status.get("yet_to_hear_of_the_end", ())),
            sites=site_rows(status, states, ends, view, now),
            rounds=tuple(view.rounds) if view else (),
            curve=tuple((number, loss) for number, loss in (run or {}).get("validation_curve") or ()),
            checkpoints=checkpoints_in(state / "runs" / name) if name else (),
            runs=runs,
            coordinator_days=(end - now).total_seconds() / 86400,
        )

    async def main(self) -> str:
        """Return the part of the status page that changes during a run, as HTML."""
        facts = await self.facts()
        drawn = curve(
            facts.curve, what="Mean validation loss"
        )  # contains only numbers and fixed words, so nothing must be escaped
        return self._template.render(facts=facts, curve=drawn)

    async def respond(self, request: bytes) -> bytes:
        """Return the whole HTTP response to a request."""
        return await live_answer(request, f"Federation {self._authority.federation}", self.main)

    def _view(self, state: Path, name: str) -> JournalView:
        view = self._views.setdefault(name, JournalView(state / "runs" / name / "journal.jsonl"))
        view.look()
        return view

    def _known_runs(self, state: Path, now: datetime) -> tuple[KnownRun, ...]:
        if self._runs is None or (now - self._runs[0]).total_seconds() > _RUNS_SECONDS:
            self._runs = (now, tuple(reversed(known_runs(state))))
        return self._runs[1]
