"""One run at one site: what the coordinator asks for, checked, and what is done about it.

Rounds and attempts only increase; a step that comes again is the same step, byte for byte; the
contributors have to be the plan's, enough, and this site among them. Whatever breaks a rule is a
MalformedMessage or a MaskingRefused, and the caller stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from protos.manifest import Manifest
from protos.messages import (
    Bind,
    Chunk,
    Done,
    EpochAcknowledgement,
    EpochOpen,
    EpochRoster,
    EpochSeal,
    Finish,
    KeyAdvert,
    MalformedMessage,
    Offer,
    Ready,
)
from protos.parameters import position
from protos.plan import Plan
from site_agent.boundary.audit import AuditLog
from site_agent.boundary.download import Download
from site_agent.boundary.gate import Contribution, Gate
from site_agent.boundary.masking import SiteMasking
from site_agent.hatch import Agreed, Conclude, Train, Trained
from site_agent.hatch import Message as HatchMessage

Outgoing: TypeAlias = Ready | Chunk | Done | KeyAdvert | EpochAcknowledgement
RoundMessage: TypeAlias = Offer | Chunk | Bind | Finish | EpochOpen | EpochRoster | EpochSeal


@dataclass(frozen=True)
class Built:
    """The gate has built a contribution."""

    contribution: Contribution


@dataclass(frozen=True)
class Concluded:
    """The trainer has taken in the last aggregate."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run needs of its agent.

    Attributes:
        send: to the coordinator; does nothing while there is no stream, since the next offer asks again.
        ask: the trainer, one question at a time.
        spawn: run beside the loop; its failures reach the loop.
        deliver: put what has become ready into the loop's inbox.
    """

    send: Callable[[Outgoing], Awaitable[None]]
    ask: Callable[[Train | Conclude], Awaitable[HatchMessage]]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    deliver: Callable[[Built | Concluded], Awaitable[None]]


class Rounds:
    """The rounds of one run at this site."""

    def __init__(
        self,
        *,
        run: str,
        plan: Plan,
        manifest: Manifest,
        site: str,
        smallest_sites: int,
        audit: AuditLog,
        masking: SiteMasking | None,
        around: Surroundings,
    ) -> None:
        self.run, self.plan, self.manifest = run, plan, manifest
        self._site, self._smallest_sites, self._audit = site, smallest_sites, audit
        self._masking, self._around = masking, around
        self._gate = Gate(run, plan, manifest, audit, masking)
        self._download: Download | None = None
        self._offer: Offer | None = None
        self._bind: Bind | None = None
        self._position = b""  # of what was downloaded whole last
        self._offered = b""  # of what was offered last
        self._vector: npt.NDArray[np.float32] = np.empty(0, np.float32)
        self._asked_redraw = 0
        self._contribution: Contribution | None = None
        self._highest = (0, -1)
        released = (facts["round"] for facts in audit.records("contribution_released") if facts["run"] == run)
        self._released_before = max(released, default=-1)
        self._is_concluded = False
        self._upload: asyncio.Task[None] | None = None
        self._upload_number = 0
        self._log = structlog.get_logger()

    @property
    def epoch(self) -> int:
        """The epoch whose masking keys this site holds, 0 for none."""
        return self._masking.epoch if self._masking else 0

    def end(self) -> None:
        """Another run takes over: this one's keys are forgotten."""
        self._stop_upload()
        if self._masking is not None:
            self._masking.forget()

    def stream_ended(self) -> None:
        """What belonged to the stream ends with it; what was trained and built stays."""
        self._stop_upload()
        self._download, self._offer, self._bind = None, None, None

    async def handle(self, message: RoundMessage) -> None:
        """Do what a message asks.

        Raises:
            MalformedMessage: an honest coordinator would not ask this.
            MaskingRefused: this site does not mask for this.
        """
        match message:
            case Offer() | Finish():
                await self._begin_download(message)
            case Chunk():
                await self._take_chunk(message)
            case Bind():
                self._accept_bind(message)
                await self._contribute(message)
            case EpochOpen():
                self._check_epoch_sites(message)
                await self._around.send(self._masked().open(message))
            case EpochRoster():
                await self._around.send(self._masked().check(message))
            case EpochSeal():
                self._masked().seal(message)
                sites = [entry.site for entry in message.acknowledgements]
                self._audit.write("epoch_agreed", run=self.run, epoch=message.epoch, sites=sites)

    async def built(self, contribution: Contribution) -> None:
        """The gate has let a contribution through; send it, or say that it is ready."""
        if (contribution.position, contribution.redraw) != (self._position, self._asked_redraw):
            return  # a draw that was asked for before the contributors changed
        self._contribution = contribution
        if self._bind is not None:
            await self._contribute(self._bind)
        elif self._offer is not None:
            await self._around.send(Ready(self._offer.round, self._offer.attempt))

    async def concluded(self) -> None:
        """The trainer has taken in the last aggregate."""
        self._is_concluded = True
        self._audit.write("run_finished", run=self.run, rounds=self.plan.schedule.rounds)
        self._log.info("run_finished", run=self.run)
        await self._around.send(Done(self.run))

    async def _begin_download(self, message: Offer | Finish) -> None:
        if isinstance(message, Offer):
            self._accept_offer(message)
        elif message.round != self.plan.schedule.rounds or self._last_round() != message.round - 1:
            raise MalformedMessage("a result before the last round")
        self._download = Download(message, self.manifest.parameters)
        await self._end_download(self._download)

    async def _take_chunk(self, chunk: Chunk) -> None:
        if self._download is None:
            raise MalformedMessage("a chunk that was not announced")
        self._download.add(chunk)
        await self._end_download(self._download)

    async def _end_download(self, download: Download) -> None:
        if not download.is_complete:
            return
        download.check()
        self._download = None
        message = download.announced
        if isinstance(message, Finish):
            await self._take_result(message, download.vector)
            return
        here = position(self.run, message.round, message.parameters_digest)
        if here != self._position:
            self._position, self._contribution = here, None
            self._train(message.round, 0, download.vector)
        elif self._contribution is not None:
            self._vector = download.vector
            await self._around.send(Ready(message.round, message.attempt))

    def _last_round(self) -> int:
        """The newest round that was offered to this process, or left this site before it was started."""
        return max(self._highest[0] if self._offered else -1, self._released_before)

    def _accept_offer(self, offer: Offer) -> None:
        at = (offer.round, offer.attempt)
        if at < self._highest or offer.round >= self.plan.schedule.rounds:
            raise MalformedMessage("a round that is over, or that the plan does not have")
        here = position(self.run, offer.round, offer.parameters_digest)
        if self._offered and offer.round == self._highest[0] and here != self._offered:
            raise MalformedMessage("other parameters for the same step")
        if self._masking is not None and self._masking.epoch == 0:
            raise MalformedMessage("a round before the sites agreed on masking keys")
        self._stop_upload()
        self._highest, self._offered, self._offer, self._bind = at, here, offer, None

    def _accept_bind(self, bind: Bind) -> None:
        offer = self._offer
        if offer is None or (bind.round, bind.attempt) != (offer.round, offer.attempt) or self._download is not None:
            raise MalformedMessage("contributors for a round that was not offered")
        if self._bind is not None and self._bind.sites != bind.sites:
            raise MalformedMessage("two sets of contributors for one attempt")
        enough = max(self.plan.quorum, self._smallest_sites)
        if self._site not in bind.sites or not self._are_listed(bind.sites) or len(bind.sites) < enough:
            raise MalformedMessage("contributors that the plan or the policy does not allow")
        self._bind = bind

    def _check_epoch_sites(self, message: EpochOpen) -> None:
        if not self._are_listed(message.sites):
            raise MalformedMessage("an epoch with sites that the plan does not list")
        self._stop_upload()
        self._bind = None

    def _are_listed(self, sites: tuple[str, ...]) -> bool:
        return set(sites) <= set(self.plan.site_names)

    async def _contribute(self, bind: Bind) -> None:
        """Send what is built for these contributors, or have it trained."""
        if self._masking is not None:
            self._masking.check_draw(self._position, bind)
        redraw = bind.redraw
        if self._contribution is not None and self._contribution.redraw == redraw:
            self._stop_upload()
            self._upload = self._around.spawn(self._send_chunks(self._contribution, bind, self._upload_number))
        elif redraw != self._asked_redraw:
            self._contribution = None
            self._audit.write("step_drawn_afresh", run=self.run, round=bind.round, attempt=bind.attempt)
            self._train(bind.round, redraw, self._vector)

    def _train(self, number: int, redraw: int, vector: npt.NDArray[np.float32]) -> None:
        self._vector, self._asked_redraw = vector, redraw
        self._around.spawn(self._train_and_build(number, redraw, self._position, vector))

    async def _train_and_build(self, number: int, redraw: int, here: bytes, vector: npt.NDArray[np.float32]) -> None:
        answer = await self._around.ask(Train(number, redraw, vector.view(np.uint8).data))
        if not isinstance(answer, Trained) or answer.round != number:
            raise MalformedMessage("something else from the trainer than what was asked")
        contribution = self._gate.build(here, memoryview(answer.payload), rows=answer.rows, redraw=redraw)
        await self._around.deliver(Built(contribution))

    def _stop_upload(self) -> None:
        """Let nothing more of an upload leave, not even one that has not begun.

        It is not cancelled: gRPC takes a write that is cancelled midway for the end of the stream.
        """
        self._upload_number += 1

    async def _send_chunks(self, contribution: Contribution, bind: Bind, upload_number: int) -> None:
        if upload_number != self._upload_number:
            return  # nothing is frozen and logged either
        for chunk in self._gate.release(contribution, bind):
            await self._around.send(chunk)
            if upload_number != self._upload_number:
                return
        self._log.info("contribution_released", round=bind.round, attempt=bind.attempt, bytes=len(contribution.buffer))

    async def _take_result(self, message: Finish, vector: npt.NDArray[np.float32]) -> None:
        if self._is_concluded:
            await self._around.send(Done(self.run))
        else:
            self._around.spawn(self._conclude(message.round, vector))

    async def _conclude(self, number: int, vector: npt.NDArray[np.float32]) -> None:
        answer = await self._around.ask(Conclude(number, vector.view(np.uint8).data))
        if not isinstance(answer, Agreed):
            raise MalformedMessage("something else from the trainer than what was asked")
        await self._around.deliver(Concluded())

    def _masked(self) -> SiteMasking:
        if self._masking is None:
            raise MalformedMessage("masking keys that the plan does not ask for")
        return self._masking
