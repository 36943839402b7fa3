"""Checks that a certificate chain has exactly three certificates of one federation: leaf, issuing authority and root.

TLS makes the same check on every connection. This check is needed before a certificate is written to disk, and allows
only this one shape.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from host.clock_words import COMPARE_CLOCK, outside
from protos.errors import RefusedError

LARGEST_BYTES = 32 * 1024
MOST_ROOTS = 2


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

    During a change of the authority `root_pem` has two roots, and the chain ends at one of them.

    Raises:
        RefusedError: the chain is wrong; the message gives the reason.
    """
    chain, roots = certificates_in(chain_pem), certificates_in(root_pem)
    if not 0 < len(roots) <= MOST_ROOTS or len(chain) != 2:
        raise _refused("it is not one leaf and one issuing authority under one root")
    leaf, issuing = chain
    above = [root for root in roots if issuing.issuer == root.subject and has_signed(root, issuing)]
    root = above[0] if above else roots[0]
    _check_authority(root, path_length=1)
    _check_authority(issuing, path_length=0)
    for lower, upper in ((root, root), (issuing, root), (leaf, issuing)):
        try:
            lower.verify_directly_issued_by(upper)
        except (InvalidSignature, ValueError, TypeError) as cause:
            raise _refused("one of its certificates is not signed by the next") from cause
        if not lower.not_valid_before_utc <= now <= lower.not_valid_after_utc:
            raise _refused(
                "one of its certificates is not valid now. "
                + outside(lower.not_valid_before_utc, lower.not_valid_after_utc, now).rstrip(".")
            )
    return leaf


def trusted_after(trusted_pem: bytes, told_pem: bytes, now: datetime) -> bytes:
    """Return the root certificates (PEM) that a site trusts after it has received the coordinator's list of roots.

    A trusted root stays until the coordinator no longer names it and another trusted root is received. A new root is
    trusted only with a certificate for its key that a trusted root has signed. The coordinator cannot make one, because
    it does not have the root's key. `told_pem` has the received roots, and certificates by which one root signs the
    next. It may be empty. `now` is an aware time.

    Raises:
        RefusedError: the received data cannot be read, or no trusted root has signed the new one.
    """
    if not told_pem:
        return trusted_pem
    trusted, told = certificates_in(trusted_pem), certificates_in(told_pem)
    roots = [one for one in told if one.subject == one.issuer and has_signed(one, one)]
    kept = list(trusted)
    for root in roots:
        if root in kept:
            continue
        _check_authority(root, path_length=1)
        if not any(_vouches(old, paper, root, now) for old in trusted for paper in told):
            raise _refused("the trusted root has not signed the new root")
        kept.append(root)
    kept = [root for root in kept if root in roots] or kept
    return b"".join(root.public_bytes(serialization.Encoding.PEM) for root in kept[-MOST_ROOTS:])


def _vouches(old: x509.Certificate, paper: x509.Certificate, new: x509.Certificate, now: datetime) -> bool:
    # A change of the authority keeps the root's name, which no issuing certificate may have. Otherwise the certificate
    # of the issuing key, which the coordinator has, could sign a root that the coordinator made.
    is_for = paper.public_key() == new.public_key() and paper.subject == new.subject == old.subject
    is_valid = paper.not_valid_before_utc <= now <= paper.not_valid_after_utc
    return is_for and is_valid and paper.issuer == old.subject and has_signed(old, paper)


def has_signed(upper: x509.Certificate, lower: x509.Certificate) -> bool:
    """Return whether `lower` names `upper` as its issuer, and the key of `upper` has signed `lower`."""
    try:
        lower.verify_directly_issued_by(upper)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


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
