"""Requests a site's first certificate, or a new certificate after the old one expired, on the enrolment port.

The gate reads the invitation, signs with the identity key and verifies the replies. The agent makes the TLS key and
sends the calls.

A site that was revoked gets a new invitation. A person deletes its TLS key and certificate, and the site enrols like a
new one. Its gate's folder has its identity key, and everything that it has masked and spent.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from host.command_line import account
from pki import enrolment_decisions
from pki.certificate_chain import checked_leaf, sha256_of_chain
from pki.certificates import requested_key
from pki.identity_key import has_identity_key, identity_fingerprint, make_identity_key, read_identity_key
from pki.invitation import Invitation
from pki.names import site_name
from protos.errors import ConfigurationError, ProtocolError, RefusedError, UnavailableError
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import EnrolmentReply, RenewalAnswered
from site_agent.gate.site_certificates import SiteCertificates, install_renewed, renewal_of, write_request
from site_agent.hospital import Hospital

POLL_SECONDS: Final = (*(2.0,) * 4, *(4.0,) * 3, 10.0)  # so six sites of one address do not reach the port's limit


def now() -> datetime:
    """Return the current time in UTC, as an aware time."""
    return datetime.now(UTC)


def site_identity_key(folder: Path) -> Ed25519PrivateKey:
    """Return this site's identity key from the gate's folder. The first call creates this key."""
    if not has_identity_key(folder):
        try:
            return make_identity_key(folder)
        except ConfigurationError:  # the service and a command can create the key at the same moment
            if not has_identity_key(folder):
                raise
    return read_identity_key(folder)


async def enrol_where_needed(
    hospital: Hospital, certificates: SiteCertificates, identity_key: Ed25519PrivateKey, audit: AuditLog
) -> None:
    """Ensure that this site has a valid certificate. If necessary, request the first or a new certificate.

    Raises:
        ConfigurationError: there is neither a certificate nor an invitation.
        RefusedError: the coordinator refuses the invitation.
    """
    if not (await certificates.look()).is_enrolled:
        await _enrol(hospital, certificates, identity_key, audit)
    if certificates.shown.expiry() <= now():
        await _renew(hospital, certificates, identity_key, audit)


async def _enrol(
    hospital: Hospital, certificates: SiteCertificates, identity_key: Ed25519PrivateKey, audit: AuditLog
) -> None:
    """Repeat the request for a certificate until a person at the federation office has approved the request."""
    invitation = _invitation(hospital)
    site, federation, root = hospital.site, invitation.federation, invitation.root_pem
    certificates.check(federation, root)
    signing_request, identity = await certificates.make("first"), identity_fingerprint(identity_key)
    request = enrolment_decisions.enrolment_request(invitation, signing_request, identity_key)
    audit.write("enrolment_requested", federation=federation, identity=identity)
    reply = await _answered(invitation, certificates, encode_enrolment(request), identity)
    key = requested_key(signing_request)
    checked_leaf(reply.chain, root, key, site=site_name(site), federation=federation, now=now())
    if reply.was_member and not audit.records("enrolled"):  # its earlier state, with what it spent, is lost
        because = "this site was a member before"
        audit.declare_restored(by="the federation office's register", because=because, account=account())
    audit.write("enrolled", federation=federation, identity=identity, certificate_sha256=sha256_of_chain(reply.chain))
    addresses = (str(invitation.coordinator), str(invitation.enrolment))
    await certificates.install("first", reply.chain, root, site=site, federation=federation, addresses=addresses)
    structlog.get_logger().info("enrolled", federation=federation, identity=identity)


async def _answered(
    invitation: Invitation, certificates: SiteCertificates, request: bytes, identity: str
) -> EnrolmentReply:
    log, has_told, told, tries = structlog.get_logger(), False, "", 0
    while True:
        invitation.check_not_expired(now())
        try:
            reply = _reply(await certificates.call("enrol", invitation.enrolment, invitation.root_pem, request))
        except UnavailableError as gone:
            if told != gone.remedy:  # once for each outage, not for each attempt
                log.warning("enrolment_unavailable", what=gone.what, remedy=gone.remedy)
                told = gone.remedy
        else:
            told = ""
            if reply.chain:
                return reply
            if not has_told:
                log.warning("enrolment_awaits_approval", identity=identity)
                has_told = True
        await asyncio.sleep(POLL_SECONDS[min(tries, len(POLL_SECONDS) - 1)])
        tries += 1


def _reply(raw: bytes) -> EnrolmentReply:
    """Decode the coordinator's reply to a request. A refusal raises RefusedError."""
    try:
        reply = decode_enrolment(EnrolmentReply, raw)
    except MalformedMessage as malformed:
        raise _invalid_answer(malformed, "This site has no certificate.") from malformed
    if reply.refusal:
        raise RefusedError(
            what=f"The coordinator refused the invitation: {reply.refusal}",
            consequence="This site has no certificate. No patient data was read.",
            remedy="Ask the federation office for a new invitation.",
            code="E024",
        )
    return reply


def _invalid_answer(malformed: MalformedMessage, certificate: str) -> ProtocolError:
    return ProtocolError(
        what=f"The enrolment port returned an invalid answer: {malformed}.",
        consequence=f"{certificate} No patient data was read.",
        remedy="Tell the federation office. Start the site agent again after the office has found the cause.",
    )


async def _renew(
    hospital: Hospital, certificates: SiteCertificates, identity_key: Ed25519PrivateKey, audit: AuditLog
) -> None:
    """Request a new certificate on the enrolment port, after the old one expired."""
    shown, site = certificates.shown, hospital.site
    asked = await renewal_of(certificates, site, identity_key)
    write_request(audit, shown)
    raw = await certificates.call("renew", None, b"", encode_enrolment(asked))
    try:
        answer = decode_enrolment(RenewalAnswered, raw)
    except MalformedMessage as malformed:
        raise _invalid_answer(malformed, "This site's certificate is unchanged.") from malformed
    if answer.refusal:
        audit.write("renewal_refused", reason=answer.refusal)
        raise RefusedError(
            what=f"This site's certificate expires on {shown.expiry():%Y-%m-%d} and was not renewed: {answer.refusal}",
            consequence="The certificate of this site is unchanged. This site sent no data to the coordinator.",
            remedy="Ask the federation office whether this site is still a member.",
        )
    await install_renewed(certificates, asked, answer, site, now(), audit)


def _invitation(hospital: Hospital) -> Invitation:
    if hospital.invitation is None:
        raise ConfigurationError(
            what="This site has no certificate, and hospital.yaml contains no path of an invitation.",
            consequence="Nothing was sent.",
            remedy="Ask the federation office for an invitation. Write its path under `invitation` in hospital.yaml.",
            code="E023",
        )
    invitation = Invitation.load(Path(hospital.invitation))
    invitation.check_not_expired(now())
    if invitation.site != hospital.site:
        raise ConfigurationError(
            what=f"The invitation is for site {invitation.site}, but hospital.yaml is for site {hospital.site}.",
            consequence="Nothing was sent.",
            remedy="Use the invitation for this site, or correct `site` in hospital.yaml.",
        )
    return invitation
