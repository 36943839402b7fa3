"""Checks that a certificate chain has exactly three certificates of one federation: leaf, issuing authority and root.

TLS makes the same check on every connection. This check is needed before a certificate is written to disk, and allows
only this one shape.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from host.clock_words import COMPARE_CLOCK, outside
from protos.errors import RefusedError

LARGEST_BYTES = 32 * 1024


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text, at least one. Raises RefusedError if the PEM cannot be read."""
    if len(pem) > LARGEST_BYTES:
        raise _refused(f"it has more than {LARGEST_BYTES} bytes")
    try:
        return list(_parsed(bytes(pem)))
    except Exception as cause:  # the parser of hostile bytes raises several kinds of errors
        raise _refused("it cannot be read") from cause


@lru_cache(maxsize=8)
def _parsed(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Parse a PEM text. A site reads its own certificates each second, so the newest ones are kept."""
    found = x509.load_pem_x509_certificates(pem)
    # Names, keys and times are decoded when they are first read. Reading them here raises their errors here.
    for one in found:
        _ = one.subject, one.issuer, one.public_key(), one.not_valid_before_utc, one.not_valid_after_utc
    return tuple(found)


def verified_leaf(chain_pem: bytes, root_pem: bytes, now: datetime) -> x509.Certificate:
    """Return the leaf certificate of a chain (leaf, issuing authority) if the chain ends at this root and is valid now.

    Raises:
        RefusedError: the chain is wrong; the message gives the reason.
    """
    chain, roots = certificates_in(chain_pem), certificates_in(root_pem)
    if len(roots) != 1 or len(chain) != 2:
        raise _refused("it is not one leaf and one issuing authority under one root")
    (root,), (leaf, issuing) = roots, chain
    _check_authority(root, path_length=1)
    _check_authority(issuing, path_length=0)
    for lower, upper in ((root, root), (issuing, root), (leaf, issuing)):
        try:
            lower.verify_directly_issued_by(upper)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as cause:
            raise _refused("one of its certificates is not signed by the next") from cause
        if not lower.not_valid_before_utc <= now <= lower.not_valid_after_utc:
            raise _refused(
                "one of its certificates is not valid now. "
                + outside(lower.not_valid_before_utc, lower.not_valid_after_utc, now).rstrip(".")
            )
    return leaf


def _check_authority(certificate: x509.Certificate, *, path_length: int) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except Exception as cause:  # the extension is missing, repeated or unreadable
        raise _refused("an authority in it does not state what it may sign") from cause
    if not (constraints.ca and constraints.path_length == path_length and usage.key_cert_sign):
        raise _refused("an authority in it may not sign the certificate below it")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate chain was refused: {reason}.",
        consequence="The chain was not stored, and the keys and certificates on this computer are unchanged.",
        remedy=f"{COMPARE_CLOCK} If the clock is right, ask the federation office which authority is correct.",
    )
