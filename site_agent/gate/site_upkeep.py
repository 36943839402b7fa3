"""Beside the rounds: this site's log and the coordinator's witness each other, and its certificate renews itself.

Begins only when the coordinator has shown that it knows of it, so that one of an earlier version is left alone.
What a witness finds wrong ends this site's part: a log that does not go on from where it stood is a matter for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from audit import checkpoint_memory
from audit.cosigning import GROWTH, LogParty, LogSession
from pki import enrolment_decisions, own_keys
from pki.certificate_chain import certificates_in
from pki.certificates import certificate_sha256
from pki.names import SiteName, federation_name
from pki.own_authority import WARNING_DAYS
from pki.own_enrolment import own_certificate_request
from pki.site_keys import SiteKeys
from protos.errors import RefusedError, UnavailableError
from protos.wire.log_checkpoints import COORDINATOR, HeadRefused
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import (
    LogCountersignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)
from site_agent.gate.site_log import AuditLog, party_of

PULSE_SECONDS: Final = 1.0

Send: TypeAlias = Callable[[Upkeep], Awaitable[None]]


class SiteUpkeep:
    """What goes on beside the rounds, over all streams of this process."""

    def __init__(
        self, *, site: str, keys: SiteKeys, audit: AuditLog, witness: Path, now: Callable[[], datetime]
    ) -> None:
        """`witness` is the folder of what is remembered of heads; `now` gives aware UTC times."""
        self._site, self._keys, self._audit, self._witness, self._now = site, keys, audit, witness, now
        self._party: LogParty = party_of(audit, site=site, key=keys.identity_key(), folder=witness)
        self._session: LogSession | None = None
        self._has_asked = self._has_warned = self._is_own_refused = False
        self._log = structlog.get_logger()

    async def keep_up(self, send: Send) -> None:
        """From the beginning of a stream to its end: say what is due without being asked, once a second."""
        self.begin()
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            await self.tell(send)

    def begin(self) -> None:
        """Another stream begins."""
        self._session, self._has_asked, self._has_warned, self._is_own_refused = None, False, False, False

    async def tell(self, send: Send, at_least: int = GROWTH) -> None:
        """Say what is due, where so many records are new."""
        for message in self.due(at_least):
            await send(message)

    async def take(self, message: Upkeep, send: Send) -> None:
        """Take in a message and answer it; see `heard`."""
        for answer in self.heard(message):
            await send(answer)

    def accepted(self) -> None:
        """The coordinator has taken a stream: the certificate that was shown works."""
        if self._keys.has_previous():
            self._audit.write("certificate_in_use", certificate_sha256=self._keys.certificate_sha256())
            self._keys.forget_previous()

    def heard(self, message: Upkeep) -> list[Upkeep]:
        """Take in a message; what is to be answered.

        Raises:
            RefusedError: one of the two logs is not what it was.
            UnavailableError: there is a new certificate; the next stream shows it.
            MalformedMessage: it does not belong here.
        """
        try:
            match message:
                case LogStanding():
                    return [*self._stand(message), *self._renewal()]
                case LogGrowth() | LogCountersignature():
                    return [*self._begun().heard(message)]
                case RenewalAnswered():
                    self._renewed(message)
                    return []
                case RenewalAsked():
                    raise MalformedMessage("a question that only a site asks")
        except HeadRefused as refused:
            if not isinstance(message, LogGrowth):  # a growth that was refused is on record already
                self._audit.write("log_refused", owner=COORDINATOR, reason=str(refused))
            raise _not_what_it_was(refused) from refused

    def due(self, at_least: int = GROWTH) -> list[Upkeep]:
        """What is to be said without being asked, where so many records are new."""
        return [*self._session.due(at_least), *self._renewal()] if self._session else []

    def _stand(self, standing: LogStanding) -> list[Upkeep]:
        if self._session is not None:
            raise MalformedMessage("where a log stands, twice")
        known = checkpoint_memory.peer_key(self._witness, COORDINATOR)
        if known is None:
            # Seen over TLS with the coordinator's certificate; from now on no other key is taken for its own.
            self._audit.write("coordinator_key_first_seen", key=standing.key.hex())
            checkpoint_memory.keep_peer_key(self._witness, COORDINATOR, standing.key)
        self._session = LogSession(self._party, COORDINATOR, known or standing.key)
        return [self._session.standing(), *self._session.heard(standing)]

    def _begun(self) -> LogSession:
        if self._session is None:
            raise MalformedMessage("a head of a log before where it stands")
        return self._session

    def _renewal(self) -> list[Upkeep]:
        if self._has_asked:
            return []
        asked = None if self._is_own_refused else own_certificate_of(self._keys, self._site)
        if asked is None:
            if own_keys.is_of_own_authority(self._keys):
                self._warn()
                return []
            if not self._keys.is_renewal_due(self._now()):
                return []
            asked = renewal_of(self._keys, self._site)
        self._has_asked = True
        write_request(self._audit, self._keys, asked)
        return [asked]

    def _warn(self) -> None:
        """A certificate of the hospital's own authority is renewed by people, who are told in time."""
        left = self._keys.expiry() - self._now()
        if not self._has_warned and left.days < WARNING_DAYS:
            self._has_warned = True
            self._log.warning("own_certificate_ends_soon", days=left.days, expires=self._keys.expiry().isoformat())

    def _renewed(self, answer: RenewalAnswered) -> None:
        if not answer.chain and not answer.refusal:
            self._hear_roots(answer.roots)
            return
        if not self._has_asked:
            raise MalformedMessage("a certificate that was not asked for")
        if answer.refusal or not answer.chain:
            self._log.error("renewal_refused", reason=answer.refusal, expires=self._keys.expiry().isoformat())
            self._audit.write("renewal_refused", reason=answer.refusal)
            if own_keys.staged_chain(self._keys) is not None and not self._is_own_refused:
                # One that nobody has registered must not keep the federation's from being renewed in time.
                self._has_asked, self._is_own_refused = False, True
            return
        install_renewed(self._keys, answer, self._site, self._now(), self._audit)
        self._log.info("certificate_renewed", expires=self._keys.expiry().isoformat())
        raise UnavailableError(
            what="This site has got its next certificate.",
            consequence="The stream begins again with it; nothing is lost.",
            remedy="Nothing has to be done.",
        )

    def _hear_roots(self, roots: bytes) -> None:
        """The authority is changing: trust the root that the trusted one vouches for, once that is on record."""
        self._keys.hear_roots(
            roots, self._now(), lambda prints: self._audit.write("trusted_roots_changed", roots=prints)
        )


