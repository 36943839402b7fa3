"""This site's certificates as the gate sees and orders them; key and files are the agent's.

The gate verifies a certificate and records it before it orders it to be put in force. The agent checks it once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeAlias

from pki.names import Address
from pki.shown_certificates import ShownCertificates
from protos.errors import OperatorError, ProtocolError, UnavailableError
from site_agent.framed_messages import packed
from site_agent.gate.mishaps import of_certificate
from site_agent.gate_socket import (
    Answer,
    Call,
    Called,
    Install,
    Look,
    Make,
    Order,
    Requested,
    Settle,
    Shown,
    Trust,
    Unable,
)

Ask: TypeAlias = Callable[[Order], Awaitable[Answer]]


class AgentUnable(OperatorError):
    """The agent could not do what was ordered, and has said why itself."""

    def __init__(self, unable: Unable) -> None:
        super().__init__(
            what="The agent of this site could not use its TLS key or certificates. Its own message has the reason.",
            consequence="Nothing left this site, and its certificates are unchanged.",
            remedy="Follow the agent's message, then start again.",
        )
        self.exit_status = unable.exit_status


class SiteCertificates:
    """What the agent shows and trusts, and the orders that change it."""

    def __init__(self, ask: Ask) -> None:
        """`ask` has the agent carry out an order."""
        self._ask = ask
        self.shown = ShownCertificates(chain=b"", roots=b"")
        self.coordinator = self.enrolment = ""  # addresses that came with enrolment

    async def look(self) -> ShownCertificates:
        """What is shown and trusted at this moment.

        Raises:
            OperatorError: as all methods here: the agent has ended, or could not.
        """
        return await self._shown(Look())

    async def make(self, key: str) -> bytes:
        """A signing request (PEM) for a key of this kind; see gate_socket.Make."""
        answer = await self._ask(Make(key))
        if not isinstance(answer, Requested):
            raise _failed(answer)
        return bytes(answer.payload)

    async def call(self, name: str, address: Address | None, roots: bytes, request: bytes) -> bytes:
        """The reply to a call on the enrolment port, as bytes.

        Args:
            name: `enrol` or `renew`.
            address: where to call; None for the address that came with enrolment.
            roots: what to trust there (PEM); empty for the roots that are trusted already.
            request: the bytes of the request.

        Raises:
            UnavailableError: the coordinator cannot be reached, or is not of this federation.
        """
        place = "" if address is None else str(address)
        answer = await self._ask(Call(name, place, packed((roots, request))))
        if isinstance(answer, Unable) and answer.status:
            at = place or self.enrolment
            raise of_certificate(at, answer.status, datetime.now(UTC), "E022") or _unreached(at, answer.status)
        if not isinstance(answer, Called):
            raise _failed(answer)
        return bytes(answer.payload)

    async def install(
        self,
        key: str,
        chain: bytes,
        roots: bytes,
        *,
        site: str,
        federation: str,
        addresses: tuple[str, str] = ("", ""),
    ) -> None:
        """Put a certificate in force that is verified and on record."""
        await self._shown(Install(key, site, federation, *addresses, payload=packed((chain, roots))))

    async def trust(self, roots: bytes) -> None:
        """Trust the roots that the coordinator names, once that is on record."""
        await self._shown(Trust(roots))

    async def settle(self, *, works: bool) -> None:
        """Forget the pair before the last renewal, or put it back."""
        await self._shown(Settle(works))

    async def _shown(self, order: Look | Install | Trust | Settle) -> ShownCertificates:
        answer = await self._ask(order)
        if not isinstance(answer, Shown):
            raise _failed(answer)
        chain, roots, previous, staged_chain, staged_request = answer.parts
        self.coordinator, self.enrolment = answer.coordinator, answer.enrolment
        self.shown = ShownCertificates(
            chain=chain, roots=roots, previous=previous, staged_chain=staged_chain, staged_request=staged_request
        )
        return self.shown


def _failed(answer: Answer) -> OperatorError:
    if isinstance(answer, Unable):
        return AgentUnable(answer)
    return ProtocolError(
        what="The agent of this site, the process with the network, answered with something else than was ordered.",
        consequence="This site has stopped. Nothing left it.",
        remedy="Install the same version of all three programs. If they are, tell the security officer.",
    )


def _unreached(address: str, status: str) -> UnavailableError:
    return UnavailableError(
        what=f"The enrolment port {address} cannot be reached ({status}).",
        consequence="Nothing but a connection attempt left this site. An invitation or certificate that it has"
        " is as good as before.",
        remedy="Check that the coordinator runs and that this host may reach it, then start again.",
        code="E022",
    )
