"""Runs the main loop of the gate process, which passes messages between the coordinator, the trainer and the rounds.

The gate never sees a patient. This file opens no answer of the trainer and no contribution. run_admission.py decides
about runs, and site_rounds.py about rounds. Messages and the trainer's answers arrive in one inbox and are handled one
at a time. Training continues while a stream is down, and a built contribution is kept for its step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from protos.errors import OperatorError, UnavailableError
from protos.masking.masking_refusals import MaskingRefused
from protos.wire.messages import (
    PROTOCOL_VERSION,
    Announcement,
    CoordinatorMessage,
    Done,
    Farewell,
    Hello,
    Join,
    MalformedMessage,
    Refusal,
)
from protos.wire.upkeep_messages import Upkeep
from site_agent.gate.agent_link import PARTING_SECONDS, Stream
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.gate.door import unexpected_answer
from site_agent.gate.mishaps import TrainerFailed, is_over, masks_nothing, misbehaved
from site_agent.gate.permission import GateRefusal
from site_agent.gate.run_admission import Admission
from site_agent.gate.site_rounds import Built, Concluded, Outgoing, Rounds, Surroundings
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.gate.waiting import APPROVAL_POLL_SECONDS, CONSENT_POLL_SECONDS, Repetitions, await_approval, watch
from site_agent.hospital import Hospital
from site_agent.site_standing import Standing
from site_agent.trainer_socket import Conclude, Failed, GateEnd, Prepare, Train
from site_agent.trainer_socket import Message as TrainerMessage

FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 30.0
MOST_DOUBLINGS: Final = 6  # of the first wait; then it is longer than the longest one


@dataclass(frozen=True)
class Failure:
    """A notice that a task beside the loop failed. `run` is the run of the task, or empty for a task of no run."""

    error: BaseException
    run: str


_Item: TypeAlias = CoordinatorMessage | Upkeep | Built | Concluded | Failure
_NOTICES: Final = (Built, Concluded)  # of this program, not messages of the coordinator


class _Replaced(Exception):  # only in this file. No run ends, and nothing is lost
    """Raised when another run was announced while this site waits for the approval of a plan."""


class SiteGate:
    """Takes part in all runs of a coordinator for one site."""

    def __init__(
        self,
        hospital: Hospital,
        *,
        identity_key: Ed25519PrivateKey,
        trainer: GateEnd,
        audit: AuditLog,
        connect: Callable[[], Stream],
        software: str,
        standing: Standing | None = None,
        upkeep: SiteUpkeep | None = None,
    ) -> None:
        """Create the gate's loop.

        `identity_key` is this site's long-term key; `connect` opens a stream. The loop updates `standing` for status
        reports.
        """
        self._standing, self._upkeep = standing or Standing(), upkeep
        self._trainer, self._audit = trainer, audit
        self._connect, self._software = connect, software
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue(16)
        self._unheard: Farewell | None = None  # a farewell that arrived during other work, before the stream ended
        self._connection: Stream | None = None
        self._has_joined = False  # on this stream
        self._repetitions = Repetitions(lambda: asyncio.get_running_loop().time())
        self._rounds: Rounds | None = None
        self._run = ""  # the announced one
        self._newest_run = ""  # the last announced on this stream. Its announcement may still be in the inbox
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()
        around = Surroundings(send=self._send, ask=self._ask, spawn=self._spawn, deliver=self._inbox.put)
        self._admission = Admission(
            hospital,
            identity_key=identity_key,
            audit=audit,
            around=around,
            tell=self._tell,
            wait=self._await_approval,
            began=self._standing.began_run,
        )

    async def run(self) -> None:
        """Take part in runs until the coordinator reports that all runs are over.

        Raises:
            TrainerGone: the trainer has ended. A restart of this process continues the run from the trainer's disk.
            OperatorError: this site cannot or must not continue.
        """
        failures, wait, told = 0, 0.0, ""
        try:
            while True:
                try:
                    await asyncio.sleep(wait)
                    async with self._connect() as connection:
                        if await self._converse(connection):
                            return
                    failures, wait = 0, 0.0
                except UnavailableError as gone:
                    if (said := self._unheard) is not None and said.reason.is_final and self._part(said):
                        return
                    if self._connection is not None:
                        told = ""
                    failures = 1 if self._has_joined else min(failures + 1, MOST_DOUBLINGS)
                    self._connection, self._has_joined = None, False
                    self._standing.failed(gone)
                    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0**failures) * random.uniform(0.5, 1.0)  # noqa: S311  # spreads reconnections, guards nothing
                    if told != gone.remedy:  # once in each outage, although each attempt has other words
                        self._log.warning("coordinator_unavailable", what=gone.what, remedy=gone.remedy)
                        told = gone.remedy
        finally:
            for task in self._tasks:
                task.cancel()
            self._trainer.close()

    def _require_trainer(self) -> None:
        """Raise TrainerGone if the trainer has ended, unless an open request will report it."""
        if not self._asking.locked():
            self._trainer.require()

    async def _converse(self, connection: Stream) -> bool:
        """Handle one stream from greeting to end. Return whether all runs are over."""
        await connection.send(Hello(PROTOCOL_VERSION, self._software, together=True, sums=True))
        beside, failed_run = self._work_beside(connection), ""
        try:
            while True:
                item = await self._inbox.get()
                if isinstance(item, Failure):
                    failed_run = item.run  # another run may have been announced since
                    raise item.error
                if isinstance(item, Farewell):
                    return self._part(item)
                if not isinstance(item, _NOTICES):
                    self._connection = connection
                    self._standing.connected()
                self._standing.saw(item)
                if isinstance(item, Upkeep):
                    await self._beside().take(item, connection.send)
                else:
                    await self._handle(item)
        except MalformedMessage as malformed:
            await self._admission.end_part(failed_run or self._run, malformed)
            raise misbehaved(malformed) from malformed
        except MaskingRefused as refused:
            await self._admission.end_part(failed_run or self._run, refused)
            raise masks_nothing(refused) from refused
        except (GateRefusal, ConsentEnded, TrainerFailed) as ended:
            await self._admission.end_part(failed_run or self._run, ended)
            raise
        finally:
            for task in beside:
                task.cancel()
            self._standing.parted()
            if self._rounds is not None:
                self._rounds.stream_ended()
            self._forget_messages()

    def _work_beside(self, connection: Stream) -> list[asyncio.Task[None]]:
        return [
            self._spawn(self._read(connection)),
            self._spawn(watch(self._require_consent, CONSENT_POLL_SECONDS)),
            self._spawn(watch(self._require_trainer, APPROVAL_POLL_SECONDS)),
            self._spawn(self._upkeep.keep_up(connection.send) if self._upkeep else asyncio.sleep(0)),
        ]

    def _forget_messages(self) -> None:
        """Remove the messages of the closed stream from the inbox. The trainer's answers stay."""
        for _ in range(self._inbox.qsize()):
            item = self._inbox.get_nowait()
            error = item.error if isinstance(item, Failure) else None
            of_stream = isinstance(error, UnavailableError | MalformedMessage)
            if isinstance(item, Farewell):
                self._unheard = item
            elif isinstance(item, Built | Concluded | Failure) and not of_stream:
                self._inbox.put_nowait(item)

    async def _read(self, connection: Stream) -> None:
        while True:
            message = await connection.receive()
            if wait := self._repetitions.wait_seconds:
                await asyncio.sleep(wait)
            if isinstance(message, Announcement):
                self._newest_run = message.run
            await self._inbox.put(message)

    def _beside(self) -> SiteUpkeep:
        if self._upkeep is None:
            raise MalformedMessage("upkeep that was not agreed on")
        return self._upkeep

    async def _handle(self, item: CoordinatorMessage | Built | Concluded) -> None:
        match item:
            case Announcement():
                await self._announced(item)
            case Built(contribution=contribution):
                self._standing.built(contribution.void)
                await self._running().built(contribution)
            case Concluded(run=run):
                self._standing.concluded(run)
                await self._send(Done(run))
            case Farewell():
                return  # it was handled before
            case _:
                if self._running().is_repetition(item):
                    self._repetitions.count()
                await self._running().handle(item)

    async def _announced(self, message: Announcement) -> None:
        self._repetitions.count()
        plan, manifest = await self._admission.announced(message)
        if self._audit.records("run_finished", run=message.run):  # over for good, also after a restart
            await self._send(Done(message.run))
            return
        self._run = message.run
        if self._rounds is None or self._rounds.run != message.run:  # the name contains the plan's digest
            if self._rounds is not None:
                self._rounds.end()
                await asyncio.sleep(0)  # so the trainer first answers what the earlier run asks
            try:
                self._rounds = await self._admission.admit(plan, manifest)
            except _Replaced:
                self._standing.awaits_no_more()
                return
        rounds = self._rounds
        digests = (plan.digest, rounds.manifest.digest)
        session, number, saved = rounds.key_session, rounds.next_round, rounds.saved
        await self._send(Join(message.run, *digests, session, number, saved, *rounds.received))
        self._has_joined = True

    async def _ask(self, message: Prepare | Train | Conclude, largest_payload: int = 0) -> TrainerMessage:
        try:
            async with self._asking, self._standing.asking(type(message).__name__.lower()):
                answer = await self._trainer.ask(message, largest_payload)
        except MalformedMessage as cause:  # this site's own trainer is at fault, not the coordinator
            raise unexpected_answer() from cause
        if isinstance(answer, Failed):
            self._require_consent()  # the trainer may detect a withdrawal first, which counts as a withdrawal
            raise TrainerFailed(answer)
        return answer

    async def _send(self, message: Join | Refusal | Outgoing, check: Callable[[], None] | None = None) -> None:
        if self._connection is not None and isinstance(message, Done) and self._upkeep is not None:
            await self._upkeep.tell(self._connection.send)  # the run may be over after this message
        if self._connection is not None:  # without a stream the next offer repeats the request
            await self._connection.send(message, check)

    async def _tell(self, refusal: Refusal) -> None:
        """Report why this site stops, if the stream is open. The site stops in any case, also if nobody reads."""
        with suppress(OperatorError, TimeoutError):
            async with asyncio.timeout(PARTING_SECONDS):
                await self._send(refusal)
            if self._connection is not None:
                await self._connection.part()

    def _part(self, farewell: Farewell) -> bool:
        """Return whether a farewell ends everything well. Raise an error if a person must act."""
        self._log.info("coordinator_parted", reason=farewell.reason.name, detail=farewell.detail)
        return is_over(farewell, self._audit)

    async def _await_approval(self, consent: Consent) -> None:
        tell = self._standing.await_approval
        require = partial(self._require_awaited, consent)
        await await_approval(consent, self._audit, tell, require, self._take_upkeep)

    async def _take_upkeep(self) -> None:
        """Handle the messages about audit logs and certificates in the inbox. All other messages keep their order.

        Persons may need weeks for an approval. A certificate and the confirmations of a log must not wait so long.
        """
        waiting = [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]
        for item in waiting:
            if not isinstance(item, Upkeep):
                self._inbox.put_nowait(item)
        for item in waiting:
            if isinstance(item, Upkeep) and self._connection is not None:
                await self._beside().take(item, self._connection.send)

    def _require_awaited(self, consent: Consent) -> None:
        """Check what the loop cannot handle while it waits for an approval.

        It checks for an ended stream or trainer, a withdrawal from the earlier run, and the announcement of another
        run.
        """
        self._require_consent()
        self._require_trainer()
        if self._connection is not None:
            self._connection.require()
        if self._newest_run != consent.plan.run_name and consent.why_not() is not None:
            raise _Replaced

    def _require_consent(self) -> None:
        """Check that the persons here still approve the run. Skip a run that ended here if another was announced."""
        rounds = self._rounds
        if rounds is not None and not (rounds.is_concluded and rounds.run != self._run):
            rounds.consent.require()

    def _running(self) -> Rounds:
        if self._rounds is None:
            raise MalformedMessage("a round before a run was announced")
        return self._rounds

    def _spawn(self, work: Coroutine[Any, Any, None], run: str = "") -> asyncio.Task[None]:
        """Run a task beside the loop. Its error is put into the inbox, with the run that the task is for."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as failure:
                await self._inbox.put(Failure(failure, run))

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # a cancelled task may not have begun
        return task
