"""Reads the facts of the status page from the status socket, the journals and the register of sites.

Nothing here changes anything. The page sends the running coordinator only the request that `coordinator status` sends.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from coordinator.rounds.round_times import JournalTimes
from coordinator.storage.history import KnownRun

_MOST_ROUNDS: Final = 12


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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One file on the status page: a snapshot from which a run can continue, or the result of the run."""

    name: str
    size: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """All facts that the status page shows.

    Attributes:
        is_running: whether a coordinator replied.
        run: the run in the format of `coordinator status --json`; None if there is none.
        pace: the speed of its newest rounds, as in the status; None if unknown.
        waits_for: the sites without which the run cannot continue now.
        unaware: the sites that are not yet informed that all studies are over.
        sites: every site of the register or of the run.
        curve: measured rounds and mean validation losses.
        checkpoints: of the displayed run.
        runs: all runs, the newest first.
        coordinator_days: days until the coordinator's own certificate expires.
    """

    federation: str
    now: datetime
    is_running: bool
    is_paused: bool
    run: Mapping[str, Any] | None
    pace: Mapping[str, Any] | None
    waits_for: tuple[str, ...]
    unaware: tuple[str, ...]
    sites: tuple[SiteRow, ...]
    rounds: tuple[RoundRow, ...]
    curve: tuple[tuple[int, float], ...]
    checkpoints: tuple[Checkpoint, ...]
    runs: tuple[KnownRun, ...]
    coordinator_days: float | None


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
        """Read the journal lines that were written since the previous call."""
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


def checkpoints_in(folder: Path) -> tuple[Checkpoint, ...]:
    """Return the checkpoints in a run's folder, and its result, the newest first."""
    files = [*folder.glob("snapshots/*"), *folder.glob("parameters.safetensors")]
    found = []
    for file in files:
        try:
            told = file.stat()
        except FileNotFoundError:
            continue  # a newer snapshot is replacing this one now
        found.append(Checkpoint(name=file.name, size=told.st_size, at=datetime.fromtimestamp(told.st_mtime, UTC)))
    return tuple(sorted(found, key=lambda checkpoint: checkpoint.at, reverse=True))


def site_rows(
    status: Mapping[str, Any],
    states: Mapping[str, str],
    ends: Mapping[str, datetime],
    view: JournalView | None,
    now: datetime,
) -> tuple[SiteRow, ...]:
    """Return a table row for every site in the register or in the run.

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
