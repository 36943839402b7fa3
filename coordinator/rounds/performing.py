"""Carries out decisions about a run: changes the run, records the decisions, and sends messages to sites.

A message to a site is sent only after the decision is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt
from structlog.typing import FilteringBoundLogger

from coordinator.rounds.course import news
from coordinator.rounds.phases import (
    Attempt,
    CloseRound,
    Effect,
    EndRun,
    Gathering,
    OfferRound,
    OpenKeySession,
    Over,
    SealKeySession,
    SendResult,
    SendRoster,
    Sites,
    VoidRound,
    Working,
)
from coordinator.rounds.run import Run
from coordinator.storage.run_store import RunStore
from protos.wire.messages import (
    Bind,
    CoordinatorMessage,
    CoordinatorReason,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
)


class Peer(Protocol):
    """Sends messages on one site's open stream."""

    def send(self, message: CoordinatorMessage) -> None:
        """Add a message to the queue of this site's messages."""

    def send_parameters(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        """Send parameters to the site in chunks. Each chunk is read from the vector just before it is sent."""

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Send the site the reason for the end of the connection, then end the connection."""


@dataclass
class Performer:
    """Carries out the effects of the state machine for a run. The engine owns `peers` and `joined`."""

    peers: dict[str, Peer]
    joined: set[str]
    log: FilteringBoundLogger
    _outbox: list[Callable[[], None]] = field(default_factory=list)

    def perform(self, run: Run, store: RunStore, effects: tuple[Effect, ...]) -> Over | None:
        """Carry out decisions in this sequence, then send the messages. Return how the run ended, or None.

        The decisions are on disk before the messages are sent.

        Raises:
            UnavailableError: a decision could not be written to the disk; nothing was sent.
        """
        over = None
        self._outbox.clear()
        for effect in effects:
            if isinstance(effect, EndRun):
                over = effect.over
            else:
                self._perform(run, store, effect)
        state = run.state
        if isinstance(state, Working) and not run.terms.sites <= state.attempt.present:
            run.times.disturbed()
        store.commit()
        for act in self._outbox:
            act()
        return over

    def _perform(self, run: Run, store: RunStore, effect: Effect) -> None:
        names = run.plan.site_names
        match effect:
            case OpenKeySession(key_session=key_session):
                run.adverts.clear()
                run.acknowledgements.clear()
                store.note("key_session_opened", key_session=key_session, sites=list(names))
                self._send(run.terms.sites, KeySessionOpen(key_session, names))
            case SendRoster(key_session=key_session):
                self._send(run.terms.sites, KeySessionRoster(key_session, tuple(run.adverts[site] for site in names)))
            case SealKeySession(key_session=key_session):
                entries = tuple(run.acknowledgements[site] for site in names)
                self._send(run.terms.sites, KeySessionSeal(key_session, entries))
            case OfferRound():
                self._offer(run, store, effect)
            case CloseRound(round=number):
                self._close(run, store, number)
            case VoidRound():
                self._void(run, store, effect)
            case SendResult(sites=sites):
                finish, values = run.result()
                self._send(sites, finish)
                self._send_parameters(sites, values, run.rounds_made, 0)
            case EndRun():
                raise ValueError("ended by the caller")
            case _:
                assert_never(effect)

    def _offer(self, run: Run, store: RunStore, effect: OfferRound) -> None:
        offer, sites = store.offer(attempt_of(run)), effect.sites
        run.times.offered(offer.round, effect.attempt)
        if not effect.resumes:
            run.begin_sum(offer.round, run.plan.site_names)
        self._send(sites, offer)
        self._send_parameters(sites, run.offered(offer.round).values, offer.round, effect.attempt)
        arrived = run.running_sum.arrived
        for first, some in groupby(sorted(sites, key=arrived), arrived):  # usually one message for all
            self._send(frozenset(some), Bind(offer.round, effect.attempt, run.plan.site_names, first))

    def _close(self, run: Run, store: RunStore, number: int) -> None:
        before = run.course
        store.before_change()
        run.close_round(number)
        run.times.closed()
        store.closed(number)
        self.log.info("round_closed", run=run.name, round=run.rounds_made, contributors=len(run.terms.sites))
        for event, facts in news(run.manifest, before, run.course):
            self.log.info(event, run=run.name, **facts)

    def _void(self, run: Run, store: RunStore, void: VoidRound) -> None:
        facts = {"round": void.round, "attempt": void.attempt, "missing": sorted(void.missing)}
        self.log.warning("round_void", run=run.name, **facts | {"round": void.round + 1})
        store.note("round_void", **facts)
        for site in sorted(void.missing & self.joined):
            self.joined.discard(site)
            end = self.peers[site].end
            self._outbox.append(partial(end, CoordinatorReason.REPLACED, "the round's deadline passed; connect again"))

    def _send(self, sites: Sites, message: CoordinatorMessage) -> None:
        self._outbox += [partial(self.peers[site].send, message) for site in sorted(sites & self.joined)]

    def _send_parameters(self, sites: Sites, values: npt.NDArray[np.float32], number: int, attempt: int) -> None:
        for site in sorted(sites & self.joined):
            self._outbox.append(partial(self.peers[site].send_parameters, values, number, attempt))


def attempt_of(run: Run) -> Attempt:
    """Return the run's current attempt at a round. Raises ValueError if there is no current attempt."""
    if isinstance(run.state, Gathering | Over):
        raise ValueError("no attempt is under way")
    return run.state.attempt
