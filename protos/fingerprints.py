"""Computes fingerprints of identity keys. A plan lists the fingerprints, and people read them aloud to each other.

They are base32 in lowercase, in groups of four. Base32 has no 0, 1, 8 or 9, so no letter is mistaken for a digit.
"""

from __future__ import annotations

import base64
import hashlib

_GROUP = 4


def fingerprint(public_key: bytes) -> str:
    """Return the fingerprint of an identity key: 160 bits of its SHA-256, as 8 groups of 4 characters.

    Args:
        public_key: the raw Ed25519 public key, 32 bytes.

    Raises:
        ValueError: the key does not have 32 bytes.
    """
    if len(public_key) != 32:
        raise ValueError("an Ed25519 public key has 32 bytes")
    return grouped(hashlib.sha256(public_key).digest()[:20])


def grouped(digest: bytes) -> str:
    """Convert a digest to base32 in groups of four. Raises ValueError for a size that is not a multiple of 5 bytes."""
    if not digest or len(digest) % 5:
        raise ValueError("base32 without padding needs a multiple of 5 bytes")
    return regrouped(base64.b32encode(digest).decode("ascii").lower())


def regrouped(text: str) -> str:
    """Put a hyphen after every four characters."""
    return "-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP))
