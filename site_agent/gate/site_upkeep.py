"""Cosigns the coordinator's audit log, lets the coordinator cosign this site's log, and renews certificates.

It begins only after the coordinator has reported that it supports this. If a log does not continue from its earlier
position, this site's part ends, because people must examine the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit import checkpoint_memory
from audit.cosigning import GROWTH, LogParty, LogSession
from audit.log_files import OLDER_STATE
from audit.own_log import AuditLog
from audit.recording_budget import EACH_DAY_BYTES
from audit.rolled_back import OwnLogRefused, lacks_confirmed
from pki.certificate_chain import sha256_of_chain
from protos.errors import RefusedError, UnavailableError
from protos.wire.log_checkpoints import COORDINATOR, CheckpointRefused
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import (
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)
from site_agent.gate.certificate_renewal import install_renewed, renewal_of, write_request
from site_agent.gate.site_certificates import SiteCertificates

PULSE_SECONDS: Final = 1.0

Send: TypeAlias = Callable[[Upkeep], Awaitable[None]]


class SiteUpkeep:
    """Renews certificates and exchanges checkpoints of logs, over all streams of this process."""

    def __init__(
        self,
        *,
        site: str,
        identity_key: Ed25519PrivateKey,
        certificates: SiteCertificates,
        audit: AuditLog,
        witness: Path,
        now: Callable[[], datetime],
        older: Callable[[], object] = lambda: None,
    ) -> None:
        """Store what the work needs.

        `witness` is the folder of stored checkpoints; `now` returns aware UTC times. `older` is called after the record
        that the restored state of this site is older than the log that the coordinator has confirmed.
        """
        self._site, self._identity_key, self._certificates = site, identity_key, certificates
        self._audit, self._witness, self._now = audit, witness, now
        self._older, self._party = older, LogParty(audit, witness, self._spent)
        self._session: LogSession | None = None
        self._asked: RenewalAsked | None = None
        self._is_answered = False
        self._log = structlog.get_logger()

    async def keep_up(self, send: Send) -> None:
        """Once a second, send the messages about audit logs and certificates that are due, until the stream ends."""
        self.begin()
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self._audit.sync()
            await self.tell(send)

    def begin(self) -> None:
        """Prepare the messages about audit logs and certificates for a new stream to the coordinator."""
        self._session, self._asked = None, None

    async def tell(self, send: Send, at_least: int = GROWTH) -> None:
        """Send the messages about audit logs and certificates that are due once the log has this many new records."""
        for message in await self.due(at_least):
            await send(message)

    async def take(self, message: Upkeep, send: Send) -> None:
        """Handle a message about audit logs or certificates, and send the replies. See `heard`."""
        for answer in await self.heard(message):
            await send(answer)

    async def accepted(self) -> None:
        """Record that this site's certificate works, because the coordinator accepted the connection."""
        if self._certificates.shown.previous:
            self._audit.write("certificate_in_use", certificate_sha256=sha256_of_chain(self._certificates.shown.chain))
            await self._certificates.settle(works=True)

    async def heard(self, message: Upkeep) -> list[Upkeep]:
        """Handle a message about audit logs or certificates, and return the replies.

        Raises:
            RefusedError: the earlier records of one of the two logs have changed.
            UnavailableError: there is a new certificate; the next stream uses it.
            MalformedMessage: the message is not expected here.
        """
        try:
            match message:
                case LogStanding():
                    return [*self._stand(message), *await self._renewal()]
                case LogGrowth() | LogCosignature():
                    return [*self._begun().heard(message)]
                case RenewalAnswered():
                    await self._answered(message)
                    return []
                case RenewalAsked():
                    raise MalformedMessage("a message that only a site sends")
        except CheckpointRefused as refused:
            if not isinstance(message, LogGrowth):  # a refused growth is already recorded
                owner = self._audit.owner if isinstance(refused, OwnLogRefused) else COORDINATOR
                self._audit.write("log_refused", owner=owner, reason=str(refused))
            raise _not_what_it_was(refused) from refused

    async def due(self, at_least: int = GROWTH) -> list[Upkeep]:
        """Return the messages that are due once the log has this many new records. Raises RefusedError like `heard`."""
        if self._session is None:
            return []
        try:
            logs = self._session.due(at_least)
        except CheckpointRefused as refused:
            raise _not_what_it_was(refused) from refused
        return [*await self._renewal(), *logs]

    def _spent(self, _: str) -> None:
        self._log.warning("coordinator_records_wait", bytes_each_day=EACH_DAY_BYTES)

    def _stand(self, standing: LogStanding) -> list[Upkeep]:
        if self._session is not None:
            raise MalformedMessage("the position of a log, twice")
        known = checkpoint_memory.peer_key(self._witness, COORDINATOR)
        if known is None:
            # The key came over TLS with the coordinator's certificate. From now on no other key is accepted.
            self._audit.write("coordinator_key_first_seen", key=standing.key.hex())
            checkpoint_memory.keep_peer_key(self._witness, COORDINATOR, standing.key)
        self._session = LogSession(self._party, COORDINATOR, known or standing.key)
        self._note_older(standing)
        return [self._session.standing(), *self._session.heard(standing)]

    def _note_older(self, standing: LogStanding) -> None:
        """Record once that a person restored an older state, because records of spent privacy may be missing in it."""
        kept = standing.checkpoint
        if kept is not None and lacks_confirmed(self._audit, kept) and not [*self._audit.records(OLDER_STATE)]:
            self._audit.write("older_state_restored", size=kept.size)
            self._older()

    def _begun(self) -> LogSession:
        if self._session is None:
            raise MalformedMessage("a checkpoint of a log before its position")
        return self._session

    async def _renewal(self) -> list[Upkeep]:
        if self._asked is not None or not self._party.budget.allows(COORDINATOR):
            return []
        shown = await self._certificates.look()
        if not shown.is_renewal_due(self._now()):
            return []
        asked = await renewal_of(self._certificates, self._site, self._identity_key)
        self._asked, self._is_answered = asked, False
        with self._party.charged(COORDINATOR):
            write_request(self._audit, shown)
        return [asked]

    async def _answered(self, answer: RenewalAnswered) -> None:
        if self._asked is None or self._is_answered:  # each answer is a record
            raise MalformedMessage("a certificate that was not asked for")
        with self._party.charged(COORDINATOR):
            await self._renewed(self._asked, answer)

    async def _renewed(self, asked: RenewalAsked, answer: RenewalAnswered) -> None:
        shown = self._certificates.shown
        if answer.refusal or not answer.chain:
            self._log.error("renewal_refused", reason=answer.refusal, expires=shown.expiry().isoformat())
            self._audit.write("renewal_refused", reason=answer.refusal)
            self._is_answered = True
            return
        await install_renewed(self._certificates, asked, answer, self._site, self._now(), self._audit)
        self._log.info("certificate_renewed", expires=self._certificates.shown.expiry().isoformat())
        raise UnavailableError(
            what="This site received its next certificate.",
            consequence="The agent now reconnects with the new certificate. Nothing is lost.",
            remedy="You need not do anything.",
        )


def _not_what_it_was(refused: CheckpointRefused) -> RefusedError:
    is_own = isinstance(refused, OwnLogRefused)
    return RefusedError(
        what=f"An audit log was changed or damaged: {refused}.",
        consequence="Nothing more is sent until the cause is known.",
        remedy="Do not change any audit log. Check this site's log with `site-agent audit verify`, and call the "
        "security officer."
        + is_own
        * " If somebody copied an older state folder back, move this folder away. Then restore the newest backup with "
        "`site-agent restore`. If no backup is newer, the security officer can start a new log with "
        "`site-agent audit restart --by NAME --because REASON`. Then the privacy budget of a year counts as spent.",
    )