def renewal_of(keys: SiteKeys, site: str) -> RenewalAsked:
    """A request for this site's next certificate, with a new key, signed with its identity key."""
    federation = federation_name(keys.federation())
    made = enrolment_decisions.renewal_request(
        federation, SiteName(site), keys.next_signing_request(), keys.identity_key()
    )
    return RenewalAsked(made.site, made.signing_request, made.signature)


def own_certificate_of(keys: SiteKeys, site: str) -> RenewalAsked | None:
    """The certificate of the hospital's own authority that waits to be shown, signed with the identity key."""
    chain = own_keys.staged_chain(keys)
    if chain is None:
        return None
    federation, name = federation_name(keys.federation()), SiteName(site)
    made = own_certificate_request(federation, name, own_keys.signing_request(keys, name), chain, keys.identity_key())
    return RenewalAsked(made.site, made.signing_request, made.signature, made.chain_pem)


def write_request(audit: AuditLog, keys: SiteKeys, asked: RenewalAsked) -> None:
    """Record what is about to be asked."""
    if asked.chain:
        audit.write("own_certificate_shown", certificate_sha256=certificate_sha256(certificates_in(asked.chain)[0]))
    else:
        ends = keys.expiry().isoformat()
        audit.write("renewal_requested", certificate_sha256=keys.certificate_sha256(), ends=ends)


def install_renewed(keys: SiteKeys, answer: RenewalAnswered, site: str, now: datetime, audit: AuditLog) -> None:
    """Put a renewed pair in force, and the roots that come with it, once both are on record.

    Raises:
        RefusedError: the pair is not ours.
        AuditError: it cannot be recorded; key and certificate are as they were.
    """

    def record_roots(roots: list[str]) -> None:
        audit.write("trusted_roots_changed", roots=roots)

    def record(sha256: str, roots: list[str]) -> None:
        if roots:
            record_roots(roots)
        audit.write("certificate_renewed", certificate_sha256=sha256)

    waiting = own_keys.staged_chain(keys)
    if waiting is not None and certificates_in(waiting)[0] == certificates_in(answer.chain)[0]:
        keys.hear_roots(answer.roots, now, record_roots)
        record(certificate_sha256(certificates_in(waiting)[0]), [])
        own_keys.put_in_force(keys)
        return
    name, federation = SiteName(site), keys.federation()
    keys.install_next(answer.chain, answer.roots, site=name, federation=federation, now=now, record=record)


def _not_what_it_was(refused: HeadRefused) -> RefusedError:
    return RefusedError(
        what=f"An audit log is not what it was: {refused}.",
        consequence="Nothing more leaves this site until this is understood.",
        remedy="Keep both logs as they are, check this site's with `site-agent audit verify`, and call the "
        "security officer.",
    )
