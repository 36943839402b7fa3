"""Handles messages that belong to no round: about the audit logs of coordinator and sites, and about new certificates.

These messages do not affect a run. A site of an earlier version reports that it does not support them, and receives
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from audit.cosigning import LogParty, LogSession
from audit.own_log import AuditLog
from audit.recording_budget import EACH_DAY_BYTES
from audit.rolled_back import OwnLogRefused
from coordinator.network.outgoing import StreamPeer
from coordinator.network.pace import Refusals
from protos.wire.log_checkpoints import CheckpointRefused, owner_of_site, site_of
from protos.wire.messages import CoordinatorReason, Hello, MalformedMessage
from protos.wire.upkeep_messages import (
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)


class SiteUpkeep:
    """Keeps one upkeep session for each site's stream."""

    def __init__(
        self,
        log: AuditLog,
        witness: Path,
        *,
        identity_key_of: Callable[[str], bytes | None],
        renew: Callable[[RenewalAsked], RenewalAnswered],
        confirm: Callable[[str, str], None],
    ) -> None:
        """Create the sessions.

        Args:
            witness: the folder of stored checkpoints.
            confirm: records that a site has connected with a certificate.
        """
        self._party = LogParty(log, witness, self._spent)
        self._audit, self._identity_key_of, self._renew, self._confirm = log, identity_key_of, renew, confirm
        self._sessions: dict[StreamPeer, LogSession] = {}
        self._refusals = Refusals(log.write)
        self._log = structlog.get_logger()

    def accepted(self, site: str, certificate_sha256: str) -> None:
        """Record in the audit log that a site's connection was accepted, before anything is sent to this site."""
        self._audit.write("site_connected", site=site, certificate_sha256=certificate_sha256, tls="1.3")
        self._confirm(site, certificate_sha256)

    def refused(self, reason: str, site: str = "") -> None:
        """Record a refused connection in the audit log. After many refusals in one minute, only count the others."""
        self._refusals.note("peer_refused", site=site, reason=reason)

    def revoked(self, site: str) -> None:
        """Record in the audit log that the coordinator will now end the connection of a revoked site."""
        self._audit.write("site_revoked", site=site)

    def greeted(self, peer: StreamPeer, site: str, hello: Hello) -> None:
        """Prepare upkeep of a site's new stream. Raises CheckpointRefused: its stored checkpoint cannot be read."""
        key = self._identity_key_of(site)
        if hello.upkeep and key is not None:
            session = LogSession(self._party, owner_of_site(site), key)
            self._sessions[peer] = session
            peer.send(session.standing())

    def received(self, peer: StreamPeer, site: str, message: Upkeep) -> None:
        """Handle a site's message that belongs to no round, such as a request for a new certificate.

        Raises:
            MalformedMessage: the message is not expected here.
            CheckpointRefused: the site's log was changed; the stream must end.
        """
        session = self._sessions.get(peer)
        if session is None:
            raise MalformedMessage("upkeep that was not agreed on")
        match message:
            case LogStanding() | LogGrowth() | LogCosignature():
                with self._refusals_shown(session):
                    answers = session.heard(message)
                for answer in answers:
                    peer.send(answer)
            case RenewalAsked():
                if message.site != site:
                    raise MalformedMessage("a renewal in another site's name")
                peer.send(self._renew(message))
            case RenewalAnswered():
                raise MalformedMessage("an answer that only the coordinator sends")

    def tick(self) -> None:
        """Send each site the messages about audit logs that are due. The coordinator calls this twice a second."""
        self._refusals.tick()
        for peer, session in list(self._sessions.items()):
            try:
                with self._refusals_shown(session):
                    due = session.due()
            except CheckpointRefused as refused:
                peer.end(CoordinatorReason.NOT_ACCEPTED, parted(refused))
                continue
            for message in due:
                peer.send(message)

    def gone(self, peer: StreamPeer) -> None:
        """Delete the data in memory about the connection of a site that has disconnected."""
        self._sessions.pop(peer, None)

    @contextmanager
    def _refusals_shown(self, session: LogSession) -> Iterator[None]:
        try:
            yield
        except CheckpointRefused as refused:
            is_own = isinstance(refused, OwnLogRefused)
            self._log.error(
                "coordinator_log_refused" if is_own else "site_log_refused",
                site=site_of(session.peer),
                reason=str(refused),
            )
            raise

    def _spent(self, owner: str) -> None:
        self._log.warning("site_records_wait", site=site_of(owner), bytes_each_day=EACH_DAY_BYTES)


def parted(refused: CheckpointRefused) -> str:
    """Return the text that the coordinator sends to a site after it refused the audit log of this site."""
    return f"an audit log was changed or damaged: {refused}"
