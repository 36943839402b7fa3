"""Checks in the register of sites which sites are accepted, and issues first and renewed certificates to sites.

Each certificate is looked up every time, so a revocation takes effect at once. The reply to a stranger has only the
reason why its own request was refused. The audit log records at most 20 refusals in a minute one by one and counts the
others, so that strangers cannot fill the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import assert_never

import structlog

from coordinator.network.outgoing import Caller
from coordinator.network.pace import Refusals
from coordinator.network.service import Credentials
from host import secret_files
from pki import enrolment_decisions
from pki.authority import Authority
from pki.certificate_chain import certificates_in, identify_site
from pki.certificates import certificate_sha256, is_renewal_due
from pki.names import is_name, site_name
from pki.register import Register, SiteState
from protos.errors import OperatorError, RefusedError
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import EnrolmentReply, EnrolmentRequest, RenewalAnswered, RenewalAsked


class Membership:
    """Decides which certificates a running coordinator accepts and issues, based on the register of sites."""

    def __init__(
        self,
        authority: Authority,
        register: Register,
        now: Callable[[], datetime],
        record: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """Store the authority and its register.

        Args:
            now: returns aware times.
            record: writes an event into the audit log before a reply is sent. Without it, events are not recorded.
        """
        self._authority, self._register, self._now = authority, register, now
        self._record, self._refusals = record, Refusals(record)
        self._told: set[tuple[str, str]] = set()
        self._log = structlog.get_logger()
        self._generation = register.generation()

    def credentials(self) -> Credentials:
        return Credentials(
            key=secret_files.read_secret(self._authority.coordinator_key_path),
            chain=secret_files.read_public(self._authority.coordinator_certificate_path),
            root=self._authority.root_pem(),
        )

    def identify(self, certificate: bytes) -> Caller:
        """Return which site is calling, from its certificate (PEM), which TLS has checked under the federation's root.

        Raises:
            RefusedError: the caller may not act here.
        """
        identity = identify_site(certificate, self._authority.federation, self._now())
        return Caller(identity.name, identity.certificate_sha256)

    def is_accepted(self, caller: Caller) -> bool:
        """Return whether the certificate of a caller is still valid in the register of sites."""
        return self._register.is_accepted(site_name(caller.site), caller.certificate_sha256)

    def revoked(self) -> list[str]:
        """Return the revoked sites that were not invited again."""
        return [str(site.name) for site in self._register.sites() if site.state is SiteState.REVOKED]

    def identity_of(self, site: str) -> str | None:
        """Return the fingerprint of a site's identity key from the register of sites."""
        with suppress(RefusedError):  # no site of this name was ever invited
            return self._register.site(site_name(site)).identity_fingerprint if is_name(site) else None
        return None

    def confirm(self, site: str, certificate_sha256: str) -> None:
        self._register.confirm(site_name(site), certificate_sha256)

    def renew(self, asked: RenewalAsked) -> RenewalAnswered:
        try:
            issued = enrolment_decisions.handle_renewal(self._authority, self._register, asked, self._now())
        except RefusedError as refusal:
            if self._refusals.note("renewal_refused", reason=refusal.what):
                self._log.warning("renewal_refused", site=ascii(asked.site), reason=refusal.what)
            return RenewalAnswered(b"", refusal.what)
        except OperatorError as error:  # the fault is in the coordinator's disk or register, so the site can only wait
            self._log.error("renewal_failed", what=error.what, remedy=error.remedy)
            return RenewalAnswered(b"", "The coordinator cannot renew at the moment.")
        shown = certificate_sha256(certificates_in(issued.chain_pem)[0])
        if self._note_once("certificate_issued", shown, site=asked.site, kind="renewal"):
            self._log.info("certificate_renewed", site=asked.site)
        return RenewalAnswered(issued.chain_pem, "")

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
            return encode_enrolment(RenewalAnswered(b"", f"A request was refused: {malformed}."))

    def tick(self) -> None:
        """Start a new count of refused requests each minute. The coordinator calls this function twice a second."""
        self._refusals.tick()

    def has_changed(self) -> bool:
        """Return whether the register of sites has changed since the previous call of this function."""
        earlier, self._generation = self._generation, self._register.generation()
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
        if (event, key) in self._told:
            return False
        self._record(event, **facts)
        # After the recording: if recording fails, the next request records the event again.
        self._told.add((event, key))
        return True
