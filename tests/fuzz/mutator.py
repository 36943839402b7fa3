"""Inputs that are almost correct. Each follows from a seed and its examples."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

LARGEST_BYTES = 1 << 16
# Ends of the ranges in which numbers are written, and one beyond.
_NUMBERS = tuple((1 << width) + by for width in (7, 8, 15, 16, 31, 32, 63, 64) for by in (-1, 0, 1))
_WORDS = (
    b"", b"-1", b"0", b"1e999", b"-0.0", b".nan", b".inf", b"1_000", b"0x1F", b"null", b"true", b"off", b"~", b"{}",
    b"[]",
    b"&a ", b"*a", b"!!python/object:os.system ", b"<<: ", b"? ", b": ", b"- ", b"\n", b"\n  ", b"\t", b"\x00", b"\xff",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u202e".encode(), b'"', b"'", b"\\u0000", b"\\ud800", b"[" * 40, b"{" * 40,
    b"9" * 5000, b"[[[[[[[[", b"}}", b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n", b"#", b"%",
    b"---\n",
)  # fmt: skip
_PIECE = re.compile(rb"[0-9]+|[A-Za-z_-]+|\s+|[^0-9A-Za-z_\s-]")

Mutation = Callable[[random.Random, bytearray], None]


def _place(luck: random.Random, raw: bytearray) -> tuple[int, int]:
    """The start and end of a piece of at most 64 bytes."""
    begin = luck.randrange(len(raw) + 1)
    return begin, min(len(raw), begin + luck.choice((1, 1, 2, 4, 8, 16, 64)))


def _flip(luck: random.Random, raw: bytearray) -> None:
    if raw:
        raw[luck.randrange(len(raw))] ^= 1 << luck.randrange(8)


def _replace(luck: random.Random, raw: bytearray) -> None:
    if raw:
        raw[luck.randrange(len(raw))] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))


def _remove(luck: random.Random, raw: bytearray) -> None:
    begin, end = _place(luck, raw)
    del raw[begin:end]


def _repeat(luck: random.Random, raw: bytearray) -> None:
    begin, end = _place(luck, raw)
    raw[begin:begin] = raw[begin:end] * luck.choice((1, 1, 2, 30))


def _move(luck: random.Random, raw: bytearray) -> None:
    begin, end = _place(luck, raw)
    piece = raw[begin:end]
    del raw[begin:end]
    at = luck.randrange(len(raw) + 1)
    raw[at:at] = piece


def _cut(luck: random.Random, raw: bytearray) -> None:
    del raw[luck.randrange(len(raw) + 1) :]


def _write_number(luck: random.Random, raw: bytearray) -> None:
    width = luck.choice((1, 2, 4, 8))
    number = luck.choice(_NUMBERS) & (1 << 8 * width) - 1
    at = luck.randrange(len(raw) + 1)
    raw[at : at + width] = number.to_bytes(width, luck.choice(("little", "big")))


def _write_padded(luck: random.Random, raw: bytearray) -> None:
    """A number as protobuf writes it, seven bits a byte, now and then longer than it may be."""
    number, written = luck.choice(_NUMBERS), bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    at = luck.randrange(len(raw) + 1)
    raw[at : at + luck.randrange(6)] = written


def _write_word(luck: random.Random, raw: bytearray) -> None:
    begin, end = _place(luck, raw)
    raw[begin : luck.choice((begin, end))] = luck.choice(_WORDS)


def _exchange_pieces(luck: random.Random, raw: bytearray) -> None:
    """Words, numbers and signs of a text change places, go or come twice."""
    pieces = _PIECE.findall(bytes(raw))
    if not pieces:
        return
    one, other = luck.randrange(len(pieces)), luck.randrange(len(pieces))
    match luck.randrange(4):
        case 0:
            pieces[one], pieces[other] = pieces[other], pieces[one]
        case 1:
            pieces[one] = luck.choice(_WORDS)
        case 2:
            pieces[one] = str(luck.choice(_NUMBERS) * luck.choice((1, -1))).encode()
        case _:
            pieces[one] = pieces[other]
    raw[:] = b"".join(pieces)


_BINARY: tuple[Mutation, ...] = (_flip, _replace, _remove, _repeat, _move, _cut, _write_number, _write_padded)
_TEXT: tuple[Mutation, ...] = (*_BINARY[:6], _write_word, _write_word, *([_exchange_pieces] * 6))


def mutated(luck: random.Random, examples: Sequence[bytes], *, is_text: bool) -> bytes:
    """One of the examples, changed a few times, sometimes with another one's end."""
    raw = bytearray(luck.choice(examples))
    if luck.random() < 0.1:
        other = luck.choice(examples)
        raw[luck.randrange(len(raw) + 1) :] = other[luck.randrange(len(other) + 1) :]
    for _ in range(luck.choice((1, 1, 1, 2, 3, 6))):
        luck.choice(_TEXT if is_text else _BINARY)(luck, raw)
    return bytes(raw[:LARGEST_BYTES])
