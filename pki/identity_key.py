"""A site's long-term identity key (Ed25519), in one private directory of the process that signs.

identity.key is made here, never leaves and is never renewed. Its fingerprint is what plans list and what people
compare. The network process has no part in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki import store
from pki.signatures import public_bytes
from protos.errors import ConfigurationError
from protos.fingerprints import fingerprint

_NAME: Final = "identity.key"


def identity_key_path(directory: Path) -> Path:
    """The identity key's file, mode 0600."""
    return directory / _NAME


def has_identity_key(directory: Path) -> bool:
    """Whether the key is there."""
    return identity_key_path(directory).exists()


def make_identity_key(directory: Path) -> Ed25519PrivateKey:
    """Make the key; a ConfigurationError where it exists."""
    store.make_private_directory(directory)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    store.write_secret(identity_key_path(directory), pem, replace=False)
    return read_identity_key(directory)


def read_identity_key(directory: Path) -> Ed25519PrivateKey:
    """The key; a secret.

    Raises:
        ConfigurationError: it is missing, open to other accounts, or no Ed25519 key.
    """
    place = identity_key_path(directory)
    try:
        key = serialization.load_pem_private_key(store.read_secret(place), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise _no_identity(place) from cause
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_identity(place)
    return key


def identity_fingerprint(key: Ed25519PrivateKey) -> str:
    """The fingerprint of an identity key, as the site reads it to the federation office."""
    return fingerprint(public_bytes(key))


def _no_identity(path: Path) -> ConfigurationError:
    return ConfigurationError(
        what=f"{path} does not hold an Ed25519 key in PEM.",
        consequence="Nothing was signed and nothing was sent.",
        remedy="Restore it from its backup. A new identity key makes this a new site, which every plan must list.",
    )
