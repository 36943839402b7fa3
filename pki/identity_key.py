"""Makes identity keys (Ed25519), and signs and verifies statements with these keys.

An identity key is long-term, in a private directory of the process that signs. It never leaves, is never renewed and is
never issued by the authority. Plans list its fingerprint, and people compare it. So a dishonest coordinator cannot make
a statement of a site. Every statement begins with a label for its purpose, and every part has its length. So a
signature for one purpose or division into parts is never valid for another.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from host import secret_files
from protos.errors import ConfigurationError, RefusedError
from protos.fingerprints import fingerprint, regrouped
from protos.plan.canonical import pack

IDENTITY_KEY: Final = "identity.key"  # the name of the file


def identity_key_path(directory: Path) -> Path:
    """Return the path of the file with the identity key, mode 0600."""
    return directory / IDENTITY_KEY


def has_identity_key(directory: Path) -> bool:
    """Return whether the identity key exists."""
    return identity_key_path(directory).exists()


def make_identity_key(directory: Path) -> Ed25519PrivateKey:
    """Create the identity key. Raises ConfigurationError if it exists."""
    secret_files.make_private_directory(directory)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    secret_files.write_secret(identity_key_path(directory), pem, replace=False)
    return read_identity_key(directory)


def read_identity_key(directory: Path) -> Ed25519PrivateKey:
    """Return the secret key. Raises ConfigurationError if it is missing, open to other accounts, or no Ed25519 key."""
    place = identity_key_path(directory)
    try:
        key = serialization.load_pem_private_key(secret_files.read_secret(place), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise _no_identity(place) from cause
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_identity(place)
    return key


def identity_fingerprint(key: Ed25519PrivateKey) -> str:
    """Return the fingerprint of an identity key, which the site reads aloud to the federation office."""
    return fingerprint(public_bytes(key))


def is_same_fingerprint(typed: str, expected: str) -> bool:
    """Return whether a person typed the expected fingerprint, ignoring case, spaces and hyphens.

    A shortened fingerprint is a different one. The comparison takes constant time.
    """
    return hmac.compare_digest(_bare(typed).encode(), _bare(expected).encode())


def differing_fingerprints(site: str, typed: str, recorded: str) -> RefusedError:
    """Return the error that shows the typed fingerprint and the recorded fingerprint."""
    return RefusedError(
        what=f"The typed fingerprint differs from the key in the request of {site}. You typed "
        f"{regrouped(_bare(typed))}. The fingerprint of the key is {recorded}.",
        consequence="The site was not approved. No certificate was issued and no data was sent.",
        remedy=f"Call {site} at a telephone number that you had before, and let a person read the fingerprint of "
        f"`site-agent identity` aloud. If it is not {recorded}, someone else used the invitation: run `pki revoke "
        f"{site}` and `pki invite {site}`.",
    )


def public_bytes(identity_key: Ed25519PrivateKey) -> bytes:
    """Return the raw public key of an identity key pair, 32 bytes."""
    return identity_key.public_key().public_bytes_raw()


def sign(identity_key: Ed25519PrivateKey, label: str, *parts: bytes) -> bytes:
    """Sign a statement with an identity key. Return 64 bytes."""
    return identity_key.sign(pack(label, *parts))


def verify(public_key: bytes, signature: bytes, label: str, *parts: bytes) -> None:
    """Check that an identity key (32 raw bytes) signed this statement, with a signature of 64 bytes.

    Raises:
        RefusedError: the public key is no key, or its signature is not valid.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, pack(label, *parts))
    except (InvalidSignature, ValueError) as cause:
        raise RefusedError(
            what=f"The signature of a statement ({label}) does not match its identity key.",
            consequence="The statement was refused, and nothing was changed or sent.",
            remedy="Call the site. Ask the site to read out the fingerprint of its identity key. Compare this "
            "fingerprint with the fingerprint that you have.",
        ) from cause


def _no_identity(path: Path) -> ConfigurationError:
    return ConfigurationError(
        what=f"{path} does not contain an Ed25519 key in PEM.",
        consequence="Nothing was signed and nothing was sent.",
        remedy="Restore the key file from its backup. If a site gets a new identity key, every plan must list "
        "the new key.",
    )


def _bare(text: str) -> str:
    return "".join(text.split()).replace("-", "").lower()
