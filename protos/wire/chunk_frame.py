"""Encodes a chunk by copying its body once, and decodes a chunk without copying its body.

Most bytes of a run are bodies of chunks, and a generated message copies a body three times. So this file writes the 24
bytes before the body itself, in protobuf's encoding. Every field is present and every number is padded to a fixed
width, which protobuf allows. The body begins at a multiple of eight, so its integers can be added in place.

    tag length.4 | tag round.5 | tag attempt.3 | tag index.3 | tag length.4 | body
"""

from __future__ import annotations

from typing import Final

from protos.wire.messages import LARGEST_MESSAGE_BYTES, Chunk

_HEADER_BYTES: Final = 24
# Field numbers of Chunk in federation.proto, shifted past the kind: 0 is a number, 2 is bytes.
_ROUND, _ATTEMPT, _INDEX, _BODY = 1 << 3, 2 << 3, 3 << 3, 4 << 3 | 2


def encode_chunk(chunk: Chunk, field: int) -> bytes:
    """Encode a message that contains only a chunk.

    Args:
        field: the field number of chunks in the message.

    Raises:
        ValueError: the body is larger than any message.
    """
    return b"".join((chunk_header(chunk, field), chunk.body))


def chunk_header(chunk: Chunk, field: int) -> bytes:
    """Return the bytes before the body in a message that contains only a chunk. The body is not copied."""
    size = len(chunk.body)
    if size > LARGEST_MESSAGE_BYTES:
        raise ValueError("a chunk larger than any message")
    return _header(field, chunk.round, chunk.attempt, chunk.index, size)


def decode_chunk(raw: bytes | memoryview, field: int) -> Chunk | None:
    """Decode a message from `encode_chunk`, without a copy of the body. Return None for any other bytes.

    Raises:
        MalformedMessage: the message has numbers that no chunk has.
    """
    if len(raw) < _HEADER_BYTES:
        return None
    number, attempt, index = _number(raw[6:11]), _number(raw[12:15]), _number(raw[16:19])
    # The numbers are encoded again and compared, so each tag, each width and both lengths are correct.
    if raw[:_HEADER_BYTES] != _header(field, number, attempt, index, len(raw) - _HEADER_BYTES):
        return None
    return Chunk(number, attempt, index, memoryview(raw)[_HEADER_BYTES:])


def _header(field: int, number: int, attempt: int, index: int, size: int) -> bytes:
    """Encode the header. Numbers have a fixed width of seven bits a byte, the lowest first.

    Each byte of a number but the last marks that another follows. There is no loop, because every chunk needs the
    header twice.
    """
    rest = size + _HEADER_BYTES - 5
    return bytes(
        (
            field << 3 | 2, rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14 & 127 | 128, rest >> 21 & 127,
            _ROUND, number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21 & 127 | 128,
            number >> 28 & 127,
            _ATTEMPT, attempt & 127 | 128, attempt >> 7 & 127 | 128, attempt >> 14 & 127,
            _INDEX, index & 127 | 128, index >> 7 & 127 | 128, index >> 14 & 127,
            _BODY, size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21 & 127,
        )
    )  # fmt: skip


def _number(padded: bytes | memoryview) -> int:
    number = 0
    for byte in reversed(padded):
        number = number << 7 | byte & 127
    return number
