"""A site's long-term identity key (Ed25519), in one private directory of the process that signs.

identity.key is made here, never leaves and is never renewed. Its fingerprint is what plans list and what people
compare. The network process has no part in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki import store
from pki.signatures import identity_from_pem, new_identity_pem, public_bytes
from protos.errors import ConfigurationError
from protos.fingerprints import fingerprint

_NAME: Final = "identity.key"


def identity_key_path(directory: Path) -> Path:
    """Return the identity key's file, mode 0600."""
    return directory / _NAME


def has_identity_key(directory: Path) -> bool:
    """Return whether the key exists."""
    return identity_key_path(directory).exists()


def make_identity_key(directory: Path) -> Ed25519PrivateKey:
    """Create the key. Raises ConfigurationError if it exists."""
    store.make_private_directory(directory)
    store.write_secret(identity_key_path(directory), new_identity_pem(), replace=False)
    return read_identity_key(directory)


def read_identity_key(directory: Path) -> Ed25519PrivateKey:
    """Return the key. It is a secret.

    Raises:
        ConfigurationError: it is missing, open to other accounts, or no Ed25519 key.
    """
    place = identity_key_path(directory)
    key = identity_from_pem(store.read_secret(place))
    if key is None:
        raise _no_identity(place)
    return key


def identity_fingerprint(key: Ed25519PrivateKey) -> str:
    """Return the fingerprint of an identity key, as the site reads it to the federation office."""
    return fingerprint(public_bytes(key))


def _no_identity(path: Path) -> ConfigurationError:
    return ConfigurationError(
        what=f"{path} does not contain an Ed25519 key in PEM.",
        consequence="Nothing was signed and nothing was sent.",
        remedy="Restore it from its backup. A new identity key makes this a new site, and every plan must list it "
        "again.",
    )
