"""Records what this site does now, for `site-agent status`, metrics and the service manager (systemd).

The gate writes these records and reads none of them, so no decision depends on them. The volume of sent data is counted
from the audit log, which is the evidence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from protos.errors import OperatorError
from protos.wire.messages import Bind, Farewell, Finish, Offer, SiteReason

Phase: TypeAlias = Literal[
    "starting", "enrolling", "connecting", "connected", "awaiting approval", "joined", "training", "ready", "sending",
    "concluding", "finished",
]  # fmt: skip


@dataclass(frozen=True)
class Mishap:
    """The agent's last error: its time, identifier and text."""

    at: datetime
    identifier: str
    what: str


@dataclass
class Standing:
    """The present state of the agent. Its loop updates the state, and `status` reads it. `now` returns UTC times."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    phase: Phase = "starting"
    run: str | None = None
    rounds: int | None = None
    round: int | None = None
    trainer: str = "starting"
    address: str | None = None
    connected_since: datetime | None = None
    contributed_at: datetime | None = None
    mishap: Mishap | None = None
    void: str | None = None

    def began_run(self, run: str, rounds: int) -> None:
        self.phase, self.run, self.rounds, self.round = "joined", run, rounds, None

    def await_approval(self) -> None:
        self.phase = "awaiting approval"

    def awaits_no_more(self) -> None:
        self.phase = "connected" if self.phase == "awaiting approval" else self.phase

    def connected(self) -> None:
        """Record that this site is connected, after the coordinator's first message on a stream."""
        if self.connected_since is None:
            self.connected_since = self.now()
            self.phase = "connected" if self.phase == "connecting" else self.phase

    def parted(self) -> None:
        self.connected_since = None
        self.phase = "finished" if self.phase == "finished" else "connecting"

    def failed(self, error: OperatorError) -> None:
        self.mishap = Mishap(self.now(), error.code, error.what)

    def saw(self, item: object) -> None:
        match item:
            case Offer(round=number):
                self.phase, self.round = "training", number
            case Bind(round=number):
                self.phase, self.round, self.contributed_at = "sending", number, self.now()
            case Finish():
                self.phase = "concluding"
            case Farewell():
                self.phase = "finished" if item.reason.is_final else self.phase

    def built(self, void: SiteReason | None) -> None:
        """Record that this site's contribution to the current round is ready. `void` is why it has no numbers."""
        self.void = None if void is None else void.name.lower()
        self.phase = "ready" if self.phase == "training" else self.phase

    def concluded(self, run: str) -> None:
        self.phase = "finished" if run == self.run else self.phase

    @asynccontextmanager
    async def asking(self, question: str) -> AsyncIterator[None]:
        self.trainer = question
        yield
        self.trainer = "idle"

    @property
    def line(self) -> str:
        at = "" if self.round is None else f": round {self.round + 1} of {self.rounds}"
        return f"{self.run}{at}, {self.phase}" if self.run else self.phase

    def facts(self) -> dict[str, Any]:  # Any: every type that JSON has
        """Return all facts about this site's work, for JSON. Times are ISO 8601 in UTC, and the first round is 1."""
        mishap = self.mishap
        return {
            "phase": self.phase,
            "run": self.run,
            "round": None if self.round is None else self.round + 1,
            "rounds": self.rounds,
            "coordinator": self.address,
            "connected_since": _iso(self.connected_since),
            "contributed_at": _iso(self.contributed_at),
            "trainer": self.trainer,
            "void": self.void,
            "last_error": mishap and {"at": _iso(mishap.at), "identifier": mishap.identifier, "what": mishap.what},
        }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
