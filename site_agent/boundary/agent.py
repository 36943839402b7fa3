"""The loop of the process that has the network: receive, hatch, gate, send.

It never sees a patient. Messages and the trainer's answers arrive in one inbox and are handled one at
a time; training goes on while a stream is down, and what was built for a step is kept for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import structlog

from protos.errors import OperatorError, ProtocolError, RefusedError, UnavailableError
from protos.manifest import manifest_of
from protos.messages import (
    PROTOCOL_VERSION,
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    EpochOpen,
    EpochRoster,
    EpochSeal,
    Farewell,
    Finish,
    Hello,
    Join,
    MalformedMessage,
    Offer,
    Ready,
    Refusal,
    SiteReason,
)
from protos.parameters import position
from protos.plan import Plan, plan_from_wire
from site_agent.approval import find_approval, keep_plan
from site_agent.boundary.audit import AuditLog
from site_agent.boundary.connection import Connection
from site_agent.boundary.gate import Contribution, Gate, GateRefusal
from site_agent.boundary.policy import refuse_plan
from site_agent.boundary.work import Download, RunWork
from site_agent.config import Hospital
from site_agent.hatch import AgentEnd, Agreed, Conclude, Failed, Prepare, Prepared, Train, Trained
from site_agent.hatch import Message as HatchMessage

APPROVAL_POLL_SECONDS: Final = 1.0
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 30.0


class TrainerFailed(OperatorError):
    """The trainer stopped with a reason of its own, which it has printed itself."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(
            what="The trainer of this site stopped; its own message says why.",
            consequence="Nothing of this round left this site.",
            remedy="Follow the trainer's message, then start the site agent again.",
        )
        self.failed = failed


@dataclass(frozen=True)
class _Built:
    contribution: Contribution


@dataclass(frozen=True)
class _Concluded:
    pass


_Item: TypeAlias = CoordinatorMessage | _Built | _Concluded | BaseException


