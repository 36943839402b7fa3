"""Describes a certificate or an invitation in plain words for an operator, without checking it.

An invitation's token is never shown. Text of strangers is escaped, so that it cannot repaint a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TypeVar

from cryptography import x509

from pki.certificate_chain import certificates_in
from pki.certificates import certificate_sha256
from pki.invitation import Invitation

_TIME = "%Y-%m-%d %H:%M UTC"
Extension = TypeVar("Extension", bound=x509.ExtensionType)


def describe(data: bytes, now: datetime) -> Iterator[str]:
    """Yield lines that describe an invitation, or each certificate in a PEM.

    Raises:
        ConfigurationError: the bytes are no usable invitation.
        RefusedError: the bytes begin like a certificate and cannot be read as one.
    """
    if data.lstrip().startswith(b"-----BEGIN CERTIFICATE"):
        for certificate in certificates_in(data):
            yield from _certificate(certificate, now)
    else:
        yield from _invitation(Invitation.from_json(data), now)


def _invitation(invitation: Invitation, now: datetime) -> Iterator[str]:
    yield f"Invitation of site {invitation.site} to federation {invitation.federation}"
    yield f"  coordinator  {invitation.coordinator}"
    yield f"  enrolment    {invitation.enrolment}"
    yield f"  expires      {invitation.expires:{_TIME}}{' (expired)' if now >= invitation.expires else ''}"
    yield f"  fingerprint  {invitation.fingerprint}"


def _certificate(certificate: x509.Certificate, now: datetime) -> Iterator[str]:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    remark = " (not valid yet)" if now < start else " (expired)" if now > end else ""
    yield f"Certificate {_subject(certificate)!a}"
    yield f"  issued by    {certificate.issuer.rfc4514_string()!a}"
    yield f"  valid        {start:{_TIME}} to {end:{_TIME}}{remark}"
    yield f"  sha256       {certificate_sha256(certificate)}"


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return None


def _subject(certificate: x509.Certificate) -> str:
    # The text is shown with escapes (`!a`), because a stranger's certificate may have characters that change the
    # terminal's display.
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return certificate.subject.rfc4514_string()
    return ", ".join(str(getattr(name, "value", name)) for name in names)
