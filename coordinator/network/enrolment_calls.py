"""Checks in the register of sites which sites are accepted, and issues first and renewed certificates to sites.

Each certificate is looked up every time, so a revocation takes effect at once. The reply to a stranger has only the
reason why its own request was refused. The audit log records at most 20 refusals in a minute one by one and counts the
others, so that strangers cannot fill the disk. It also records which hospitals' own authorities are accepted, and each
change of this list.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, assert_never

import structlog

from coordinator.network.outgoing import Caller
from coordinator.network.pace import Refusals
from coordinator.network.service import Credentials
from host.durable import on_disk, replace_file
from pki import enrolment_decisions, store
from pki.authority import Authority
from pki.certificate_chain import certificates_in, verified_leaf
from pki.certificates import certificate_pem, certificate_sha256, is_renewal_due
from pki.enrolment_decisions import handle_own_certificate
from pki.identity import identify_site
from pki.names import is_name, site_name
from pki.own_authority import ForeignNameError, identify_own
from pki.own_register import OwnAuthorities
from pki.register import Register, SiteState
from protos.errors import OperatorError, RefusedError
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest, RenewalAnswered, RenewalAsked

AUTHORITIES_FILE: Final = "own-authorities.json"


class Membership:
    """Decides which certificates a running coordinator accepts and issues, based on the register of sites."""

    def __init__(
        self,
        authority: Authority,
        register: Register,
        now: Callable[[], datetime],
        record: Callable[..., None] = lambda *_, **__: None,
        said: Path | None = None,
    ) -> None:
        """Store the authority and its register.

        Args:
            now: returns aware times.
            record: writes an event into the audit log before a reply is sent. Without it, events are not recorded.
            said: the file with the hospitals' authorities that the audit log has recorded.
        """
        self._authority, self._register, self._now = authority, register, now
        self._own = OwnAuthorities(register)
        self._record, self._refusals = record, Refusals(record)
        self._told: set[tuple[str, str]] = set()
        self._log = structlog.get_logger()
        self._generation = register.generation()
        self._said, self._counted = said, _read(said) if said else {}
        self._note_authorities()

    def credentials(self) -> Credentials:
        """Return the coordinator's own certificate and the root certificates that it trusts."""
        return Credentials(
            key=store.read_secret(self._authority.coordinator_key_path),
            chain=store.read_public(self._authority.coordinator_certificate_path),
            root=self._authority.accepted_roots_pem() + self._own.trusted_pem(self._now()),
        )

    def identify(self, certificate: bytes, above: bytes = b"") -> Caller:
        """Return which site is calling, from its TLS certificate and the certificates of the issuing authorities.

        TLS trusts the federation's root and every hospital's authority in the same way. This function accepts each
        authority only for its own names.

        Raises:
            RefusedError: the caller may not act here.
        """
        federation, now = self._authority.federation, self._now()
        chain = certificates_in(certificate + above)
        try:
            own = identify_own(chain, self._own.valid(now), federation, now)
        except ForeignNameError as foreign:
            self._note_foreign(foreign)
            raise
        if own is not None:
            return Caller(own.identity.name, own.identity.certificate_sha256)
        identity = identify_site(certificate_pem(chain[0]), federation, now)
        verified_leaf(certificate + above, self._authority.accepted_roots_pem(), now)
        return Caller(identity.name, identity.certificate_sha256)

    def is_accepted(self, caller: Caller) -> bool:
        """Return whether the certificate of a caller is still valid in the register of sites."""
        return self._register.is_accepted(site_name(caller.site), caller.certificate_sha256)

    def revoked(self) -> list[str]:
        """Return the revoked sites that were not invited again."""
        return [str(site.name) for site in self._register.sites() if site.state is SiteState.REVOKED]

    def shut_out(self) -> set[str]:
        """Return the sites whose certificate is refused because the authority of their hospital was removed."""
        return {
            str(site.name)
            for site in self._register.sites()
            if site.state is SiteState.ACTIVE and not site.accepted_certificates
        }

    def identity_of(self, site: str) -> str | None:
        """Return the fingerprint of a site's identity key from the register of sites."""
        with suppress(RefusedError):  # no site of this name was ever invited
            return self._register.site(site_name(site)).identity_fingerprint if is_name(site) else None
        return None

    def identity_key_of(self, site: str) -> bytes | None:
        """Return the identity key of a site from the register of sites, as 32 raw bytes."""
        with suppress(RefusedError):
            return self._register.identity_key(site_name(site)) if is_name(site) else None
        return None

    def confirm(self, site: str, certificate_sha256: str) -> None:
        """Record that a site connected with this certificate. Its earlier certificates are refused from then on."""
        self._register.confirm(site_name(site), certificate_sha256)

    def renew(self, asked: RenewalAsked) -> RenewalAnswered:
        """Reply to a site that requests a new certificate, or sends a certificate of its hospital's own authority."""
        handle = handle_own_certificate if asked.chain else enrolment_decisions.handle_renewal
        try:
            issued = handle(self._authority, self._register, asked, self._now())
        except RefusedError as refusal:
            if isinstance(refusal, ForeignNameError):
                self._note_foreign(refusal)
            if self._refusals.note("renewal_refused", reason=refusal.what):
                self._log.warning("renewal_refused", site=ascii(asked.site), reason=refusal.what)
            return RenewalAnswered(b"", b"", refusal.what)
        except OperatorError as error:  # the fault is in the coordinator's disk or register, so the site can only wait
            self._log.error("renewal_failed", what=error.what, remedy=error.remedy)
            return RenewalAnswered(b"", b"", "The coordinator cannot renew at the moment.")
        shown = certificate_sha256(certificates_in(issued.chain_pem)[0])
        if asked.chain:
            is_new = self._note_once("own_certificate_accepted", shown, site=asked.site, certificate_sha256=shown)
        else:
            is_new = self._note_once("certificate_issued", shown, site=asked.site, kind="renewal")
        if is_new:
            self._log.info("certificate_renewed", site=asked.site)
        return RenewalAnswered(issued.chain_pem, self._authority.trusted_roots_pem(), "")

    def _note_authorities(self) -> None:
        """Record which hospitals' own authorities are accepted now, and which are no longer accepted.

        The list is kept on disk, so that the next coordinator reports a change that was made while none ran. If it
        cannot be written, the change is recorded again at the next start.
        """
        counting = {one.sha256: str(one.site) for one in self._own.all()}
        for sha256 in sorted(counting.keys() - self._counted.keys()):
            self._record("own_authority_counts", site=counting[sha256], authority_sha256=sha256)
        for sha256 in sorted(self._counted.keys() - counting.keys()):
            self._record("own_authority_removed", site=self._counted[sha256], authority_sha256=sha256)
        if counting == self._counted:
            return
        self._counted = counting
        if self._said is not None:
            with on_disk(
                what="The list of hospitals' accepted certificate authorities cannot be written",
                consequence="The register of sites and its record of changes are unchanged. The coordinator stopped.",
            ):
                replace_file(self._said, json.dumps(counting, indent=2, sort_keys=True).encode())

    def _note_foreign(self, foreign: ForeignNameError) -> None:
        facts = {"authority_of": foreign.site, "named": foreign.named}
        self._log.error("foreign_name_refused", **facts)
        self._refusals.note("foreign_name_refused", **facts, certificate_sha256=foreign.certificate_sha256)

    def roots(self) -> RenewalAnswered | None:
        """Return the root certificates with the proof of the new root while the root is replaced, otherwise None."""
        if not self._authority.is_changing():
            return None
        return RenewalAnswered(b"", self._authority.trusted_roots_pem(), "")

    def renew_own(self) -> bool:
        """Renew the coordinator's own certificate if this certificate expires soon. Return whether it was renewed."""
        if not is_renewal_due(self._authority.coordinator_leaf(), self._now()):
            return False
        before = self._authority.coordinator_leaf().not_valid_after_utc

        def record(ends: datetime) -> None:
            if ends > before:
                self._record("own_certificate_renewed", ends=ends.isoformat())

        self._authority.renew_coordinator(self._now(), record)
        if self._authority.coordinator_leaf().not_valid_after_utc <= before:
            self._log.error("authority_ends_soon", ends=before.isoformat())
            return False
        return True

    def renew_raw(self, raw: bytes) -> bytes:
        """Reply to the bytes of a request for a new certificate from a site whose certificate has expired."""
        try:
            return encode_enrolment(self.renew(decode_enrolment(RenewalAsked, raw)))
        except MalformedMessage as malformed:
            return encode_enrolment(RenewalAnswered(b"", b"", f"A request was refused: {malformed}."))

    def tick(self) -> None:
        """Start a new count of refused requests each minute. The coordinator calls this function twice a second."""
        self._refusals.tick()

    def has_changed(self) -> bool:
        """Return whether the register of sites has changed since the previous call of this function."""
        earlier, self._generation = self._generation, self._register.generation()
        if earlier != self._generation:
            self._note_authorities()
        return earlier != self._generation

    def enrol(self, raw: bytes) -> bytes:
        """Reply to the bytes of a request for a site's first certificate. Invalid bytes also receive a reply."""
        try:
            request = decode_enrolment(EnrolmentRequest, raw)
            answer = enrolment_decisions.handle_request(self._authority, self._register, request, self._now())
        except (RefusedError, MalformedMessage) as refusal:
            reason = refusal.what if isinstance(refusal, RefusedError) else f"A request was refused: {refusal}."
            self._log.warning("enrolment_refused", reason=reason)
            self._refusals.note("enrolment_answered", outcome="refused", reason=reason)
            return encode_enrolment(EnrolmentReply(b"", "", reason))
        except OperatorError as error:  # the fault is in the coordinator's disk or register, so the site can only wait
            self._log.error("enrolment_failed", what=error.what, remedy=error.remedy)
            return encode_enrolment(EnrolmentReply(b"", "", "The coordinator cannot enrol at the moment."))
        match answer:
            case enrolment_decisions.Issued(chain_pem=chain, site=site, was_member=was_member):
                outcome = "certificate issued"
                self._note_once("enrolment_answered", f"{site} {outcome}", site=site, outcome=outcome)
                self._log.info("site_enrolled", site=site)
                return encode_enrolment(EnrolmentReply(chain, "", "", was_member))
            case enrolment_decisions.Pending(fingerprint=fingerprint, site=site):
                outcome = f"a person has to approve identity key {fingerprint}"
                if self._note_once("enrolment_answered", f"{site} {outcome}", site=site, outcome=outcome):
                    self._log.info("enrolment_awaits_approval", site=site, identity=fingerprint)
                return encode_enrolment(EnrolmentReply(b"", fingerprint, ""))
            case _:
                assert_never(answer)

    def _note_once(self, event: str, key: str, **facts: str) -> bool:
        """Record an event only once for each `key`. Return whether this call recorded the event."""
        if (event, key) in self._told:
            return False
        self._record(event, **facts)
        # After the recording: if recording fails, the next request records the event again.
        self._told.add((event, key))
        return True


def _read(path: Path) -> dict[str, str]:
    """Read the list of an earlier process. A lost, damaged or unreadable list counts as empty."""
    try:
        return {str(sha256): str(site) for sha256, site in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        return {}
