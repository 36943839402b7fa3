"""Handles messages that belong to no round: about the audit logs of coordinator and sites, and about new certificates.

These messages do not affect a run, except that a site whose audit log was cut or copied back is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.network.outgoing import StreamPeer
from coordinator.network.pace import Refusals
from host.audit_log import AuditLog, HeadRefused
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import KeptHead, LogHeads, RenewalAnswered, RenewalAsked, Upkeep

_TICKS: Final = 4  # of half a second each, between two reports of the head of this log


@dataclass
class _Heads:
    """What was exchanged with a site on one stream."""

    sent: int = 0  # records in the newest report of this log after the greeting
    restored: int | None = None  # of the site's newest report; None before its first one


class SiteUpkeep:
    """Keeps the heads of all sites' audit logs, and answers requests for certificates."""

    def __init__(
        self, log: AuditLog, *, renew: Callable[[RenewalAsked], RenewalAnswered], confirm: Callable[[str, str], None]
    ) -> None:
        """Start without a stream.

        Args:
            confirm: records that a site has connected with a certificate.
        """
        self._audit, self._renew, self._confirm = log, renew, confirm
        self._heads: dict[StreamPeer, _Heads] = {}
        self._refusals, self._ticks = Refusals(log.write), 0
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

    def greeted(self, peer: StreamPeer, site: str) -> None:
        """Send a site the heads of both logs, before any other message of its new stream."""
        self._heads[peer] = _Heads()
        peer.send(LogHeads(self._audit.own_head, self._audit.kept_head(site)))

    def received(self, peer: StreamPeer, site: str, message: Upkeep) -> None:
        """Handle a site's message that belongs to no round, such as a request for a new certificate.

        Raises:
            MalformedMessage: the message is not expected here.
            HeadRefused: one of the two logs was cut or copied back; the stream must end.
        """
        match message:
            case LogHeads():
                self._take(peer, site, message)
            case RenewalAsked():
                if message.site != site:
                    raise MalformedMessage("a renewal in another site's name")
                peer.send(self._renew(message))
            case RenewalAnswered():
                raise MalformedMessage("an answer that only the coordinator sends")

    def tick(self) -> None:
        """Report the head of this log to each site from time to time. The coordinator calls this twice a second.

        A site keeps these heads. So it gets none before this log was found to contain the head that the site keeps.
        """
        self._refusals.tick()
        self._ticks += 1
        if self._ticks % _TICKS:
            return
        own = self._audit.own_head
        for peer, heads in self._heads.items():
            if heads.restored is not None and own.count > heads.sent:
                self._report(peer, heads, own)

    def gone(self, peer: StreamPeer) -> None:
        self._heads.pop(peer, None)

    def _report(self, peer: StreamPeer, heads: _Heads, own: KeptHead) -> None:
        heads.sent = own.count
        peer.send(LogHeads(own, KeptHead()))

    def _take(self, peer: StreamPeer, site: str, message: LogHeads) -> None:
        heads = self._heads[peer]
        # A declared restore is a record here, so a site reports it at most once on a stream.
        if heads.restored not in (None, message.own.restored):
            raise MalformedMessage("a restore in the middle of a stream")
        is_first, heads.restored = heads.restored is None, message.own.restored
        try:
            self._audit.check_own(message.kept)
        except HeadRefused as refused:
            self._audit.write("log_refused", owner="coordinator", reason=str(refused), known_to=site)
            self._log.error("coordinator_log_refused", site=site, reason=str(refused))
            raise
        try:
            self._audit.check_other(site, message.own)
        except HeadRefused as refused:
            self._log.error("site_log_refused", site=site, reason=str(refused))
            raise
        self._audit.keep_head(site, message.own)
        if is_first:
            self._report(peer, heads, self._audit.own_head)
