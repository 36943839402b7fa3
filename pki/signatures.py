"""Short statements signed with a site's identity key.

The identity key is a long-term Ed25519 key, made at the site and never issued by the authority:
what it signs, a dishonest coordinator cannot have said. Every statement begins with a label that
names its purpose and every part carries its length, so a signature made for one purpose, or over
parts cut at another place, is never valid for another.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protos.errors import RefusedError
from protos.plan.canonical import pack


def public_bytes(identity_key: Ed25519PrivateKey) -> bytes:
    """Return the raw public half of an identity key, 32 bytes."""
    return identity_key.public_key().public_bytes_raw()


def new_identity_pem() -> bytes:
    """Return a new identity key as unencrypted PKCS#8 PEM. It is a secret."""
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def identity_from_pem(pem: bytes) -> Ed25519PrivateKey | None:
    """Return the Ed25519 private key in a PEM, or None."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def sign(identity_key: Ed25519PrivateKey, label: str, *parts: bytes) -> bytes:
    """Sign a statement. Return 64 bytes."""
    return identity_key.sign(pack(label, *parts))


def verify(public_key: bytes, signature: bytes, label: str, *parts: bytes) -> None:
    """Check that this identity key signed this statement.

    Args:
        public_key: the raw Ed25519 public key, 32 bytes.
        signature: 64 bytes.
        label: the purpose, as it was signed.
        parts: what was signed, in the same order.

    Raises:
        RefusedError: the key is not a key, or the signature is not its signature.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, pack(label, *parts))
    except (InvalidSignature, ValueError) as cause:
        raise RefusedError(
            what=f"The signature of a statement ({label}) does not match its identity key.",
            consequence="The statement was refused, and nothing was changed or sent.",
            remedy="Compare the fingerprint of the site's identity key with the site by telephone.",
        ) from cause
