"""Shows the status of a coordinator on a read-only web page on this computer, from a separate process.

The process sends the running coordinator the request of `coordinator status`, and reads its journals and register. So a
person who looks cannot delay a round, and the page works while no coordinator runs.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coordinator.configuration import CoordinatorConfiguration
from coordinator.rounds.round_times import JournalTimes
from coordinator.serve import read_status
from coordinator.storage.history import KnownRun, known_runs
from host.local_page import curve, live_answer
from pki.authority import Authority
from pki.register import Register
from pki.register_tables import certificate_ends
from protos.errors import UnavailableError

_TEMPLATES: Final = Path(__file__).parent / "templates"
_MOST_ROUNDS: Final = 12
# Counting all runs reads their whole journals, which is slow. The result is stored for this time.
_RUNS_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """A finished round. `seconds` is the time from offer to sum; None if the round was disturbed (see JournalTimes)."""

    number: int
    seconds: float | None
    sites: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, kw_only=True)
class SiteRow:
    """The facts about one site on the status page. Unknown facts are None.

    `state` is the register's word, followed by `, given up` if the run continues without the site.
    """

    name: str
    state: str
    is_connected: bool | None
    has_joined: bool
    last_seen: datetime | None
    rounds: int
    certificate_days: float | None


class JournalView:
    """Reads the newest rounds and the sites of one run from its journal. Each call reads only the new lines.

    The journal is read without checks. The coordinator itself refuses a changed journal.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self._times = JournalTimes()
        self.rounds: deque[RoundRow] = deque(maxlen=_MOST_ROUNDS)
        self.participations: Counter[str] = Counter()
        self.seen: dict[str, datetime] = {}

    def look(self) -> None:
        """Read the lines of the run's journal that are new since the previous call of this function."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._size)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._size += len(line)
                    self._take(json.loads(line))
        except (FileNotFoundError, ValueError):
            return

    def _take(self, entry: Mapping[str, Any]) -> None:
        at, seconds = datetime.fromisoformat(entry["time"]), self._times.take(entry)
        match entry["kind"]:
            case "closed":
                number, sites = entry["round"], tuple(entry["sites"])
                self.rounds.appendleft(RoundRow(number=number, seconds=seconds, sites=sites, at=at))
                self.participations.update(sites)
                self.seen.update(dict.fromkeys(sites, at))
            case "joined" | "left" | "done":
                self.seen[entry["site"]] = at


def checkpoints_in(folder: Path) -> list[tuple[datetime, str, int]]:
    """Return the time, the name and the bytes of each snapshot in a run's folder and of its result, newest first."""
    found = []
    for file in (*folder.glob("snapshots/*"), *folder.glob("parameters.safetensors")):
        with suppress(FileNotFoundError):  # a newer snapshot is replacing this one now
            told = file.stat()
            found.append((datetime.fromtimestamp(told.st_mtime, UTC), file.name, told.st_size))
    return sorted(found, reverse=True)


def site_rows(
    status: Mapping[str, Any],
    states: Mapping[str, str],
    ends: Mapping[str, datetime],
    view: JournalView | None,
    now: datetime,
) -> tuple[SiteRow, ...]:
    """Return one row of the page's table for each site in the register of sites or in the run.

    Args:
        status: the status from the running coordinator; empty if none runs.
        states: the register's word for each site.
        ends: the time at which each site's certificate expires.
        now: aware, in UTC.
    """
    told = status.get("sites", {})
    rows = []
    for name in sorted({*states, *told}):
        end, seen = ends.get(name), view.seen.get(name) if view else None
        is_connected = told[name]["connected"] if name in told else None if not status else False
        rows.append(
            SiteRow(
                name=name,
                state=states.get(name, "unknown") + (", given up" if told.get(name, {}).get("given_up") else ""),
                is_connected=is_connected,
                has_joined=bool(told.get(name, {}).get("joined")),
                last_seen=now if is_connected else seen,
                rounds=view.participations[name] if view else 0,
                certificate_days=(end - now).total_seconds() / 86400 if end else None,
            )
        )
    return tuple(rows)


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

    async def main(self) -> str:
        """Return the HTML of the part of the status page that changes while a run continues."""
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
        points = tuple((number, loss) for number, loss in (run or {}).get("validation_curve") or ())
        return self._template.render(
            federation=str(self._authority.federation),
            status=status,  # in the format of `coordinator status --json`; empty if no coordinator replied
            run=run,
            sites=site_rows(status, states, ends, view, now),
            rounds=view.rounds if view else (),
            curve=curve(points, what="Mean validation loss"),  # only numbers and fixed words, so nothing is escaped
            checkpoints=checkpoints_in(state / "runs" / name) if name else (),
            runs=runs,
            coordinator_days=(end - now).total_seconds() / 86400,
        )

    async def respond(self, request: bytes) -> bytes:
        """Return the complete HTTP response to a request of a browser."""
        return await live_answer(request, f"Federation {self._authority.federation}", self.main)

    def _view(self, state: Path, name: str) -> JournalView:
        view = self._views.setdefault(name, JournalView(state / "runs" / name / "journal.jsonl"))
        view.look()
        return view

    def _known_runs(self, state: Path, now: datetime) -> tuple[KnownRun, ...]:
        if self._runs is None or (now - self._runs[0]).total_seconds() > _RUNS_SECONDS:
            self._runs = (now, tuple(reversed(known_runs(state))))
        return self._runs[1]
