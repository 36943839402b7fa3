"""Encodes updates as integers of 16 bits, so that their sums are exact modulo 2**16.

Source: docs/privacy.md, "Short integers". A layer has one scale S = 2**e. With K sites an integer lies within plus or
minus 32767 / K - 1 before rounding, whatever the site's weight. So each sum fits, in any order. The rules:

* the scale of the next round follows from the sum that was announced: the largest power of two at which 64 times the
  largest sum of the layer fits. It is never coarser than the first, at which the plan's clipping range fits, and grows
  by few steps a round;
* values beyond the limit are clipped. The gate counts them in each layer, and sends a void if there are too many: sums
  of clipped values at scales of a coordinator's choice would show values of single sites. Eight bits are not offered,
  because they need ranges that clip;
* rounding is stochastic. The site's secret keys the draws, so a repeated round has the same bits;
* what rounding and clipping leave out is the residual. The site adds it to its next update (error feedback). It stays
  at the site.

Rounding is no noise of differential privacy, and hides nothing.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from protos.numbers.fixed_point import BLOCK, NotFinite

Float32: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.signedinteger]

WIDTHS: Final = {16: np.int16, 32: np.int32}
_HEADROOM: Final = 64.0  # so many times the largest sum fits; with 3, sites that differ clip one value of a hundred
# By how much an exponent grows from one round to the next, because means can vanish by chance. It grows more from the
# first round, whose range is only the plan's limit.
_MOST_FINER: Final = 2
_MOST_FROM_THE_FIRST: Final = 10
_FINEST: Final = 40  # the largest exponent, so that a layer without changes keeps a finite scale
_ZERO: Final = 128  # in the bytes of a message stands for the exponent 0
# A draw has ten bits: an integer below 2**14 and the draw then add up without rounding in float32.
_UNUSED_BITS: Final = 6
_DRAW: Final = np.float32(2.0**-10)
_ZEROS: Final = memoryview(bytes(2 * BLOCK))


def largest_integer(bits: int, sites: int) -> int:
    """Return the largest integer that one of the sites sends, before rounding. Rounding adds at most 1."""
    return ((1 << (bits - 1)) - 1) // sites - 1


def first_exponent(bits: int, sites: int, clipping_range: float) -> int:
    """Return the exponent of the finest scale at which no value within the clipping range is clipped."""
    return _floor_log2(largest_integer(bits, sites) / clipping_range)


def next_exponent(exponent: int, largest_sum: int, bits: int, sites: int, first: int) -> int:
    """Return a layer's exponent in the next round.

    Args:
        exponent: of this round.
        largest_sum: the largest absolute integer of the layer's sum.
        first: the exponent of the first round.
    """
    most = most_after(exponent, first)
    if largest_sum == 0:  # all means were below half a step
        return most
    room = sites * largest_integer(bits, sites) / (_HEADROOM * largest_sum)
    return max(first, min(exponent + _floor_log2(room), most))


def most_after(exponent: int, first: int) -> int:
    """Return the largest exponent that a layer can have in the round after this one."""
    return max(first, min(exponent + (_MOST_FROM_THE_FIRST if exponent == first else _MOST_FINER), _FINEST))


def pack_exponents(exponents: tuple[int, ...]) -> bytes:
    """Write exponents as the bytes of an offer, one for each layer."""
    return bytes(_ZERO + exponent for exponent in exponents)


def unpack_exponents(raw: bytes) -> tuple[int, ...]:
    """Read the bytes that `pack_exponents` wrote."""
    return tuple(byte - _ZERO for byte in raw)


def rounding_stream(key: bytes) -> CipherContext:
    """Return the stream of draws with which one update is rounded: AES-256-CTR from counter 0.

    Args:
        key: 32 bytes, for this update only.
    """
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def encode_short(
    values: Float32, residual: Float32, exponent: int, weight: float, limit: int, stream: CipherContext, out: Integers
) -> None:
    """Write the values and the residual as integers into `out`, and the new residual into `residual`.

    Args:
        values: float32 of shape (n,), of one layer.
        residual: float32 of shape (n,), what earlier updates left out. Changed in place.
        exponent: of the layer's scale.
        weight: above 0 and at most 1, rounded to float32.
        limit: see `largest_integer`.
        stream: see `rounding_stream`. Two bytes are taken for each value.
        out: integers of shape (n,).

    Raises:
        NotFinite: a value is infinite or not a number.
    """
    factor = np.float32(math.ldexp(1.0, exponent)) * np.float32(weight)
    most = np.float32(limit)
    scratch, second = (np.empty(min(BLOCK, values.size), np.float32) for _ in range(2))
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        rest, whole = residual[part], out[part]
        scaled, drawing = scratch[: rest.size], second[: rest.size]
        np.add(rest, values[part], out=rest)
        np.multiply(rest, factor, out=scaled)
        largest = max(float(scaled.max()), -float(scaled.min()))
        if not largest <= most:
            finite = np.isfinite(scaled)
            if not finite.all():
                raise NotFinite(start + int(np.argmin(finite)))
            np.clip(scaled, -most, most, out=scaled)
        drawn = np.frombuffer(stream.update(_ZEROS[: 2 * rest.size]), "<u2") >> _UNUSED_BITS
        np.multiply(drawn, _DRAW, out=drawing, casting="unsafe")
        np.add(scaled, drawing, out=scaled)
        np.floor(scaled, out=scaled)
        whole[...] = scaled
        np.divide(scaled, factor, out=scaled)
        np.subtract(rest, scaled, out=rest)


def _floor_log2(number: float) -> int:
    return math.frexp(number)[1] - 1
