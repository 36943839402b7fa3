"""The loop: what sites say becomes events, what the state machine answers becomes messages.

Everything here happens on one event loop and without waiting, so each event is handled whole. Runs
follow one another in the order of the configuration; sites stay connected in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, assert_never

import numpy as np
import numpy.typing as npt
import structlog

from coordinator.admission import refuse_identity, refuse_join
from coordinator.course import news
from coordinator.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    BecameReady,
    BindRound,
    CloseRound,
    Collecting,
    Completed,
    Declined,
    Effect,
    EndRun,
    Event,
    Finishing,
    FoundCorrupted,
    Gathering,
    Interrupted,
    Joined,
    Left,
    OfferRound,
    OpenEpoch,
    Over,
    SealEpoch,
    SendResult,
    SendRoster,
    TimePassed,
    TookResult,
    VoidRound,
)
from coordinator.record import has_complete_record, write_record
from coordinator.round import advance, begin
from coordinator.run import Run, new_run, terms_of
from protos.messages import (
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    EpochAcknowledgement,
    EpochOpen,
    EpochRoster,
    EpochSeal,
    Hello,
    Join,
    KeyAdvert,
    MalformedMessage,
    Ready,
    Refusal,
    SiteMessage,
    SiteReason,
)
from protos.methods import method_names
from protos.plan import Plan


class Peer(Protocol):
    """One site's open stream, as the engine sees it."""

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""

    def send_parameters(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        """Queue the vector as chunks; it is read when they are sent."""

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Say why and end the stream."""


class Engine:
    """All runs of one coordinator."""

    def __init__(
        self,
        *,
        plans: Iterable[Plan],
        state: Path,
        identity_of: Callable[[str], str | None],
        clock: Callable[[], float],
    ) -> None:
        """`identity_of` gives a site's registered identity fingerprint, `clock` monotonic seconds."""
        self._waiting = list(plans)
        self._state = state
        self._identity_of = identity_of
        self._clock = clock
        self._log = structlog.get_logger()
        self._peers: dict[str, Peer] = {}
        self._joined: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._run: Run | None = None
        self.outcomes: list[Over] = []
        self.finished = asyncio.Event()

    def start(self) -> None:
        """Begin the first run."""
        self._next_run()

    def connected(self, site: str, peer: Peer) -> None:
        """A site whose certificate was accepted has opened a stream and said Hello."""
        earlier = self._peers.pop(site, None)
        if earlier is not None:
            self._lost(site)
            earlier.end(CoordinatorReason.REPLACED, "a newer connection of this site has taken over")
        self._peers[site] = peer
        self._log.info("site_connected", site=site)
        if self._run is not None:
            self._announce(site, self._run)
        elif self.finished.is_set():
            peer.end(CoordinatorReason.ALL_RUNS_OVER, "all studies of this coordinator are over")

    def disconnected(self, site: str, peer: Peer) -> None:
        """A stream has ended, for whatever reason."""
        if self._peers.get(site) is peer:
            del self._peers[site]
            self._log.info("site_disconnected", site=site)
            self._lost(site)

    def received(self, site: str, message: SiteMessage) -> None:
        """A checked message has arrived.

        Raises:
            MalformedMessage: it does not belong here; the caller ends the stream.
        """
        run = self._run
        if run is None:
            return
        match message:
            case Chunk():
                self._add(run, site, message)
            case Join():
                self._join(run, site, message)
            case Ready(round=number, attempt=attempt):
                self._happened(BecameReady(self._member(site), number, attempt))
            case Done(run=name):
                if name == run.name:
                    self._happened(TookResult(self._member(site)))
            case Refusal(run=name, reason=reason, tensor=tensor):
                if name == run.name:
                    self._log.warning("site_declined", site=site, reason=reason.name, tensor=tensor)
                    self._joined.discard(site)
                    self._happened(Declined(site, reason))
            case KeyAdvert() | EpochAcknowledgement():
                self._agree(run, self._member(site), message)
            case Hello():
                raise MalformedMessage("a second greeting")
            case _:
                assert_never(message)

    def status(self) -> dict[str, Any]:
        """What an operator asks at 3 a.m., ready for JSON."""
        run = self._run
        return {
            "run": run.facts() if run else None,
            "sites": {
                name: {"connected": name in self._peers, "joined": name in self._joined}
                for name in (run.plan.site_names if run else sorted(self._peers))
            },
            "runs_over": len(self.outcomes),
            "runs_waiting": len(self._waiting),
        }

    def removed(self, site: str) -> None:
        """A site's certificate is not accepted any more; nobody waits for it to come back."""
        if site in self._joined:
            self._joined.discard(site)
            self._happened(Declined(site, SiteReason.REVOKED))

    def stop(self) -> None:
        """The coordinator is ending: keep what was made, and tell every site whether to come back."""
        if self._timer:
            self._timer.cancel()
        run = self._run
        reason, detail = CoordinatorReason.SHUTTING_DOWN, "the coordinator is restarting"
        if run is not None and not isinstance(run.state, Gathering):
            is_complete = isinstance(run.state, Finishing)
            detail = "all rounds were made" if is_complete else "the coordinator was stopped in the middle of the run"
            reason = reason if is_complete else CoordinatorReason.RUN_STOPPED
            missing = run.state.step.bound - run.state.done if isinstance(run.state, Finishing) else frozenset()
            self._record(run, Over(is_complete=is_complete, reason=detail, missing=missing))
        for peer in list(self._peers.values()):
            peer.end(reason, detail)

    def _next_run(self) -> None:
        self._joined.clear()
        if not self._waiting:
            self._run = None
            for peer in list(self._peers.values()):
                peer.end(CoordinatorReason.ALL_RUNS_OVER, "all studies of this coordinator are over")
            self.finished.set()
            return
        plan = self._waiting.pop(0)
        if has_complete_record(self._state / "runs" / plan.run_name):
            self._log.info("run_is_complete_already", run=plan.run_name)
            self._next_run()
            return
        terms = terms_of(plan)
        self._run = new_run(plan, terms, begin(terms, self._clock()))
        self._log.info("run_announced", run=plan.run_name, method=method_names(plan.method), rounds=terms.rounds)
        self._schedule()
        for site in list(self._peers):
            self._announce(site, self._run)

    def _announce(self, site: str, run: Run) -> None:
        reason = refuse_identity(run.plan, site, self._identity_of(site))
        if reason is not None and any(
            refuse_identity(plan, site, self._identity_of(site)) is None for plan in self._waiting
        ):
            self._log.info("site_waits_for_a_later_study", site=site, run=run.name, because=reason)
            return
        if reason is not None:
            self._log.warning("site_not_listed", site=site, run=run.name)
            self._peers[site].end(CoordinatorReason.NOT_ACCEPTED, reason)
            return
        self._peers[site].send(Announcement(run.name, run.plan.canonical))

    def _join(self, run: Run, site: str, join: Join) -> None:
        if join.run != run.name:
            return  # of the run before; the announcement of this one is on its way
        reason = refuse_join(run.plan, run.manifest, join)
        if reason is not None:
            self._log.warning("site_not_admitted", site=site, reason=reason)
            self._peers[site].end(CoordinatorReason.NOT_ACCEPTED, reason)
            return
        if site not in self._joined:
            self._joined.add(site)
            self._log.info("site_joined", site=site, run=run.name)
            self._happened(Joined(site, join.epoch))

    def _agree(self, run: Run, site: str, message: KeyAdvert | EpochAcknowledgement) -> None:
        """Keep what sites say to one another about keys; only they can check it."""
        state = run.state
        if message.site != site:
            raise MalformedMessage("a key or an acknowledgement in another site's name")
        if not isinstance(state, Agreeing) or message.epoch != state.step.epoch:
            return  # of an agreement that was begun anew in the meantime
        if isinstance(message, KeyAdvert):
            run.adverts.setdefault(site, message)
            self._happened(Advertised(site, message.epoch))
        else:
            run.acknowledgements.setdefault(site, message)
            self._happened(Acknowledged(site, message.epoch))

    def _member(self, site: str) -> str:
        if site not in self._joined:
            raise MalformedMessage("a message before joining")
        return site

    def _add(self, run: Run, site: str, chunk: Chunk) -> None:
        state, at = run.state, (chunk.round, chunk.attempt)
        self._member(site)
        if isinstance(state, Gathering | Over):
            raise MalformedMessage("a chunk of a round that is not collecting")
        current = (state.step.round, state.step.attempt)
        if not isinstance(state, Collecting) or at != current:
            if at < current or (at == current and isinstance(state, Interrupted)):
                return  # of an attempt that became void while the chunk was under way
            raise MalformedMessage("a chunk of a round that is not collecting")
        if run.running_sum.add(site, chunk.index, chunk.body):
            is_corrupted = run.running_sum.is_complete and not run.is_consistent
            self._happened(FoundCorrupted() if is_corrupted else Completed(site))

    def _lost(self, site: str) -> None:
        if site in self._joined:
            self._joined.discard(site)
            self._happened(Left(site))

    def _happened(self, event: Event) -> None:
        run = self._run
        if run is None:
            return
        run.state, effects = advance(run.terms, run.state, event, self._clock())
        for effect in effects:
            self._perform(run, effect)
        if self._run is run:
            self._schedule()

    def _perform(self, run: Run, effect: Effect) -> None:
        match effect:
            case OpenEpoch(sites=sites, epoch=epoch):
                run.adverts.clear()
                run.acknowledgements.clear()
                self._send(sites, EpochOpen(epoch, tuple(sorted(sites))))
            case SendRoster(sites=sites, epoch=epoch):
                self._send(sites, EpochRoster(epoch, tuple(run.adverts[site] for site in sorted(sites))))
            case SealEpoch(sites=sites, epoch=epoch):
                entries = tuple(run.acknowledgements[site] for site in sorted(sites))
                self._send(sites, EpochSeal(epoch, entries))
            case OfferRound(sites=sites, round=number, attempt=attempt):
                self._offer(run, sites, number, attempt)
            case BindRound():
                self._bind(run, effect)
            case CloseRound(round=number):
                self._close(run, number)
            case VoidRound(round=number, attempt=attempt, missing=missing):
                self._log.warning("round_void", run=run.name, round=number, attempt=attempt, missing=sorted(missing))
                for site in missing & self._joined:
                    self._joined.discard(site)
                    self._peers[site].end(CoordinatorReason.REPLACED, "the round's deadline passed; connect again")
            case SendResult(sites=sites):
                finish, values = run.result()
                for site in sorted(sites & self._joined):
                    self._peers[site].send(finish)
                    self._peers[site].send_parameters(values, run.rounds_made, 0)
            case EndRun(over=over):
                self._end(run, over)
            case _:
                assert_never(effect)

    def _send(self, sites: frozenset[str], message: CoordinatorMessage) -> None:
        for site in sorted(sites & self._joined):
            self._peers[site].send(message)

    def _offer(self, run: Run, sites: frozenset[str], number: int, attempt: int) -> None:
        if attempt == 0:
            run.round_began = self._clock()
        offered = run.offered(number)
        for site in sorted(sites & self._joined):
            self._peers[site].send(replace(offered.offer, attempt=attempt))
            self._peers[site].send_parameters(offered.values, number, attempt)

    def _bind(self, run: Run, bind: BindRound) -> None:
        if not bind.resumes:
            run.begin_sum(bind.round, bind.contributors)
        for site in sorted(bind.sites & self._joined):
            arrived = run.running_sum.arrived(site)
            contributors = tuple(sorted(bind.contributors))
            self._peers[site].send(Bind(bind.round, bind.attempt, contributors, arrived, bind.redraw))

    def _close(self, run: Run, round_number: int) -> None:
        before, contributors = run.course, run.running_sum.sites
        run.close_round(round_number)
        run.seconds.append(self._clock() - run.round_began)
        self._log.info("round_closed", run=run.name, round=run.rounds_made, contributors=contributors)
        for event, facts in news(run.manifest, before, run.course):
            self._log.info(event, run=run.name, **facts)

    def _record(self, run: Run, over: Over) -> None:
        log = self._log.info if over.is_complete else self._log.error
        log("run_over", run=run.name, complete=over.is_complete, reason=over.reason, missing=sorted(over.missing))
        write_record(self._state / "runs" / run.name, run, over)

    def _end(self, run: Run, over: Over) -> None:
        self._record(run, over)
        self.outcomes.append(over)
        if not over.is_complete:
            for peer in list(self._peers.values()):
                peer.end(CoordinatorReason.RUN_STOPPED, over.reason)
            self._waiting.clear()
        self._next_run()

    def _schedule(self) -> None:
        """Come back when the state's deadline has passed."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        run = self._run
        if run is None or isinstance(run.state, Over):
            return
        delay = max(0.0, run.state.deadline - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._happened, TimePassed())