class Agent:
    """One site's part in all runs of a coordinator."""

    def __init__(
        self,
        hospital: Hospital,
        *,
        identity: str,
        trainer: AgentEnd,
        audit: AuditLog,
        connect: Callable[[], Connection],
        software: str,
    ) -> None:
        """`identity` is the fingerprint of the site's identity key; `connect` opens a stream."""
        self._hospital, self._identity, self._trainer, self._audit = hospital, identity, trainer, audit
        self._connect, self._software = connect, software
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue(16)
        self._connection: Connection | None = None
        self._work: RunWork | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._upload: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Take part until the coordinator says that everything is over.

        Raises:
            OperatorError: this site cannot or must not go on.
        """
        failures = 0
        try:
            while True:
                try:
                    async with self._connect() as connection:
                        if await self._converse(connection):
                            return
                    failures = 0
                except UnavailableError as gone:
                    if self._connection is None:
                        failures += 1
                    else:
                        failures, self._connection = 1, None
                    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0**failures) * random.uniform(0.5, 1.0)  # noqa: S311  # spreads reconnections, guards nothing
                    self._log.warning("coordinator_unavailable", what=gone.what, retry_in_seconds=round(wait, 1))
                    await asyncio.sleep(wait)
        finally:
            for task in self._tasks:
                task.cancel()
            self._trainer.close()

    async def _converse(self, connection: Connection) -> bool:
        """One stream from greeting to end; whether everything is over."""
        await connection.send(Hello(PROTOCOL_VERSION, self._software))
        reader = self._spawn(self._read(connection))
        try:
            while True:
                item = await self._inbox.get()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Farewell):
                    return self._part(item)
                if not isinstance(item, _Built | _Concluded):
                    self._connection = connection
                await self._handle(item)
        except MalformedMessage as malformed:
            raise await self._complain(malformed) from malformed
        except GateRefusal as refusal:
            await self._refuse(refusal.reason, refusal.tensor)
            raise
        except TrainerFailed as stopped:
            await self._refuse(SiteReason(stopped.failed.reason), stopped.failed.tensor)
            raise
        finally:
            reader.cancel()
            if self._upload is not None:
                self._upload.cancel()
            self._forget_messages()

    def _forget_messages(self) -> None:
        """A new stream begins anew; what the trainer answered is not the stream's and stays."""
        kept = []
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            of_stream = isinstance(item, UnavailableError | MalformedMessage)
            if isinstance(item, _Built | _Concluded | BaseException) and not of_stream:
                kept.append(item)
        for item in kept:
            self._inbox.put_nowait(item)

    async def _read(self, connection: Connection) -> None:
        while True:
            await self._inbox.put(await connection.receive())

    async def _handle(self, item: CoordinatorMessage | _Built | _Concluded) -> None:
        match item:
            case Announcement():
                await self._announced(item)
            case Offer() | Finish():
                await self._begin_download(item)
            case Chunk():
                await self._take_chunk(item)
            case Bind():
                work = self._running()
                smallest = self._hospital.policy.smallest_sites
                work.accept_bind(item, site=self._hospital.site, smallest_sites=smallest)
                if self._is_built(work):
                    self._start_upload(work)
            case _Built(contribution=contribution):
                await self._built(self._running(), contribution)
            case _Concluded():
                self._running().is_concluded = True
                await self._say_done(self._running())
            case EpochOpen() | EpochRoster() | EpochSeal():
                raise MalformedMessage("masking keys that the plan does not ask for")
            case Farewell():
                raise AssertionError("handled before")
            case _:
                assert_never(item)

    async def _announced(self, message: Announcement) -> None:
        plan = plan_from_wire(message.plan)
        if self._work is None or self._work.run != message.run or self._work.plan != plan:
            self._work = await self._prepare(message.run, plan)
        await self._send(Join(message.run, plan.digest, self._work.manifest.digest, epoch=0))

    async def _prepare(self, run: str, plan: Plan) -> RunWork:
        manifest = manifest_of(plan)
        refusal = refuse_plan(self._hospital.policy, plan, manifest, site=self._hospital.site, identity=self._identity)
        facts = {"run": run, "plan": plan.digest.hex(), "manifest": manifest.digest.hex()}
        if refusal is not None:
            self._audit.write("plan_refused", reason=refusal, **facts)
            await self._send(Refusal(run, SiteReason.POLICY_FORBIDS))
            raise RefusedError(
                what=f"This site's policy refuses the study {plan.study}: {refusal}.",
                consequence="Nothing left this site.",
                remedy="Agree with the researcher on another plan, or change the policy in hospital.yaml.",
            )
        await self._await_approval(plan)
        self._trainer.largest_payload = 4 * manifest.parameters
        answer = await self._ask(Prepare(run, plan.canonical))
        if not isinstance(answer, Prepared) or answer.manifest_digest != manifest.digest.hex():
            await self._send(Refusal(run, SiteReason.NETWORK_DIFFERS))
            raise ProtocolError(
                what="This site's network has other federated tensors than the plan names.",
                consequence="Nothing left this site.",
                remedy="Install the same version of global-layers everywhere.",
            )
        self._audit.write("run_joined", rounds=plan.schedule.rounds, method=plan.method.name, **facts)
        self._log.info("run_joined", run=run, method=plan.method.name, rounds=plan.schedule.rounds)
        return RunWork(run, plan, manifest, Gate(run, plan, manifest, self._audit))

    async def _await_approval(self, plan: Plan) -> None:
        """Nothing trains until a person here has approved exactly this plan."""
        state = self._hospital.state_path
        keep_plan(state, plan)
        has_told = False
        while find_approval(state, plan) is None:
            if not has_told:
                self._log.warning("approval_awaited", study=plan.study, plan=plan.digest.hex())
                has_told = True
            await asyncio.sleep(APPROVAL_POLL_SECONDS)

    async def _begin_download(self, message: Offer | Finish) -> None:
        work = self._running()
        if isinstance(message, Offer):
            work.accept_offer(message)
        elif message.round != work.plan.schedule.rounds:
            raise MalformedMessage("a result before the last round")
        work.download = Download(message, work.manifest.parameters)
        if work.download.is_complete:
            await self._downloaded(work, work.download)

    async def _take_chunk(self, chunk: Chunk) -> None:
        work = self._running()
        if work.download is None:
            raise MalformedMessage("a chunk that was not announced")
        work.download.add(chunk)
        if work.download.is_complete:
            await self._downloaded(work, work.download)

    async def _downloaded(self, work: RunWork, download: Download) -> None:
        download.check()
        work.download = None
        message, vector = download.announced, download.vector
        if isinstance(message, Finish):
            self._spawn(self._say_done(work) if work.is_concluded else self._conclude(message.round, vector))
            return
        here = position(work.run, message.round, message.parameters_digest)
        if here != work.position:
            work.position, work.contribution = here, None
            self._spawn(self._train(work, message.round, here, vector))
        elif self._is_built(work):
            await self._send(Ready(message.round, message.attempt))

    async def _train(self, work: RunWork, number: int, here: bytes, vector: npt.NDArray[np.float32]) -> None:
        answer = await self._ask(Train(number, vector.view(np.uint8).data))
        if not isinstance(answer, Trained) or answer.round != number:
            raise MalformedMessage("the trainer answered something else")
        contribution = work.gate.build(here, memoryview(answer.payload), answer.rows)
        await self._inbox.put(_Built(contribution))

    async def _conclude(self, number: int, vector: npt.NDArray[np.float32]) -> None:
        answer = await self._ask(Conclude(number, vector.view(np.uint8).data))
        if not isinstance(answer, Agreed):
            raise MalformedMessage("the trainer answered something else")
        await self._inbox.put(_Concluded())

    async def _built(self, work: RunWork, contribution: Contribution) -> None:
        work.contribution = contribution
        if work.bind is not None:
            self._start_upload(work)
        elif work.offer is not None:
            await self._send(Ready(work.offer.round, work.offer.attempt))

    @staticmethod
    def _is_built(work: RunWork) -> bool:
        return work.contribution is not None and work.contribution.position == work.position

    def _start_upload(self, work: RunWork) -> None:
        if self._upload is not None:
            self._upload.cancel()
        assert work.contribution is not None and work.bind is not None
        self._upload = self._spawn(self._send_chunks(work.gate, work.contribution, work.bind))

    async def _send_chunks(self, gate: Gate, contribution: Contribution, bind: Bind) -> None:
        for chunk in gate.release(contribution, bind):
            await self._send(chunk)
        self._log.info("contribution_released", round=bind.round, attempt=bind.attempt, bytes=len(contribution.buffer))

    async def _say_done(self, work: RunWork) -> None:
        self._audit.write("run_finished", run=work.run, rounds=work.plan.schedule.rounds)
        self._log.info("run_finished", run=work.run)
        await self._send(Done(work.run))

    async def _ask(self, message: Prepare | Train | Conclude) -> HatchMessage:
        answer = await self._trainer.ask(message)
        if isinstance(answer, Failed):
            raise TrainerFailed(answer)
        return answer

    async def _send(self, message: Join | Ready | Chunk | Done | Refusal) -> None:
        if self._connection is not None:  # without one the next offer asks again
            await self._connection.send(message)

    async def _refuse(self, reason: SiteReason, tensor: str) -> None:
        work = self._work
        self._audit.write(
            "participation_ended", run=work.run if work else "", reason=reason.name.lower(), tensor=tensor
        )
        if work is not None:
            await self._send(Refusal(work.run, reason, tensor))

    async def _complain(self, malformed: MalformedMessage) -> ProtocolError:
        self._audit.write("coordinator_refused", reason=str(malformed))
        if self._work is not None:
            await self._send(Refusal(self._work.run, SiteReason.COORDINATOR_MISBEHAVED))
        return ProtocolError(
            what=f"The coordinator sent {malformed}.",
            consequence="This site has stopped; nothing was sent in answer.",
            remedy="Tell the federation office; start again when they have found the cause.",
        )

    def _part(self, farewell: Farewell) -> bool:
        """Whether a farewell ends everything well; raises where a person has to act."""
        self._log.info("coordinator_parted", reason=farewell.reason.name, detail=farewell.detail)
        if farewell.reason is CoordinatorReason.ALL_RUNS_OVER:
            return True
        if farewell.reason.is_final:
            raise RefusedError(
                what=f"The coordinator ended this site's part: {farewell.detail}.",
                consequence="Nothing more leaves this site.",
                remedy="Ask the federation office, then start the site agent again.",
            )
        raise UnavailableError(
            what=f"The coordinator asks to connect again: {farewell.detail}.",
            consequence="Nothing is lost.",
            remedy="Nothing has to be done.",
        )

    def _running(self) -> RunWork:
        if self._work is None:
            raise MalformedMessage("a round before a run was announced")
        return self._work

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run beside the loop; what goes wrong is put into the inbox, never lost."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as failure:
                await self._inbox.put(failure)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
