"""Carries out one run at this site: checks each request of the coordinator, then does what it requests.

itinerary.py decides what a round may request. A message that breaks a rule is a MalformedMessage or a MaskingRefused,
and the caller stops.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import structlog
from blake3 import blake3

from host.audit_log import AuditLog
from protos.plan.exchange import Exchange, Float32
from protos.plan.manifest import Manifest
from protos.plan.plan import Plan
from protos.plan.short_wire import Received, parameters_after, sum_bytes, sum_goes_down
from protos.wire.messages import (
    MOST_SAVED,
    Bind,
    Chunk,
    Done,
    Finish,
    KeyAdvert,
    KeySessionAcknowledgement,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
    MalformedMessage,
    Offer,
    SiteReason,
)
from protos.wire.positions import down_chunks, down_slice, parameters_digest, position, received_position
from site_agent.framed_messages import kept_memory, memory_for
from site_agent.gate.consent import Consent
from site_agent.gate.door import Contribution, Gate, payload_bytes, unexpected_answer
from site_agent.gate.itinerary import Itinerary
from site_agent.gate.site_masking import SiteMasking
from site_agent.hospital import Policy
from site_agent.trainer_socket import Agreed, Conclude, Prepare, Train, Trained
from site_agent.trainer_socket import Message as TrainerMessage

Outgoing: TypeAlias = Chunk | Done | KeyAdvert | KeySessionAcknowledgement
RoundMessage: TypeAlias = Offer | Chunk | Bind | Finish | KeySessionOpen | KeySessionRoster | KeySessionSeal


@dataclass(frozen=True)
class Built:
    """A notice that the gate process has built a contribution."""

    contribution: Contribution


@dataclass(frozen=True)
class Concluded:
    """A notice that a run has ended here: the trainer has loaded its result, and the end is recorded.

    Another run may have begun since.
    """

    run: str


class Sending(Protocol):
    """Sends a message to the coordinator. It calls `check` after any wait, directly before it sends."""

    async def __call__(self, message: Outgoing, check: Callable[[], None] | None = None) -> None:
        """Send one message."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The functions of the gate process's loop that a run needs.

    Attributes:
        send: sends a message to the coordinator; does nothing without a stream, because the next offer repeats the
            request.
        ask: sends the trainer one request at a time, with the largest number of bytes of its answer.
        spawn: runs a task of this run beside the loop; its failure reaches the loop together with the run's name.
        deliver: puts a notice into the loop's inbox.
    """

    send: Sending
    ask: Callable[[Prepare | Train | Conclude, int], Awaitable[TrainerMessage]]
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    deliver: Callable[[Built | Concluded], Awaitable[None]]


class Download:
    """Parameters that the coordinator has announced, or the sum that leads to them.

    Memory is reserved for the numbers of such a round under the approved plan, whatever is announced. A download that
    a broken stream interrupted continues if the same parameters are announced for the same purpose.

    Attributes:
        position: see received_position.
        arrived: the number of its chunks that have arrived.
        content: uint8 of shape (size,).
    """

    def __init__(self, announced: Offer | Finish, position: bytes, size: int) -> None:
        self.announced, self.position, self.arrived = announced, position, 0
        self.content = np.frombuffer(memory_for(size), np.uint8)
        self._hash = blake3()

    @property
    def is_complete(self) -> bool:
        """Return whether all chunks of the announced parameters have arrived."""
        return self.arrived == down_chunks(self.content.size)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of parameters. Raises MalformedMessage: the chunk is not the next, or has a wrong size."""
        attempt = self.announced.attempt if isinstance(self.announced, Offer) else 0
        wanted = (self.announced.round, attempt, self.arrived)
        if (chunk.round, chunk.attempt, chunk.index) != wanted or self.is_complete:
            raise MalformedMessage("a chunk out of order")
        part = self.content[down_slice(chunk.index)]
        if len(chunk.body) != part.size:
            raise MalformedMessage("a chunk of the wrong size")
        part[...] = np.frombuffer(chunk.body, np.uint8)
        if not self.announced.is_sum:
            self._hash.update(chunk.body)
        self.arrived += 1

    def parameters(self) -> Float32:
        """Return the complete parameters. Raises MalformedMessage if they do not have the announced digest."""
        if self._hash.digest() != self.announced.parameters_digest:
            raise MalformedMessage("parameters that are not what was announced")
        return self.content.view("<f4")


