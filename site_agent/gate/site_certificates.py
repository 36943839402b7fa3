"""Decides about this site's certificates in the gate process. The agent process has the TLS key and the files.

The gate verifies and records a certificate before it orders the agent to use it. The agent checks it again.

The audit log has the federation of this site: its name and the root that it trusts. The gate signs nothing for another
federation, whatever an invitation or the agent presents. A site with its identity key, its ledger and its approvals
belongs to one federation permanently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from pki import enrolment_decisions
from pki.certificate_chain import ShownCertificates, certificates_in, checked_leaf, sha256_of_chain
from pki.certificates import certificate_sha256, requested_key
from pki.names import Address, SiteName, federation_name
from protos.errors import ConfigurationError, OperatorError, UnavailableError
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import RenewalAnswered, RenewalAsked
from site_agent.framed_messages import packed
from site_agent.gate.mishaps import agent_misbehaved, of_certificate, remedy_of
from site_agent.gate_socket import Answer, Call, Called, Install, Look, Make, Order, Requested, Shown, Unable

_BELONGS: Final = "federation_joined"

Ask: TypeAlias = Callable[[Order], Awaitable[Answer]]


class AgentUnable(OperatorError):
    """The agent could not execute a command of the gate process, and has printed the reason."""

    def __init__(self, unable: Unable) -> None:
        super().__init__(
            what="The agent of this site could not use its TLS key or certificates. The agent's own message in its "
            "log has the reason.",
            consequence="Nothing was sent, and the certificates of this site are unchanged.",
            remedy="Do what the agent's message recommends, then start the site agent again.",
        )
        self.exit_status = unable.exit_status


class SiteCertificates:
    """Has the agent's certificates and trusted root, and sends the commands that change them."""

    def __init__(self, ask: Ask, audit: AuditLog) -> None:
        """Start without certificates. `ask` sends an order to the agent."""
        self._ask, self._audit = ask, audit
        self.shown = ShownCertificates(chain=b"", root=b"")
        self.coordinator = self.enrolment = ""  # the addresses that came with enrolment

    def check(self, federation: str, root: bytes) -> None:
        """Check that a federation is the one to which this site belongs. A new site belongs to none.

        Raises:
            ConfigurationError: it is another federation.
        """
        if not (known := self._audit.records(_BELONGS)):
            return
        name, own_root = known[0]["federation"], known[0]["root_sha256"]
        if (name, own_root) == (federation, _fingerprint(root)):
            return
        other = f"the federation {federation}" if federation != name else "another authority of that name"
        raise ConfigurationError(
            what=f"This site belongs to the federation {name}, but the invitation or certificate names {other}.",
            consequence="Nothing was sent or signed for the other federation. The keys and certificates of this "
            "site are unchanged.",
            remedy=f"Ask the federation office of {name} for an invitation, or install a second site with a "
            "`state` folder of its own for the other federation.",
        )

    async def look(self) -> ShownCertificates:
        """Return the agent's current certificates and its trusted root certificates.

        Raises:
            OperatorError: the agent has ended, or could not carry out the order. All methods here raise this.
        """
        return await self._shown(Look())

    async def make(self, key: str) -> bytes:
        """Return a certificate signing request (PEM) for a key of this kind. See gate_socket.Make."""
        answer = await self._ask(Make(key))
        if not isinstance(answer, Requested):
            raise _failed(answer)
        return bytes(answer.payload)

    async def call(self, name: str, address: Address | None, root: bytes, request: bytes) -> bytes:
        """Send a request to the enrolment port through the agent, and return the bytes of the reply.

        Args:
            name: `enrol` or `renew`.
            address: of the port; None for the address that came with enrolment.
            root: the root to trust there (PEM); empty for the root that is trusted already.

        Raises:
            UnavailableError: the coordinator cannot be reached, or is not of this federation.
        """
        place = "" if address is None else str(address)
        answer = await self._ask(Call(name, place, packed((root, request))))
        if isinstance(answer, Unable) and answer.status:
            at = place or self.enrolment
            raise of_certificate(at, answer.status, datetime.now(UTC), "E022") or _unreached(at, answer.status)
        if not isinstance(answer, Called):
            raise _failed(answer)
        return bytes(answer.payload)

    async def install(
        self, key: str, chain: bytes, root: bytes, *, site: str, federation: str, addresses: tuple[str, str] = ("", "")
    ) -> None:
        """Let the agent start to use a new certificate, after the gate has verified and recorded it."""
        self._belong(federation, root)
        await self._shown(Install(key, site, federation, *addresses, payload=packed((chain, root))))

    async def _shown(self, order: Look | Install) -> ShownCertificates:
        answer = await self._ask(order)
        if not isinstance(answer, Shown):
            raise _failed(answer)
        chain, root = answer.parts
        self.coordinator, self.enrolment = answer.coordinator, answer.enrolment
        shown = ShownCertificates(chain=chain, root=root)
        if shown.is_enrolled:
            self.check(shown.federation(), shown.root)
            self._belong(shown.federation(), shown.root)
        self.shown = shown
        return shown

    def _belong(self, federation: str, root: bytes) -> None:
        if not self._audit.records(_BELONGS):
            self._audit.write(_BELONGS, federation=federation, root_sha256=_fingerprint(root))


async def renewal_of(certificates: SiteCertificates, site: str, identity_key: Ed25519PrivateKey) -> RenewalAsked:
    """Return a request for this site's next certificate, with a new key. The site's identity key signs it."""
    federation = federation_name(certificates.shown.federation())
    request = await certificates.make("next")
    return enrolment_decisions.renewal_request(federation, SiteName(site), request, identity_key)


def write_request(audit: AuditLog, shown: ShownCertificates) -> None:
    """Record a request for a certificate in the audit log, before this request is sent."""
    audit.write("renewal_requested", certificate_sha256=sha256_of_chain(shown.chain), ends=shown.expiry().isoformat())


async def install_renewed(
    certificates: SiteCertificates,
    asked: RenewalAsked,
    answer: RenewalAnswered,
    site: str,
    now: datetime,
    audit: AuditLog,
) -> None:
    """Start to use a renewed certificate, after the audit log has recorded it.

    Raises:
        RefusedError: the certificate is not for this site's key.
        StoreError: the change cannot be recorded; key and certificate are unchanged.
    """
    shown, key = certificates.shown, requested_key(asked.signing_request)
    federation = shown.federation()
    checked_leaf(answer.chain, shown.root, key, site=SiteName(site), federation=federation, now=now)
    audit.write("certificate_renewed", certificate_sha256=sha256_of_chain(answer.chain))
    await certificates.install("next", answer.chain, shown.root, site=site, federation=federation)


def _fingerprint(root: bytes) -> str:
    (certificate,) = certificates_in(root)
    return certificate_sha256(certificate)


def _failed(answer: Answer) -> OperatorError:
    if isinstance(answer, Unable):
        return AgentUnable(answer)
    return agent_misbehaved(MalformedMessage("an unexpected answer"))


def _unreached(address: str, status: str) -> UnavailableError:
    told = f"cannot be reached ({status})"
    if status == "resource_exhausted":
        told = "answers one network address only so often, and many programs here asked at once"
    return UnavailableError(
        what=f"The enrolment port {address} {told}.",
        consequence="This site only tried to connect, and sent no data. The site's invitation or certificate is still "
        "valid.",
        remedy=remedy_of(status),
        code="E022",
    )
