"""Encrypts the stored root key of the certificate authority with a passphrase.

scrypt (n = 2 ** 17, r = 8, p = 1: 128 MiB of memory for each guess) derives the key of AES-256-GCM. Encrypted PKCS#8 is
not used, because one graphics card tries several hundred thousand of its passphrases a second.
"""

from __future__ import annotations

import base64
import binascii
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pki import strict_json
from protos.errors import ConfigurationError, RefusedError

SHORTEST_PASSPHRASE = 12

_FORMAT = "global-layers sealed key 1"
_COST = 2**17
_FUNCTION = "scrypt n=131072 r=8 p=1, then AES-256-GCM"
_SALT_BYTES, _NONCE_BYTES = 16, 12


def seal(secret: bytes, passphrase: str) -> bytes:
    """Encrypt a secret, to new bytes each time. Raises ConfigurationError for a passphrase below 12 characters."""
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise ConfigurationError(
            what=f"The passphrase has fewer than {SHORTEST_PASSPHRASE} characters.",
            consequence="Nothing was written.",
            remedy="Choose a longer passphrase, such as five words drawn by dice, and keep the passphrase apart from "
            "the file.",
        )
    salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
    # A new salt gives a new key, so one nonce is never used twice with one key.
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, secret, _header())
    return strict_json.encode(
        {
            "format": _FORMAT,
            "function": _FUNCTION,
            "salt": base64.b64encode(salt).decode(),
            "nonce": base64.b64encode(nonce).decode(),
            "sealed": base64.b64encode(sealed).decode(),
        }
    )


def unseal(container: bytes, passphrase: str) -> bytes:
    """Decrypt the secret in a container that was encrypted with this passphrase.

    Raises:
        ConfigurationError: the bytes are not a container of this format.
        RefusedError: the passphrase is wrong, or a byte was changed. The two cannot be distinguished.
    """
    kinds: dict[str, strict_json.Kind] = dict.fromkeys(("format", "function", "salt", "nonce", "sealed"), str)
    fields = strict_json.decode(container, kinds=kinds, subject="sealed key")
    # The cost is a constant, not read from the file, so a hostile file cannot require a terabyte of memory.
    if (fields["format"], fields["function"]) != (_FORMAT, _FUNCTION):
        raise _unusable()
    try:
        salt, nonce, sealed = (
            base64.b64decode(str(fields[name]), validate=True) for name in ("salt", "nonce", "sealed")
        )
    except (binascii.Error, ValueError) as cause:
        raise _unusable() from cause
    if len(salt) != _SALT_BYTES or len(nonce) != _NONCE_BYTES:
        raise _unusable()
    try:
        return AESGCM(_key(passphrase, salt)).decrypt(nonce, sealed, _header())
    except InvalidTag as cause:
        raise RefusedError(
            what="The passphrase is wrong, or the file with the sealed key was changed.",
            consequence="The key remains sealed and nothing was written.",
            remedy="Try the passphrase again. If the passphrase is certainly right, restore the file from its backup.",
        ) from cause


def new_passphrase() -> str:
    """Return a passphrase of 130 random bits, in groups that can be copied by hand."""
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    groups = ("".join(secrets.choice(letters) for _ in range(length)) for length in (5, 5, 5, 5, 6))
    return "-".join(groups)


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_COST, r=8, p=1).derive(passphrase.encode("utf-8"))


def _header() -> bytes:
    return f"{_FORMAT}\n{_FUNCTION}".encode("ascii")


def _unusable() -> ConfigurationError:
    return ConfigurationError(
        what="This is a sealed key in a format that this version cannot read.",
        consequence="The key remains sealed and nothing was written.",
        remedy="Use the file root.key.sealed from `pki init`, or the version of the program that wrote the file.",
    )
