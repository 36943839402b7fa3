"""Whether a certificate chain is exactly leaf, issuing authority, root of one federation.

TLS makes the same check on every connection. This one is made before a certificate is written to
disk, where no connection exists yet, and it allows this one shape only.
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from protos.errors import RefusedError

LARGEST_BYTES = 32 * 1024


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM, at least one; a RefusedError where it cannot be read."""
    if len(pem) > LARGEST_BYTES:
        raise _refused(f"it has more than {LARGEST_BYTES} bytes")
    try:
        return x509.load_pem_x509_certificates(pem)
    except Exception as cause:  # the parser of hostile bytes raises several kinds, none of which may pass
        raise _refused("it cannot be read") from cause


def verified_leaf(chain_pem: bytes, root_pem: bytes, now: datetime) -> x509.Certificate:
    """The leaf of a chain (leaf, then issuing authority) that ends at this root and is valid now.

    Raises:
        RefusedError: anything about the chain is otherwise; the message says what.
    """
    chain, roots = certificates_in(chain_pem), certificates_in(root_pem)
    if len(roots) != 1 or len(chain) != 2:
        raise _refused("it is not one leaf and one issuing authority under one root")
    (leaf, issuing), root = chain, roots[0]
    _check_authority(root, path_length=1)
    _check_authority(issuing, path_length=0)
    for lower, upper in ((root, root), (issuing, root), (leaf, issuing)):
        try:
            lower.verify_directly_issued_by(upper)
        except (InvalidSignature, ValueError, TypeError) as cause:
            raise _refused("one of its certificates is not signed by the next") from cause
        if not lower.not_valid_before_utc <= now <= lower.not_valid_after_utc:
            raise _refused(
                f"one of its certificates is valid only from {lower.not_valid_before_utc:%Y-%m-%d %H:%M} "
                f"to {lower.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            )
    return leaf


def _check_authority(certificate: x509.Certificate, *, path_length: int) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except Exception as cause:  # a missing, repeated or unreadable extension, each its own kind
        raise _refused("an authority in it does not say what it may sign") from cause
    if not (constraints.ca and constraints.path_length == path_length and usage.key_cert_sign):
        raise _refused("an authority in it may not sign what stands below it")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate chain was refused: {reason}.",
        consequence="It was not stored, and the keys and certificates on this computer are unchanged.",
        remedy="Check this computer's clock, then ask the federation office which authority is the right one.",
    )
