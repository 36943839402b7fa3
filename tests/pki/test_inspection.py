"""Inspection describes the file, and cannot change the terminal's display."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from pki import certificates
from pki.authority import Authority
from pki.pki_cli import describe
from protos.errors import ConfigurationError, RefusedError


def test_time_is_remarked_upon(authority: Authority, now: datetime) -> None:
    """A certificate before and after its time is marked."""
    data = authority.coordinator_certificate_path.read_bytes()

    assert "(expired)" in "\n".join(describe(data, now + timedelta(days=91)))
    assert "(not valid yet)" in "\n".join(describe(data, now - timedelta(days=1)))
    assert "(" not in "\n".join(describe(data, now))


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


def test_nonsense_is_explained(now: datetime) -> None:
    """A file of neither kind is an operator's error."""
    with pytest.raises(ConfigurationError):
        list(describe(b"nonsense", now))
    with pytest.raises(RefusedError):
        list(describe(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", now))
