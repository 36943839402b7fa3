"""A chunk as bytes of the protocol, made with one copy of its body and read with none.

Nearly every byte of a run is a chunk's body, and a generated message copies it three times. So the 24
bytes before the body are written by hand here: protobuf's own encoding, with every field present and
every number padded to a fixed width, as its rules allow. Any reader of protobuf understands it, and
the body begins at a multiple of eight, where its integers can be added in place.

    tag length.4 | tag round.5 | tag attempt.3 | tag index.3 | tag length.4 | body
"""

from __future__ import annotations

from typing import Final

from protos.wire.messages import LARGEST_MESSAGE_BYTES, Chunk

_HEADER_BYTES: Final = 24
# Field numbers of Chunk in federation.proto, shifted past the kind: 0 is a number, 2 is bytes.
_ROUND, _ATTEMPT, _INDEX, _BODY = 1 << 3, 2 << 3, 3 << 3, 4 << 3 | 2


def encode_chunk(chunk: Chunk, field: int) -> bytes:
    """A message that holds nothing but a chunk.

    Args:
        chunk: what is sent.
        field: the number that chunks have in the message.

    Raises:
        ValueError: the body is larger than any message.
    """
    size = len(chunk.body)
    if size > LARGEST_MESSAGE_BYTES:
        raise ValueError("a chunk larger than any message")
    return b"".join((_header(field, chunk.round, chunk.attempt, chunk.index, size), chunk.body))


def decode_chunk(raw: bytes | memoryview, field: int) -> Chunk | None:
    """The chunk of a message that `encode_chunk` made, its body in place; None for any other bytes.

    Raises:
        MalformedMessage: it is such a message, with numbers that no chunk has.
    """
    if len(raw) < _HEADER_BYTES:
        return None
    number, attempt, index = _number(raw[6:11]), _number(raw[12:15]), _number(raw[16:19])
    # Encoded again and compared: so each tag, each width and both lengths are as they have to be.
    if raw[:_HEADER_BYTES] != _header(field, number, attempt, index, len(raw) - _HEADER_BYTES):
        return None
    return Chunk(number, attempt, index, memoryview(raw)[_HEADER_BYTES:])


def _header(field: int, number: int, attempt: int, index: int, size: int) -> bytes:
    return b"".join(
        (
            bytes((field << 3 | 2,)),
            _padded(size + _HEADER_BYTES - 5, 4),
            bytes((_ROUND,)),
            _padded(number, 5),
            bytes((_ATTEMPT,)),
            _padded(attempt, 3),
            bytes((_INDEX,)),
            _padded(index, 3),
            bytes((_BODY,)),
            _padded(size, 4),
        )
    )


def _padded(number: int, width: int) -> bytes:
    """Seven bits a byte, the lowest first; each byte but the last says that another follows."""
    head = (number >> 7 * place & 0x7F | 0x80 for place in range(width - 1))
    return bytes((*head, number >> 7 * (width - 1) & 0x7F))


def _number(padded: bytes | memoryview) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(padded))
