"""Inspection describes the file, and cannot change the terminal's display."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from pki import certificates
from pki.pki_cli import describe


def test_a_hostile_name_is_shown_with_escapes(now: datetime) -> None:
    """Control characters of a stranger's certificate do not reach the terminal."""
    key = certificates.new_tls_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a\x1b[2Jb")])
    hostile = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )

    lines = "\n".join(describe(certificates.certificate_pem(hostile), now))

    assert "\x1b" not in lines
