"""Runs the rounds: reacts to messages of sites, changes the state of the run, and sends messages to the sites.

Everything runs on one event loop and never waits, so each event is handled as a whole. A message to a site is sent only
after the decision is on disk. A message that fits no run of this coordinator is refused. A message about an attempt or
agreement that has ended is ignored. Runs follow one another in the order of the configuration, and sites stay connected
in between. An interrupted run continues where its records end: at its result, or in a wait until all sites are back. A
run that is over is never repeated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Protocol, assert_never

import numpy as np
import numpy.typing as npt
import structlog

from coordinator.rounds.phases import (
    Attempt,
    CloseRound,
    Collecting,
    Declined,
    Effect,
    EndRun,
    Event,
    Finishing,
    Gathering,
    Interrupted,
    Joined,
    Left,
    Moved,
    OfferRound,
    OpenKeySession,
    Over,
    SealKeySession,
    SendResult,
    SendRoster,
    Sites,
    TimePassed,
    TookResult,
    VoidRound,
    WasStopped,
    WentBack,
    Working,
)
from coordinator.rounds.round import advance
from coordinator.rounds.run import (
    Run,
    hear_chunk,
    hear_of_keys,
    new_run,
    refuse_identity,
    refuse_join,
    terms_of,
    uploaded,
)
from coordinator.rounds.run_status import Around, status_facts
from coordinator.rounds.transfers import Transfers
from coordinator.storage.ending import Ending
from coordinator.storage.history import history_of
from coordinator.storage.run_record import write_record
from coordinator.storage.run_store import RunStore
from host.audit_log import AuditLog
from protos.errors import OperatorError
from protos.plan.manifest import Starts, manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import (
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Finish,
    Hello,
    Join,
    KeyAdvert,
    KeySessionAcknowledgement,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
    MalformedMessage,
    Offer,
    Refusal,
    SiteMessage,
    SiteReason,
)
from protos.wire.positions import down_chunks, received_position


class Peer(Protocol):
    """Sends messages on one site's open stream. `reads_sums`: the site computes parameters from sums."""

    reads_sums: bool

    def send(self, message: CoordinatorMessage) -> None:
        """Add a message to the queue of this site's messages."""

    def send_parameters(
        self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int, first_chunk: int
    ) -> None:
        """Send parameters, or a sum, from a chunk on. Each chunk is read from the array just before it is sent."""

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Send the site the reason for the end of the connection, then end the connection."""


class Engine:
    """Executes all runs of one coordinator."""

    def __init__(
        self,
        *,
        plans: Iterable[Plan],
        log: AuditLog,
        identity_of: Callable[[str], str | None],
        clock: Callable[[], float],
        revoked: Callable[[], Iterable[str]] = tuple,
        starts: Callable[[Plan], Starts] = lambda _: {},
    ) -> None:
        """Queue the plans.

        Args:
            log: has all decisions. Its store's folder gets the folder `runs`.
            clock: returns monotonic seconds.
        """
        self._waiting, self._audit, self._identity_of = list(plans), log, identity_of
        self._clock, self._revoked = clock, revoked
        self._runs, self._log, self._starts = log.store.path.parent / "runs", structlog.get_logger(), starts
        self._peers: dict[str, Peer] = {}
        self._joined: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = math.inf  # the deadline of the timer
        self._run: Run | None = None
        self._store: RunStore | None = None
        self._held: dict[str, Join] = {}
        self.ending, self._contacts = Ending(log, identity_of, revoked), dict[str, float]()
        self._transfers = Transfers(clock)
        self._outbox: list[Callable[[], None]] = []  # messages that are sent after the decisions are on disk
        self.failure: OperatorError | None = None
        self.outcomes: list[Over] = []
        self.finished = asyncio.Event()
        self._is_void = False  # the last run

    def start(self) -> None:
        """Begin or continue the first run. Raises OperatorError if the files of the run on disk have errors."""
        self._next_run()

    def connected(self, site: str, peer: Peer) -> None:
        """Handle a new connection of an accepted site, after its first message (Hello)."""
        if (earlier := self._peers.pop(site, None)) is not None:
            self._lost(site)
            earlier.end(CoordinatorReason.REPLACED, "a newer connection of this site has taken over")
        self._peers[site] = peer
        self._log.info("site_connected", site=site)
        if self._run is not None:
            self._announce(site, self._run)
        else:
            self._tell_all_over()

    def saw(self, site: str) -> None:
        self._contacts[site] = self._clock()

    def sent(self, site: str, taken: int, of: int) -> None:
        """Handle that a site's line has taken so many bytes of its parameters, whose number is `of`."""
        self._transfers.moved(site, "down", taken, of)
        self._happened(Moved(site))

    def disconnected(self, site: str, peer: Peer) -> None:
        """Handle the end of a site's connection, whatever the reason is."""
        if self._peers.get(site) is peer:
            del self._peers[site]
            self._log.info("site_disconnected", site=site)
            self._lost(site)

    def received(self, site: str, message: SiteMessage) -> None:
        """Handle a checked message of a site.

        Raises:
            MalformedMessage: the message is not expected here; the caller ends the stream.
        """
        if (run := self._run) is None:
            return
        if site in run.plan.receiving_sites and not isinstance(message, Join | Done | Refusal | Hello):
            raise MalformedMessage("a contribution of a site that only receives")
        match message:
            case Chunk():
                if (event := hear_chunk(run, self._member(site), message)) is not None:
                    self._transfers.moved(site, "up", *uploaded(run, site))
                    self._happened(event)
            case Join():
                self._join(run, site, message)
            case Done(run=name):
                if name == run.name and self._store is not None:
                    took = site if isinstance(run.state, Finishing) else self._member(site)  # or it ended here before
                    self._store.note("result_taken", site=took)
                    self._happened(TookResult(site))
            case Refusal(run=name, reason=reason, tensor=tensor):
                if name == run.name:
                    self._log.warning("site_declined", site=site, reason=reason.name, tensor=tensor)
                    if reason is SiteReason.WITHDRAWN and self._store is not None:
                        self._store.note("run_withdrawn", site=site)
                    self._decline(site, reason)
            case KeyAdvert() | KeySessionAcknowledgement():
                self._happened(hear_of_keys(run, self._member(site), message))
            case Hello():
                raise MalformedMessage("a second greeting")
            case _:
                assert_never(message)

    def status(self) -> dict[str, Any]:
        seconds, now = self._clock(), self._audit.now()
        around = Around(self._peers, self._joined, self._contacts, seconds, now, self.ending.unaware)
        facts = status_facts(self._run, self._store, around, self._transfers)
        trouble = self._audit.failure.what if self._audit.failure else None
        return facts | {"runs_over": len(self.outcomes), "runs_waiting": len(self._waiting), "trouble": trouble}

    def recheck(self) -> None:
        """Stop waiting for revoked sites, after the register of sites has changed."""
        for site in sorted(self._run.terms.sites & set(self._revoked())) if self._run else ():
            self.removed(site)
        self._tell_all_over()

    def removed(self, site: str) -> None:
        """End a site's part in the run, after it was revoked."""
        run, store, revoked = self._run, self._store, set(self._revoked())
        if run and store and site in (run.terms.sites & revoked) - store.history.revoked:
            store.note("run_revoked", site=site)
            self._log.warning("site_taken_out", site=site, run=run.name)
        self._decline(site, SiteReason.REVOKED)

    def end_run(self) -> bool:
        """End the current run permanently because a person ordered this. Return whether there was a run."""
        if self._run is None or self._store is None:
            return False
        self._store.note("run_stopped")
        self._happened(WasStopped())
        return True

    def stop(self) -> None:
        """Prepare the end of this program: save the run, and tell each site to reconnect later."""
        if self._timer:
            self._timer.cancel()
        for peer in list(self._peers.values()):
            peer.end(CoordinatorReason.SHUTTING_DOWN, "the coordinator is restarting")
        if self._store is not None:
            self._store.close()
        self._run = self._store = None

    def _next_run(self) -> None:
        self._joined.clear()
        self._held.clear()
        self._run = self._store = None
        if not self._waiting:
            self.finished.set()
            self._tell_all_over()
            return
        plan = self._waiting.pop(0)
        self.ending.follow(plan)
        history = history_of(self._audit, plan.run_name)
        if history.is_over:
            self._is_void = history.is_void
            self._log.info("run_is_over_already", run=plan.run_name, standing=history.standing)
            self._next_run()
            return
        manifest = manifest_of(plan, self._starts(plan))
        run = new_run(plan, terms_of(plan, manifest.parameters), Gathering(), manifest)
        folder = self._runs / plan.run_name / "snapshots"
        store = RunStore(self._audit, folder, run, history, clock=self._clock)
        self._run, self._store = run, store
        self._begin(run, store)
        self._schedule()
        for site in list(self._peers):
            self._announce(site, run)
        self.recheck()

    def _tell_all_over(self) -> None:
        if self._run is None and self.finished.is_set() and self.failure is None:
            self._guarded(self._send_end)

    def _send_end(self) -> None:
        self.ending.record(self._peers)
        why = CoordinatorReason.RUN_VOIDED if self._is_void else CoordinatorReason.ALL_RUNS_OVER
        for peer in list(self._peers.values()):
            peer.end(why, "all studies of this coordinator are over")

    def _begin(self, run: Run, store: RunStore) -> None:
        """Announce a run for the first time, or continue it from its records."""
        history = store.history
        attempt, key_session = history.first_attempt, history.key_session
        run.terms = terms = replace(run.terms, first_attempt=attempt, first_key_session=key_session)
        if not history.has_begun:
            store.note("run_announced", plan=run.plan.digest.hex())
            store.commit()
            self._log.info("run_announced", run=run.name, method=run.plan.method_name, rounds=terms.rounds)
            return
        store.note("run_taken_up")
        store.commit()
        run.state = _interrupted_state(run, store, self._clock())
        self._log.info("run_taken_up", run=run.name, round=max(history.past) + 1, snapshots=store.rounds)

    def _announce(self, site: str, run: Run) -> None:
        identity = self._identity_of(site)
        if (reason := refuse_identity(run.plan, site, identity)) is None:
            self._peers[site].send(Announcement(run.name, run.plan.canonical))
        elif any(refuse_identity(plan, site, identity) is None for plan in self._waiting):
            self._log.info("site_waits_for_a_later_study", site=site, run=run.name, because=reason)
        else:
            self._log.warning("site_not_listed", site=site, run=run.name)
            self._peers[site].end(CoordinatorReason.NOT_ACCEPTED, reason)

    def _join(self, run: Run, site: str, join: Join) -> None:
        if join.run != run.name:
            return  # the message is about the previous run; the announcement of the current run is being sent
        if (reason := refuse_join(run.plan, run.manifest, join)) is not None:
            self._log.warning("site_not_admitted", site=site, reason=reason)
            self._peers[site].end(CoordinatorReason.NOT_ACCEPTED, reason)
            return
        if site in self._joined or self._store is None:
            return
        if self._store.is_behind(join):
            why = "the coordinator's state of this run is older than this site's"
            self._refuse(self._store, "run_ahead", site, why)
            return
        self._store.joined(site, join)
        self._transfers.joined(site, join)
        is_current = _has_what_it_needs(run, self._store, site, join)
        if not is_current and not self._store.can_return(site):
            why = "the coordinator and this site have no saved state of this run in common"
            self._refuse(self._store, "site_state_refused", site, why)
            return
        if not is_current and isinstance(run.state, Collecting) and site in run.state.complete:
            # The site has sent its whole contribution; it is added to the run when the next round begins.
            self._held[site] = join
            return
        self._joined.add(site)
        if site in run.plan.receiving_sites:
            run.terms = replace(run.terms, receivers=run.terms.receivers | {site})
        self.ending.joined(site)
        self._log.info("site_joined", site=site, run=run.name)
        self._store.note("site_joined", site=site)
        self._happened(Joined(site, join.key_session, is_current))

    def _refuse(self, store: RunStore, event: str, site: str, why: str) -> None:
        store.note(event, site=site)
        self._guarded(store.commit)
        if self.failure is not None:
            return  # without a record nothing is sent
        self._log.error("coordinator_state_older" if event == "run_ahead" else "site_state_lost", site=site)
        self._peers[site].end(CoordinatorReason.NOT_ACCEPTED, why)

    def _member(self, site: str) -> str:
        if site not in self._joined:
            raise MalformedMessage("a message before joining")
        return site

    def _decline(self, site: str, reason: SiteReason) -> None:
        self._joined.discard(site)
        if self._run is not None:  # the run can end without a receiver that wants no result
            self._run.terms = replace(self._run.terms, receivers=self._run.terms.receivers - {site})
        self.ending.left(site)
        self._happened(Declined(site, reason))

    def _lost(self, site: str) -> None:
        self._held.pop(site, None)
        if site in self._joined:
            self._joined.discard(site)
            if self._store is not None:
                self._store.note("site_left", site=site)
            self._happened(Left(site))

    def _happened(self, event: Event | None) -> None:
        run, store = self._run, self._store
        if event is None or run is None or store is None or self.failure is not None:
            return
        try:
            run.state, effects = advance(run.terms, run.state, event, self._clock())
            if (over := self._perform_all(run, store, effects)) is not None:
                self._end(run, store, over)
            elif isinstance(run.state, Interrupted) and run.state.returns:
                self._happened(_go_back(run, store, self._joined))
        except OperatorError as failure:
            self._fail(failure)
        if self._run is run:
            self._schedule()
            self._hear_held(run)

    def _perform_all(self, run: Run, store: RunStore, effects: tuple[Effect, ...]) -> Over | None:
        """Carry out decisions in this sequence, then send the messages. Return how the run ended, or None.

        The decisions are on disk before the messages are sent.

        Raises:
            OperatorError: a decision could not be written to the disk; nothing was sent.
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
                self._send_parameters(run, sites, finish, values, 0)
            case EndRun():
                raise ValueError("ended by the caller")
            case _:
                assert_never(effect)

    def _offer(self, run: Run, store: RunStore, effect: OfferRound) -> None:
        offer, sites = store.offer(effect.round, effect.attempt), effect.sites
        run.times.offered(offer.round, effect.attempt)
        if not effect.resumes:
            run.begin_sum(offer.round, run.plan.site_names)
        self._send_parameters(run, sites, offer, run.offered(offer.round).values, effect.attempt)
        arrived = run.running_sum.arrived
        for first, some in groupby(sorted(sites, key=arrived), arrived):  # usually one message for all
            self._send(frozenset(some), Bind(offer.round, effect.attempt, run.plan.site_names, first))

    def _close(self, run: Run, store: RunStore, number: int) -> None:
        run.close_round(number)
        run.times.closed()
        store.closed(number)
        self._log.info("round_closed", run=run.name, round=run.rounds_made, contributors=len(run.terms.sites))

    def _void(self, run: Run, store: RunStore, void: VoidRound) -> None:
        facts = {"round": void.round, "attempt": void.attempt, "missing": sorted(void.missing)}
        self._log.warning("round_void", run=run.name, **facts | {"round": void.round + 1})
        store.note("round_void", **facts)
        for site in sorted(void.missing & self._joined):
            self._joined.discard(site)
            end = self._peers[site].end
            self._outbox.append(partial(end, CoordinatorReason.REPLACED, "the round's deadline passed; connect again"))

    def _send(self, sites: Sites, message: CoordinatorMessage) -> None:
        self._outbox += [partial(self._peers[site].send, message) for site in sorted(sites & self._joined)]

    def _send_parameters(
        self, run: Run, sites: Sites, message: Offer | Finish, values: npt.NDArray[np.float32], attempt: int
    ) -> None:
        """Send a message and the chunks of its parameters that each site lacks, or of the sum that leads to them."""
        arrays: dict[bool, npt.NDArray[np.generic]] = {False: values}
        if (found := run.sum_before(message.round)) is not None:
            arrays[True] = found
        positions = {is_sum: received_position(run.name, replace(message, is_sum=is_sum)) for is_sum in arrays}
        chunks = {is_sum: down_chunks(array.nbytes) for is_sum, array in arrays.items()}
        self._transfers.announce({positions[is_sum]: chunks[is_sum] for is_sum in arrays})
        lacking: dict[str, tuple[bool, int]] = {}
        for site in sorted(sites & self._joined):
            reads = True in arrays and self._peers[site].reads_sums
            is_sum = reads and self._transfers.has_base(site, positions[True])
            lacking[site] = is_sum, self._transfers.queue(site, positions[is_sum], chunks[is_sum])
        for (is_sum, chunk), some in groupby(sorted(lacking, key=lacking.__getitem__), lacking.__getitem__):
            self._send(frozenset(some), replace(message, is_sum=is_sum, first_chunk=chunk))
        for site, (is_sum, chunk) in lacking.items():
            if chunk < chunks[is_sum]:
                send = self._peers[site].send_parameters
                self._outbox.append(partial(send, arrays[is_sum], message.round, attempt, chunk))

    def _hear_held(self, run: Run) -> None:
        """When the round is over, add sites again that sent a whole contribution and then reconnected."""
        for site, join in list(self._held.items()):
            if not (isinstance(run.state, Collecting) and site in run.state.complete):
                self._held.pop(site, None)
                self._join(run, site, join)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OperatorError as failure:
            self._fail(failure)

    def _fail(self, failure: OperatorError) -> None:
        """Stop the program after a failed write to the disk, and make no further decision."""
        self.failure = failure
        self.finished.set()

    def _end(self, run: Run, store: RunStore, over: Over) -> None:
        log = self._log.info if over.is_complete else self._log.error
        log("run_over", run=run.name, complete=over.is_complete, reason=over.reason, missing=sorted(over.missing))
        store.end(over, write_record(self._runs / run.name, run, over, store.history.facts()))
        self.outcomes.append(over)
        self._is_void = over.is_void
        if not over.is_complete:
            why = CoordinatorReason.RUN_VOIDED if over.is_void else CoordinatorReason.RUN_STOPPED
            for peer in list(self._peers.values()):
                peer.end(why, over.reason)
            self._waiting.clear()
        self._next_run()

    def _schedule(self) -> None:
        """Schedule a call at the deadline of the current state, unless it is scheduled already."""
        run = self._run
        deadline = math.inf if run is None or isinstance(run.state, Over) else run.state.deadline
        if deadline == self._scheduled:
            return
        self._scheduled = deadline
        if self._timer:
            self._timer.cancel()
        if deadline < math.inf:
            delay = max(0.0, deadline - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._time_passed)

    def _time_passed(self) -> None:
        self._scheduled = math.inf
        self._happened(TimePassed())


def _has_what_it_needs(run: Run, store: RunStore, site: str, join: Join) -> bool:
    """Return whether a joining site has the state in memory or on disk from which it continues the run.

    A site that has sent its whole contribution continues with the next round.
    """
    state = run.state
    if not isinstance(state, Working):
        return True
    has_sent = isinstance(state, Collecting) and site in state.complete
    return store.is_current(join, state.attempt.round + has_sent)


def _interrupted_state(run: Run, store: RunStore, now: float) -> Finishing | Interrupted:
    """Return the state from which a run with an offered round continues after a restart. No site is connected yet."""
    number = max(store.history.past)
    session, nobody = store.history.key_session, frozenset[str]()
    attempt = Attempt(round=number, number=store.history.past[number], present=nobody, key_session=session)
    if store.is_at_result():
        made, deadline = replace(attempt, round=run.rounds_made, number=0), now + run.terms.result_seconds
        return Finishing(attempt=made, done=frozenset(store.history.done), deadline=deadline)
    return Interrupted(attempt=attempt, returns=True)


def _go_back(run: Run, store: RunStore, joined: Collection[str]) -> WentBack | None:
    """As soon as all sites are connected, return to the newest round that coordinator and sites have on disk."""
    if (number := store.find_return(joined)) is None:
        return None
    attempt = store.go_back(number)
    repeated = {later: last for later, last in store.history.past.items() if later > number}
    run.terms = replace(run.terms, past=repeated)
    structlog.get_logger().warning("run_went_back", run=run.name, round=number + 1)
    return WentBack(number, attempt)