class Rounds:
    """Carries out the rounds of one run at this site."""

    def __init__(
        self,
        *,
        plan: Plan,
        manifest: Manifest,
        site: str,
        policy: Policy,
        consent: Consent,
        audit: AuditLog,
        masking: SiteMasking | None,
        around: Surroundings,
        saved: tuple[int, ...],
    ) -> None:
        """Start the run, or continue after the contributions that the audit log has.

        `consent` has the decisions of persons here; `saved` are the states on the trainer's disk.
        """
        self.run, self.plan, self.manifest, self.consent = plan.run_name, plan, manifest, consent
        self._site, self._audit, self._masking, self._around = site, audit, masking, around
        released = audit.records("contribution_released", run=self.run)
        # From the first void of a run on, this site sends only voids. An earlier step is repeated with its numbers.
        voids = ((facts["round"], SiteReason[facts["void"].upper()]) for facts in released if facts["void"] != "no")
        self.void: tuple[int, SiteReason] | None = min(voids, default=None)
        # A site that only receives has no gate object, so nothing in this process can build a contribution.
        door = partial(Gate, plan, manifest, site=site, policy=policy, audit=audit, masking=masking)
        self._gate = None if self._receives else door(consent=consent)
        self._download: Download | None = None
        self._interrupted: Download | None = None  # of an earlier stream
        self._received = (b"", 0)  # the position of the newest complete download, and the number of its chunks
        self._base: Received | None = None  # the parameters of the newest round, if a sum can follow
        self._offer: Offer | None = None
        self._bind: Bind | None = None
        self._conclusion: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None  # of the newest offer
        self.is_concluded, self._result_sha256 = False, ""
        self._position = b""  # of the newest complete download
        self._trains, self._log = asyncio.Lock(), structlog.get_logger()
        self._contribution: Contribution | None = None
        self._itinerary = Itinerary(plan, manifest, released, only_receives=self._receives)
        self._saved, self.next_round = set(saved), None if saved else 0
        self._upload: asyncio.Task[None] | None = None
        self._training: Callable[[], Awaitable[None]] | None = None  # the newest one, not sent to the trainer yet

    @property
    def key_session(self) -> int:
        """Return the number of the key session in which this site agreed on its masking keys, or 0 without keys."""
        return self._masking.key_session if self._masking else 0

    @property
    def _receives(self) -> bool:
        return self.plan.tier_of(self._site) == "receiving"

    @property
    def received(self) -> tuple[bytes, int]:
        """Return the position of the newest parameters that this site was sent, and how many chunks it has of them."""
        newest = self._download or self._interrupted
        return (newest.position, newest.arrived) if newest else self._received

    @property
    def saved(self) -> tuple[int, ...]:
        """Return the rounds whose training states are on the trainer's disk, or only the newest if there are many."""
        return tuple(sorted(self._saved)[-MOST_SAVED:])

    def end(self) -> None:
        """Delete the masking keys of this run, because another run starts."""
        self._stop_upload()
        self._training = None
        if self._masking is not None:
            self._masking.forget()

    def stream_ended(self) -> None:
        """Delete the data about the closed stream. Chunks, finished training and contributions remain."""
        self._stop_upload()
        self._interrupted = self._download or self._interrupted
        self._download, self._offer, self._bind = None, None, None

    def is_repetition(self, message: RoundMessage) -> bool:
        """Return whether a message repeats a part of the run, so that the number of rounds does not limit it."""
        if isinstance(message, Offer):
            return self._itinerary.has(message.round)
        return isinstance(message, Finish | KeySessionOpen)

    async def handle(self, message: RoundMessage) -> None:
        """Do what a message of the coordinator requests.

        Raises:
            MalformedMessage: an honest coordinator would not request this.
            MaskingRefused: this site does not mask for this request.
        """
        if self._receives and not isinstance(message, Finish | Chunk):
            raise MalformedMessage("a round or key for a site that only receives")
        match message:
            case Offer() | Finish():
                await self._begin_download(message)
            case Chunk():
                await self._take_chunk(message)
            case Bind():
                self._accept_bind(message)
                self._contribute(message)
            case KeySessionOpen():
                self._check_key_session_sites(message)
                await self._around.send(self._masked().open(message))
            case KeySessionRoster():
                await self._around.send(self._masked().check(message))
            case KeySessionSeal():
                self._masked().seal(message)
                sites = [entry.site for entry in message.acknowledgements]
                self._audit.write("key_session_agreed", run=self.run, key_session=message.key_session, sites=sites)

    async def built(self, contribution: Contribution) -> None:
        """Send a contribution that the gate has built, unless the step has one. Two could have different noise."""
        if contribution.position != self._position or self._contribution is not None:
            return  # of an earlier run or round
        self._contribution = contribution
        if self._bind is not None:
            self._contribute(self._bind)

    def concluded(self, rounds: int) -> None:
        """Record that the trainer has loaded the final shared parameters of the run."""
        self.is_concluded = True
        kept_memory.clear()
        with self._audit.store.transaction():
            self._audit.write("run_finished", run=self.run, rounds=rounds, parameters_sha256=self._result_sha256)
            if self._gate is not None:
                self._gate.finish()
        self._log.info("run_finished", run=self.run)

    async def _begin_download(self, message: Offer | Finish) -> None:
        if isinstance(message, Offer):
            exchange = self._accept_offer(message)
            size = 4 * exchange.down_numbers
        else:
            size = 4 * sum(tensor.number_count for tensor in self._itinerary.accept_result(message))
            self._offer, self._bind = None, None  # no round is open any more
        here, begun = received_position(self.run, message), self.received
        if message.first_chunk and begun != (here, message.first_chunk):
            raise MalformedMessage("parameters behind chunks that this site has not received")
        newest = self._download or self._interrupted
        self._download = self._interrupted = None
        if message.first_chunk and newest is None:
            await self._apply(message, None)
            return
        if message.is_sum:
            size = sum_bytes(self._before(message).exchange)
        self._download = newest if message.first_chunk and newest else Download(message, here, size)
        self._download.announced = message
        await self._end_download(self._download)

    async def _take_chunk(self, chunk: Chunk) -> None:
        if self._download is None:
            raise MalformedMessage("a chunk that was not announced")
        self._download.add(chunk)
        await self._end_download(self._download)

    async def _end_download(self, download: Download) -> None:
        if not download.is_complete:
            return
        message = download.announced
        vector = self._computed(download) if message.is_sum else download.parameters()
        self._download, self._received, self._base = None, (download.position, download.arrived), None
        if isinstance(message, Offer) and self._exchange is not None and sum_goes_down(self.plan, self._exchange):
            self._base = Received(message.round, self._exchange, message.scales, vector)
        await self._apply(message, vector)

    def _before(self, message: Offer | Finish) -> Received:
        # Before the contribution is built, the trainer may not have read these parameters yet.
        if self._base is None or self._base.round != message.round - 1 or self._contribution is None:
            raise MalformedMessage("a sum after parameters that this site does not have")
        return self._base

    def _computed(self, download: Download) -> Float32:
        message, before = download.announced, self._before(download.announced)
        self._base, self._received = None, (b"", 0)  # its values change
        vector = parameters_after(self.plan, self.manifest, before, download.content, message.summed_rows)
        if parameters_digest(vector) != message.parameters_digest:
            raise MalformedMessage("a sum from which other parameters follow than were announced")
        return vector

    async def _apply(self, message: Offer | Finish, vector: Float32 | None) -> None:
        """Begin what the complete parameters are for. Without a vector this has begun on an earlier stream."""
        if isinstance(message, Finish):
            await self._take_result(message, vector)
        elif (here := position(self.run, message)) != self._position:
            if vector is None:
                raise MalformedMessage("a round whose parameters this site has no more")
            self._position, self._contribution = here, None
            self._train(message, vector)
            await asyncio.sleep(0)  # so the trainer begins before the gate handles the contributors

    def _accept_offer(self, offer: Offer) -> Exchange:
        before = self._itinerary.newest
        exchange = self._itinerary.accept(offer)
        if self._masking is not None and self._masking.key_session == 0:
            raise MalformedMessage("a round before the sites agreed on masking keys")
        if before is not None and offer.round < before:
            self._audit.write("run_went_back", run=self.run, round=offer.round, attempt=offer.attempt, before=before)
        self._stop_upload()
        self._offer, self._exchange, self._bind = offer, exchange, None
        return exchange

    def _accept_bind(self, bind: Bind) -> None:
        offer = self._offer
        if offer is None or (bind.round, bind.attempt) != (offer.round, offer.attempt) or self._download is not None:
            raise MalformedMessage("contributors for a round that was not offered")
        if self._bind is not None:  # a coordinator names them once after each offer
            raise MalformedMessage("the contributors a second time for one attempt at a round")
        if not self._are_the_plans(bind.sites):
            raise MalformedMessage("other contributors than the sites of the plan")
        self._bind = bind

    def _check_key_session_sites(self, message: KeySessionOpen) -> None:
        if not self._are_the_plans(message.sites):
            raise MalformedMessage("a key session of other sites than those of the plan")
        self._stop_upload()
        self._bind = None

    def _are_the_plans(self, sites: tuple[str, ...]) -> bool:
        return sites == self.plan.site_names

    def _contribute(self, bind: Bind) -> None:
        if self._contribution is not None and self._offer is not None:
            self._stop_upload()
            work = self._send_chunks(self._contribution, bind, self._offer.scales)
            self._upload = self._around.spawn(work, self.run)

    def _train(self, offer: Offer, vector: Float32) -> None:
        assert self._exchange is not None
        best = -1 if offer.best_round is None else offer.best_round
        payload = self._with_own_sums(vector, self._position)
        layers, saves = offer.layers.hex(), offer.saves
        question = Train(offer.round, int(offer.stage), layers, best, payload, saves, offer.oldest, offer.scales.hex())
        if self.next_round in (None, 0) and not self._saved:
            self._saved.add(offer.round)  # the site can always start from the beginning
        self.next_round = offer.round + 1
        # The coordinator decides how often a site trains. So one training waits, and a newer one replaces it.
        self._training = partial(self._train_and_build, question, self._exchange, self._position)
        self._around.spawn(self._train_in_turn(), self.run)

    async def _train_in_turn(self) -> None:
        if self._trains.locked():
            return  # the task that holds the lock continues with the newest training
        async with self._trains:
            while self._training is not None:
                training, self._training = self._training, None
                await training()

    def _with_own_sums(self, vector: Float32, position: bytes | None) -> bytes | memoryview:
        """Return the values for the trainer, followed by the noisy sums of its private layers before this step."""
        received = vector.view(np.uint8).data
        own = self._gate.own_sums(position) if self._gate and self.plan.own_numbers else b""
        return b"".join((received, own)) if own else received

    async def _train_and_build(self, question: Train, exchange: Exchange, here: bytes) -> None:
        answer = await self._around.ask(question, payload_bytes(exchange))
        if not isinstance(answer, Trained) or answer.round != question.round:
            raise unexpected_answer()
        if question.saves:
            self._saved.add(question.round + 1)
        if self._gate is None:
            raise MalformedMessage("a round for a site that only receives")
        void = SiteReason(answer.void) if answer.void else None
        if self.void is not None and self.void[0] <= question.round:
            void = self.void[1]
        rows, memory = answer.rows, answer.memory
        contribution = self._gate.build(here, exchange, memoryview(answer.payload), rows=rows, memory=memory, void=void)
        if contribution.void is not None:
            self.void = min(self.void or (question.round, contribution.void), (question.round, contribution.void))
        await self._around.deliver(Built(contribution))

    def _stop_upload(self) -> None:
        """Stop an upload, even one that has not begun. So at most one chunk waits until the coordinator reads."""
        if self._upload is not None:
            self._upload.cancel()

    async def _send_chunks(self, contribution: Contribution, bind: Bind, scales: bytes) -> None:
        if self._gate is None:
            raise MalformedMessage("a round for a site that only receives")
        still_open = partial(self._gate.require_open, bind)  # a withdrawal can come while the coordinator does not read
        for chunk in self._gate.release(contribution, bind, scales):
            await self._around.send(chunk, check=still_open)
        number = bind.round + 1  # for people the first round is 1
        self._log.info("contribution_released", round=number, attempt=bind.attempt, bytes=len(contribution.buffer))

    async def _take_result(self, message: Finish, vector: Float32 | None) -> None:
        if self.is_concluded:
            await self._around.send(Done(self.run))
        elif vector is not None and (self._conclusion is None or self._conclusion.done()):  # the trainer loads only one
            best = -1 if message.best_round is None else message.best_round
            self._result_sha256 = hashlib.sha256(vector.view(np.uint8).data).hexdigest()
            payload = self._with_own_sums(vector, None)
            self._training = None
            question = Conclude(message.round, message.layers.hex(), best, payload)
            self._conclusion = self._around.spawn(self._conclude(question), self.run)

    async def _conclude(self, question: Conclude) -> None:
        answer = await self._around.ask(question, 0)
        if not isinstance(answer, Agreed):
            raise unexpected_answer()
        self.concluded(question.round)  # at once, before the trainer is prepared for another run
        await self._around.deliver(Concluded(self.run))

    def _masked(self) -> SiteMasking:
        if self._masking is None:
            raise MalformedMessage("masking keys that the plan does not ask for")
        return self._masking
