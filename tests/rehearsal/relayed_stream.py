"""A site's stream as its gate has it, with the agent's relay in the same process: the code of both programs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from host.audit_log import AuditLog
from pki.site_keys import SiteKeys
from site_agent.agent.connection import Credentials
from site_agent.agent.kept_certificates import KeptCertificates
from site_agent.agent.relaying import Relay, answer_of
from site_agent.framed_messages import FramedSocket
from site_agent.gate.agent_link import AgentLink, Stream
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate_socket import FRAMING, Answer, Message, Order


@dataclass(frozen=True)
class _Shown:
    """An agent's certificates, as a test has them in its hands."""

    given: Credentials

    def credentials(self) -> Credentials:
        """What is shown and trusted."""
        return self.given

    def address(self, which: str) -> str:
        """None was recorded."""
        return ""

    def proxy(self, address: str) -> None:
        """The way is direct."""


class Connection:
    """A stream to a coordinator, to be used as an asynchronous context."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._relay: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Stream:
        self._link, (ours, theirs) = AgentLink(), socket.socketpair()
        kept = cast(KeptCertificates, _Shown(self._credentials))
        self._relay = asyncio.create_task(_relayed(FramedSocket(theirs, FRAMING), kept))
        self._link.connect(ours)
        self._stream = self._link.stream(lambda: self._address)
        return await self._stream.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._stream.__aexit__()
        await asyncio.sleep(0)
        self._link.close()
        if self._relay is not None:
            await asyncio.wait({self._relay}, timeout=10)


async def _relayed(gate: FramedSocket[Message], kept: KeptCertificates) -> None:
    try:
        await Relay(gate, kept).run()
    finally:
        gate.close()


def certificates_in_process(
    keys: SiteKeys, now: Callable[[], datetime] = lambda: datetime.now(UTC), audit: AuditLog | None = None
) -> SiteCertificates:
    """The certificates of a site whose agent is in this process. Without a log, the site has one beside its keys."""

    async def ask(order: Order) -> Answer:
        return await answer_of(KeptCertificates(keys.directory, now), order)  # type: ignore[arg-type]

    return SiteCertificates(ask, audit or AuditLog(keys.directory / "gate.sqlite", site="a", now=now))
