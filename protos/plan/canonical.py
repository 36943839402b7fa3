"""Encodes fields as unambiguous bytes that both programs hash, sign and derive keys from.

Every digest covers its fields with their lengths, and a label that names its purpose. So no two statements have the
same encoding.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, assert_never

PROTOCOL: Final = "global-layers/1"
_LENGTH: Final = struct.Struct("<Q")
_START: Final = _LENGTH.pack(len(PROTOCOL)) + PROTOCOL.encode()


def pack(purpose: str, *fields: bytes | str | int) -> bytes:
    """Join the protocol's label and the fields into bytes, each after its length in eight little-endian bytes.

    Text is UTF-8 and a number is signed, 64 bits, little-endian.

    Raises:
        struct.error: a number needs more than 64 bits.
    """
    parts = [_START]
    for field in (purpose, *fields):
        # The most frequent types need no call.
        part = field if type(field) is bytes else field.encode() if type(field) is str else _as_bytes(field)
        parts += (_LENGTH.pack(len(part)), part)
    return b"".join(parts)


def digest(purpose: str, *fields: bytes | str | int) -> bytes:
    """Return the SHA-256 of the packed fields, 32 bytes."""
    return hashlib.sha256(pack(purpose, *fields)).digest()


def _as_bytes(field: bytes | str | int) -> bytes:
    match field:
        case str():
            return field.encode()
        case int():
            return struct.pack("<q", field)
        case bytes():
            return field
        case _:
            assert_never(field)
