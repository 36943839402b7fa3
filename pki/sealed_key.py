"""Encrypts the stored root key of the certificate authority with a passphrase.

scrypt (n = 2 ** 17, r = 8, p = 1: 128 MiB of memory for each guess) derives the key of AES-256-GCM. Encrypted PKCS#8 is
not used, because one graphics card tries several hundred thousand of its passphrases a second.
"""

from __future__ import annotations

import base64
import secrets
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from protos.errors import ConfigurationError, RefusedError
from protos.plan.documents import Document, parse_document

SHORTEST_PASSPHRASE = 12

_FORMAT: Final = "global-layers sealed key 1"
_COST = 2**17
_FUNCTION: Final = "scrypt n=131072 r=8 p=1, then AES-256-GCM"


class _File(Document):
    """The file with the sealed key: salt (16 bytes), nonce (12 bytes) and ciphertext, as base64."""

    format: Literal["global-layers sealed key 1"] = _FORMAT
    function: Literal["scrypt n=131072 r=8 p=1, then AES-256-GCM"] = _FUNCTION
    salt: str
    nonce: str
    sealed: str


def seal(secret: bytes, passphrase: str) -> bytes:
    """Encrypt a secret, to new bytes each time. Raises ConfigurationError for a passphrase below 12 characters."""
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise ConfigurationError(
            what=f"The passphrase has fewer than {SHORTEST_PASSPHRASE} characters.",
            consequence="Nothing was written.",
            remedy="Choose a longer passphrase, such as five words drawn by dice, and keep the passphrase apart from "
            "the file.",
        )
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    # A new salt gives a new key, so one nonce is never used twice with one key.
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, secret, _header())
    salt_text, nonce_text, text = (base64.b64encode(part).decode() for part in (salt, nonce, sealed))
    content = _File(salt=salt_text, nonce=nonce_text, sealed=text)
    return content.model_dump_json(indent=2).encode()


def unseal(container: bytes, passphrase: str) -> bytes:
    """Decrypt the secret in a container that was encrypted with this passphrase.

    Raises:
        ConfigurationError: the bytes are not a container of this format.
        RefusedError: the passphrase is wrong, or a byte was changed. The two cannot be distinguished.
    """
    # The cost is a constant, not read from the file, so a hostile file cannot require a terabyte of memory.
    found = parse_document(container, _File, source="The sealed key", consequence="It remains sealed.")
    try:
        salt, nonce, sealed = (
            base64.b64decode(part, validate=True) for part in (found.salt, found.nonce, found.sealed)
        )
        return AESGCM(_key(passphrase, salt)).decrypt(nonce, sealed, _header())
    except (InvalidTag, ValueError) as cause:
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
