"""Encodes updates as integers of 8 or 16 bits, so that their sums are exact modulo 2**bits.

Source: docs/privacy.md, "Short integers". A layer has one scale S = 2**e. With K sites an integer lies within plus or
minus (2**(bits - 1) - 1) / K - 1 before rounding, whatever the site's weight. So each sum fits in any order. The rules:

* the scale of the next round follows from the sum that was announced: the largest power of two at which 64 times the
  largest sum of the layer fits, 8 times with 8 bits. It is never coarser than that of the plan's clipping range, and
  grows by few steps a round;
* values beyond the limit are clipped. The gate counts them in each layer, and sends a void if there are too many: sums
  of clipped values at scales of a coordinator's choice would show values of single sites. With 8 bits the site then
  divides its update of the layer by a power of two, and the next scale is coarser;
* rounding is stochastic. The site's secret keys the draws, so a repeated round has the same bits;
* what rounding, clipping and dividing leave out is the residual. The site adds it to its next update (error feedback).
  It stays at the site.

Rounding is no noise of differential privacy, and hides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from protos.numbers.fixed_point import BLOCK, NotFinite

Float32: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.signedinteger]

WIDTHS: Final = {8: np.int8, 16: np.int16, 32: np.int32}
_HEADROOM: Final = {8: 8.0, 16: 64.0}  # with 4 at 8 bits, the residuals of sites that differ grow from round to round
# By how much the first scale is finer than the clipping range's, at which 8 bits have steps larger than most updates.
_FINER_AT_FIRST: Final = {8: 10, 16: 0}
# By how much an exponent grows from one round to the next, because means can vanish by chance. It grows more from the
# coarsest scale, whose range is only the plan's limit.
_MOST_FINER: Final = 2
_MOST_FROM_THE_COARSEST: Final = 10
_FINEST: Final = 40  # the largest exponent, so that a layer without changes keeps a finite scale
_ZERO: Final = 128  # in the bytes of a message stands for the exponent 0
_DRAW: Final = np.float32(2.0**-8)  # an integer below 2**14 and a draw of 8 bits add up without rounding in float32
_ZEROS: Final = memoryview(bytes(BLOCK))


def largest_integer(bits: int, sites: int) -> int:
    """Return the largest integer that one of the sites sends, before rounding. Rounding adds at most 1."""
    return ((1 << (bits - 1)) - 1) // sites - 1


@dataclass(frozen=True)
class Scales:
    """The exponents of scales in a plan with so many bits and sites, and this clipping range."""

    bits: int
    sites: int
    clipping_range: float

    @property
    def coarsest(self) -> int:
        """Return the exponent of the finest scale at which no value within the clipping range is clipped."""
        return _floor_log2(largest_integer(self.bits, self.sites) / self.clipping_range)

    @property
    def first(self) -> int:
        """Return the exponent of each layer in the first round."""
        return self.coarsest + _FINER_AT_FIRST[self.bits]

    def next(self, exponent: int, largest_sum: int, shortened: int) -> int:
        """Return a layer's exponent after a round with this exponent and largest absolute integer in the layer's sum.

        `shortened` is the number of sites that divided their update of the layer.
        """
        most = max(self.coarsest, exponent - 1) if shortened else self.most_after(exponent)
        if largest_sum == 0:  # all means were below half a step
            return most
        room = self.sites * largest_integer(self.bits, self.sites) / (_HEADROOM[self.bits] * largest_sum)
        return max(self.coarsest, min(exponent + _floor_log2(room), most))

    def most_after(self, exponent: int) -> int:
        """Return the largest exponent that a layer can have in the round after this one."""
        grown = exponent + (_MOST_FROM_THE_COARSEST if exponent == self.coarsest else _MOST_FINER)
        return max(self.coarsest, min(grown, _FINEST))


def pack_exponents(exponents: tuple[int, ...]) -> bytes:
    """Write exponents as the bytes of an offer, one for each layer."""
    return bytes(_ZERO + exponent for exponent in exponents)


def unpack_exponents(raw: bytes) -> tuple[int, ...]:
    """Read the bytes that `pack_exponents` wrote."""
    return tuple(byte - _ZERO for byte in raw)


def rounding_stream(key: bytes) -> CipherContext:
    """Return the stream of draws for one update: AES-256-CTR from counter 0, by a key of 32 bytes for this update."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def encode_short(
    values: Float32, residual: Float32, factor: np.float32, limit: int, most_clipped: int, stream: CipherContext,
    out: Integers,
) -> bool:  # fmt: skip
    """Write the values and the residual as integers into `out`. Return whether they were divided before.

    Args:
        values: float32 of shape (n,), of one layer.
        residual: float32 of shape (n,), what earlier updates left out. Changed in place to what this one leaves out.
        factor: the layer's scale times the site's weight.
        limit: see `largest_integer`.
        most_clipped: how many integers may lie at the limit.
        stream: see `rounding_stream`. One byte is taken for each value.
        out: integers of shape (n,).

    Raises:
        NotFinite: a value is infinite or not a number.
    """
    largest = 0.0
    blocks = [slice(start, start + BLOCK) for start in range(0, values.size, BLOCK)]
    for block in blocks:
        rest = np.add(residual[block], values[block], out=residual[block])
        found = max(float(rest.max()), -float(rest.min()))
        if not found * float(factor) < 2.0**127:  # also of float32
            raise NotFinite
        largest = max(largest, found)
    sent = factor
    while largest * float(sent) > limit - 1 and most_clipped < sum(
        np.count_nonzero(np.abs(residual[block]) * sent > limit - 1) for block in blocks
    ):
        sent /= np.float32(2)
    scratch, second = (np.empty(min(BLOCK, values.size), np.float32) for _ in range(2))
    for block in blocks:
        rest = residual[block]
        scaled = np.multiply(rest, sent, out=scratch[: rest.size])
        if largest * float(sent) > limit - 1:
            np.clip(scaled, -limit, limit, out=scaled)
        drawn = np.frombuffer(stream.update(_ZEROS[: rest.size]), np.uint8)
        np.add(scaled, np.multiply(drawn, _DRAW, out=second[: rest.size], dtype=np.float32), out=scaled)
        out[block] = np.floor(scaled, out=scaled)
        np.subtract(rest, np.divide(scaled, factor, out=scaled), out=rest)
    return bool(sent < factor)


def _floor_log2(number: float) -> int:
    return math.frexp(number)[1] - 1
