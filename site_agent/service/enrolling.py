"""Requests a site's first certificate, or a new certificate after the old one expired, on the enrolment port.

The gate reads the invitation, signs with the identity key and verifies the replies. The agent makes the TLS key and
sends the calls.

The gate records with which invitation this site enrolled. A site that was revoked gets a new invitation. The gate then
enrols again with it, with a new TLS key and under the root that it trusts already. Any other invitation changes
nothing.
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
from host.durable import replace_file
from pki import enrolment_decisions
from pki.certificate_chain import checked_leaf, sha256_of_chain
from pki.certificates import requested_key
from pki.identity_key import has_identity_key, identity_fingerprint, make_identity_key, read_identity_key
from pki.invitation import Invitation
from pki.names import site_name
from protos.errors import ConfigurationError, ProtocolError, RefusedError, UnavailableError
from protos.plan.documents import Document
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import EnrolmentReply, RenewalAnswered
from site_agent.gate.site_certificates import SiteCertificates, install_renewed, renewal_of, write_request
from site_agent.hospital import Hospital
from site_agent.state_folders import gate_folder

ENROLMENT_POLL_SECONDS: Final = 2.0


class _Used(Document):
    """The invitation with which this site enrolled, or with which it has begun to enrol again.

    Attributes:
        invitation: its fingerprint; empty if the file was not there any more.
        signing_request: of the new TLS key (PEM), until its certificate is installed; empty afterwards.
    """

    invitation: str
    signing_request: str = ""


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
    shown = await certificates.look()
    if shown.is_enrolled:
        await _enrol_again_if_invited(hospital, certificates, identity_key, audit)
    else:
        await _enrol(hospital, certificates, identity_key, audit, "first")
    if certificates.shown.expiry() <= now():
        await _renew(hospital, certificates, identity_key, audit)


async def _enrol_again_if_invited(
    hospital: Hospital, certificates: SiteCertificates, identity_key: Ed25519PrivateKey, audit: AuditLog
) -> None:
    """Enrol with a new TLS key if the file of the invitation is not the one with which this site enrolled."""
    try:
        is_there = hospital.invitation is not None and Path(hospital.invitation).exists()
        used, found = _used(hospital), Invitation.load(Path(str(hospital.invitation))).fingerprint if is_there else ""
        if used is None:  # the file was lost; this invitation counts as used
            _record_use(hospital, _Used(invitation=found))
        elif found and used != _Used(invitation=found):
            await _enrol(hospital, certificates, identity_key, audit, "next")
    except PermissionError:  # of the folder: for this site there is no invitation
        return
    except (ConfigurationError, RefusedError, UnavailableError) as unusable:
        # A member may have any file there. Its certificate decides: if it was revoked, the coordinator refuses it.
        structlog.get_logger().warning("invitation_not_used", what=unusable.what, remedy=unusable.remedy)


async def _enrol(
    hospital: Hospital, certificates: SiteCertificates, identity_key: Ed25519PrivateKey, audit: AuditLog, key: str
) -> None:
    """Repeat the request for a certificate until a person at the federation office has approved the request.

    Args:
        key: the kind of the TLS key: `first`, or `next` for a site that has a certificate. See gate_socket.Make.
    """
    invitation = _invitation(hospital)
    certificates.check(invitation.federation, invitation.root_pem)
    shown = certificates.shown
    root = shown.root if shown.is_enrolled else invitation.root_pem
    signing_request = await _signing_request(hospital, certificates, invitation, key)
    site, federation, identity = hospital.site, invitation.federation, identity_fingerprint(identity_key)
    requested = requested_key(signing_request)
    if not shown.is_enrolled or shown.leaf().public_key() != requested:  # equal after a crash at the end of this block
        request = enrolment_decisions.enrolment_request(invitation, signing_request, identity_key)
        audit.write("enrolment_requested", federation=federation, identity=identity)
        raw = encode_enrolment(request)
        reply = await _answered(invitation, certificates, root, raw, identity, is_member=key == "next")
        checked_leaf(reply.chain, root, requested, site=site_name(site), federation=federation, now=now())
        addresses = (str(invitation.coordinator), str(invitation.enrolment))
        if reply.was_member and key == "first":  # its earlier state, with what it spent, is lost
            because = "this site was a member before"
            audit.declare_restored(by="the federation office's register", because=because, account=account())
        sha256 = sha256_of_chain(reply.chain)
        audit.write("enrolled", federation=federation, identity=identity, certificate_sha256=sha256)
        certificates.remember(federation, root)
        await certificates.install(key, reply.chain, root, site=site, federation=federation, addresses=addresses)
        structlog.get_logger().info("enrolled", federation=federation, identity=identity)
    _record_use(hospital, _Used(invitation=invitation.fingerprint))


async def _signing_request(
    hospital: Hospital, certificates: SiteCertificates, invitation: Invitation, key: str
) -> bytes:
    """Return the signing request for an invitation: the same one after a restart, because a token has one key."""
    if key == "first":
        return await certificates.make(key)
    used = _used(hospital)
    if used is not None and used.invitation == invitation.fingerprint and used.signing_request:
        return used.signing_request.encode()
    signing_request = await certificates.make(key)
    _record_use(hospital, _Used(invitation=invitation.fingerprint, signing_request=signing_request.decode()))
    return signing_request


def _used_path(hospital: Hospital) -> Path:
    return gate_folder(hospital.state_path) / "invitation-used.json"


def _record_use(hospital: Hospital, used: _Used) -> None:
    replace_file(_used_path(hospital), used.model_dump_json().encode())


def _used(hospital: Hospital) -> _Used | None:
    path = _used_path(hospital)
    try:
        return _Used.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as cause:
        raise ConfigurationError(
            what=f"The file {path} cannot be read. It shows with which invitation this site enrolled.",
            consequence="The invitation was not used.",
            remedy="Delete this file and start the program again. If the office invited this site again, replace the "
            "invitation only after that, because this start counts the present invitation as used.",
        ) from cause


async def _answered(
    invitation: Invitation,
    certificates: SiteCertificates,
    root: bytes,
    request: bytes,
    identity: str,
    *,
    is_member: bool,
) -> EnrolmentReply:
    log, has_told, told = structlog.get_logger(), False, ""
    while True:
        invitation.check_not_expired(now())
        try:
            raw = await certificates.call("enrol", invitation.enrolment, root, request)
            reply = _reply(raw)
        except UnavailableError as gone:
            if is_member:
                raise  # a made-up invitation must not stop a member
            if told != gone.remedy:  # once for each outage, not for each attempt
                log.warning("enrolment_unavailable", what=gone.what, remedy=gone.remedy)
                told = gone.remedy
            await asyncio.sleep(ENROLMENT_POLL_SECONDS)
            continue
        told = ""
        if reply.chain:
            return reply
        if not has_told:
            log.warning("enrolment_awaits_approval", identity=identity)
            has_told = True
        await asyncio.sleep(ENROLMENT_POLL_SECONDS)


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
    """Request a new certificate on the enrolment port, after the old one expired.

    Raises:
        RefusedError: this site is no longer a member.
        UnavailableError: the enrolment port is closed or does not answer.
    """
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
            remedy="Ask the federation office for an invitation. Write the path of its file under `invitation` in "
            "hospital.yaml.",
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
