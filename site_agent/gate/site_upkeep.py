"""Exchanges the heads of the audit logs with the coordinator, and renews certificates.

If a log was cut or copied back, this site's part ends, because people must decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, TypeAlias

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog, HeadRefused, refused_words
from protos.errors import RefusedError, UnavailableError
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import KeptHead, LogHeads, RenewalAnswered, RenewalAsked, Upkeep
from site_agent.gate.site_certificates import SiteCertificates, install_renewed, renewal_of, write_request

PULSE_SECONDS: Final = 1.0
COORDINATOR: Final = "coordinator"  # as the owner of a log

Send: TypeAlias = Callable[[Upkeep], Awaitable[None]]


class SiteUpkeep:
    """Renews certificates and exchanges the heads of logs, over all streams of this process."""

    def __init__(
        self,
        *,
        site: str,
        identity_key: Ed25519PrivateKey,
        certificates: SiteCertificates,
        audit: AuditLog,
        now: Callable[[], datetime],
    ) -> None:
        """Store what the work needs. `now` returns aware UTC times."""
        self._site, self._identity_key, self._certificates = site, identity_key, certificates
        self._audit, self._now = audit, now
        self._reported: int | None = None  # the number of records in the newest report; None before the first one
        self._restored = 0  # of the coordinator's reports on this stream
        self._asked: RenewalAsked | None = None
        self._is_answered = False
        self._log = structlog.get_logger()

    async def keep_up(self, send: Send) -> None:
        """Once a second, send the messages about audit logs and certificates that are due, until the stream ends."""
        self.begin()
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            await self.tell(send)

    def begin(self) -> None:
        """Prepare the messages about audit logs and certificates for a new stream to the coordinator."""
        self._reported, self._asked = None, None

    async def tell(self, send: Send) -> None:
        """Send the messages about audit logs and certificates that are due."""
        for message in () if self._reported is None else (*await self._renewal(), *self._report()):
            await send(message)

    async def take(self, message: Upkeep, send: Send) -> None:
        """Handle a message about audit logs or certificates, and send the replies.

        Raises:
            RefusedError: one of the two logs was cut or copied back.
            UnavailableError: there is a new certificate; the next stream uses it.
            MalformedMessage: the message is not expected here.
        """
        match message:
            case LogHeads():
                for answer in (*self._take(message), *await self._renewal()):
                    await send(answer)
            case RenewalAnswered():
                await self._renewed(message)
            case RenewalAsked():
                raise MalformedMessage("a message that only a site sends")

    def _take(self, heads: LogHeads) -> list[Upkeep]:
        """Check the heads of both logs, and report this site's on a new stream.

        The coordinator's first head on a stream is not kept. Its log may be another one that has grown longer, and only
        the coordinator can look for the kept head in it. It reports again only if it has found this head.
        """
        try:
            self._audit.check_own(heads.kept)
        except HeadRefused as refused:
            self._audit.write("log_refused", owner=self._site, reason=str(refused))
            raise RefusedError(**refused_words(refused, "site-agent restored")) from refused
        if self._reported is not None and heads.own.restored != self._restored:
            raise MalformedMessage("a restore in the middle of a stream")
        try:
            self._audit.check_other(COORDINATOR, heads.own)
        except HeadRefused as refused:
            raise RefusedError(**refused_words(refused, "coordinator restored")) from refused
        if self._reported is not None:
            self._audit.keep_head(COORDINATOR, heads.own)
            return []
        self._reported, self._restored = self._audit.head.count, heads.own.restored
        return [LogHeads(self._audit.own_head, self._audit.kept_head(COORDINATOR))]

    def _report(self) -> list[Upkeep]:
        head = self._audit.own_head
        if head.count == self._reported:
            return []
        self._reported = head.count
        return [LogHeads(head, KeptHead())]

    async def _renewal(self) -> list[Upkeep]:
        if self._asked is not None:
            return []
        shown = await self._certificates.look()
        if not shown.is_renewal_due(self._now()):
            return []
        asked = await renewal_of(self._certificates, self._site, self._identity_key)
        self._asked, self._is_answered = asked, False
        write_request(self._audit, shown)
        return [asked]

    async def _renewed(self, answer: RenewalAnswered) -> None:
        asked, shown = self._asked, self._certificates.shown
        if asked is None or self._is_answered:  # each answer is a record
            raise MalformedMessage("a certificate that was not asked for")
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
