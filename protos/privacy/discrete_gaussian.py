"""Draws exact samples of the discrete Gaussian distribution, for the noise that a site adds to its integers.

P(X = x) is proportional to exp(-x^2 / (2 variance)) over the integers. The rules:

* every decision is exact: a floating-point number decides only if its error cannot change the result;
* all randomness comes from the caller's source of bytes, which is the operating system's outside of tests;
* the sampler stores and writes nothing.

Source: Canonne, Kamath, Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, algorithms 1 to 3.
Three things differ. The scale t of the discrete Laplace is the power of two nearest sigma, so a uniform number below t
is a few random bits. The distribution of the result is the same for every t. Numbers exp(-gamma) are compared with a
uniform number, whose bits are drawn only as far as needed. The paper uses algorithm 1 for this. One uniform number also
decides all tosses of the coin of probability exp(-1).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
RandomBytes: TypeAlias = Callable[[int], bytes]

LARGEST_VARIANCE: Final = 1 << 90
# A gamma is computed in float64 from |x| below 2**52 and the variance. If exp(-gamma) is above 1e-11, gamma is below
# 26, its error below 26 * 2**-48, and so is the error of exp(-gamma). Otherwise exp(-gamma) itself is that small.
_TOLERANCE: Final = 1e-11
_COARSE_BITS: Final = 32
_CHANCES: Final = np.exp(-np.arange(25.0, 0.0, -1.0))  # exp(-25) to exp(-1), rising


def discrete_gaussian(count: int, variance: int, random_bytes: RandomBytes) -> Integers:
    """Draw independent samples of the discrete Gaussian distribution.

    Args:
        variance: sigma^2 of the continuous Gaussian of this shape, from 1 to LARGEST_VARIANCE.
        random_bytes: a function that returns this many independent, uniform bytes; `os.urandom` outside tests.

    Returns:
        int64 of shape (count,).

    Raises:
        ValueError: the variance is out of range.
    """
    if not 1 <= variance <= LARGEST_VARIANCE:
        raise ValueError(f"the variance of the noise is {variance}, and it lies between 1 and 2**90")
    scale_bits = variance.bit_length() // 2  # the power of two nearest to sigma keeps most samples
    centre = Fraction(variance, 1 << scale_bits)
    found: list[Integers] = []
    missing = count
    while missing > 0:
        drawn = _of_laplace(5 * missing // 2 + 64, scale_bits, random_bytes)
        distance = np.abs(drawn).astype(np.float64) - float(centre)
        gammas = distance / float(variance) * distance / 2.0

        def exactly(place: int, values: Integers = drawn) -> Fraction:
            return (abs(int(values[place])) - centre) ** 2 / (2 * variance)

        kept = drawn[_accepted(gammas, exactly, random_bytes)][:missing]
        found.append(kept)
        missing -= len(kept)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _of_laplace(count: int, scale_bits: int, random_bytes: RandomBytes) -> Integers:
    """Draw about count / 2 samples of the discrete Laplace distribution of scale 2**scale_bits (algorithm 2)."""
    words = _words(count, "<u8", random_bytes)
    low = (words >> np.uint64(64 - scale_bits)).astype(np.int64) if scale_bits else np.zeros(count, np.int64)
    is_negative = (words & np.uint64(1)).astype(bool)  # a different bit from those of `low`, which are the highest
    scale = 1 << scale_bits
    kept = _accepted(low / scale, lambda place: Fraction(int(low[place]), scale), random_bytes)
    low, is_negative = low[kept], is_negative[kept]
    magnitude = low + (_geometric(len(low), random_bytes) << scale_bits)
    is_second_zero = is_negative & (magnitude == 0)
    signed = np.where(is_negative, -magnitude, magnitude)
    return np.asarray(signed[~is_second_zero], np.int64)


def _geometric(count: int, random_bytes: RandomBytes) -> Integers:
    """Return how often a coin of probability exp(-1) shows heads before tails.

    This equals how many of exp(-1), exp(-2), ... are above one uniform number.
    """
    coarse = _words(count, "<u4", random_bytes)
    lowest = coarse / 2.0**_COARSE_BITS
    ends = [lowest + (2.0**-_COARSE_BITS + _TOLERANCE), lowest - _TOLERANCE]
    places: Integers = len(_CHANCES) - np.searchsorted(_CHANCES, ends)
    heads, most = places
    for place in np.flatnonzero((heads < most) | (most == len(_CHANCES))):
        uniform = _Uniform(int(coarse[place]), random_bytes)
        while uniform.is_below(Fraction(int(heads[place]) + 1)):
            heads[place] += 1
    return np.asarray(heads)


def _accepted(
    gammas: npt.NDArray[np.float64], exactly: Callable[[int], Fraction], random_bytes: RandomBytes
) -> npt.NDArray[np.bool_]:
    """Return for each gamma True with probability exp(-gamma).

    Args:
        gammas: not negative, float64 of shape (count,), close to the exact ones.
        exactly: a function that returns the exact gamma at an index.
    """
    coarse = _words(len(gammas), "<u4", random_bytes)
    lowest, chances = coarse / 2.0**_COARSE_BITS, np.exp(-gammas)
    is_below = lowest + 2.0**-_COARSE_BITS <= chances - _TOLERANCE
    is_open = ~is_below & (lowest < chances + _TOLERANCE)
    for place in np.flatnonzero(is_open):
        is_below[place] = _Uniform(int(coarse[place]), random_bytes).is_below(exactly(int(place)))
    return np.asarray(is_below)


class _Uniform:
    """A uniform number below 1. Further bits are drawn only if a comparison needs them."""

    def __init__(self, coarse: int, random_bytes: RandomBytes) -> None:
        """Store the first bits of the uniform number, `coarse`."""
        self._first, self._bits, self._random_bytes = coarse, _COARSE_BITS, random_bytes

    def is_below(self, gamma: Fraction) -> bool:
        """Return whether the number is below exp(-gamma)."""
        while True:
            digits = 24 + self._bits * 5 // 16  # 34 for the first bits, and 20 more for each further 64
            context = Context(prec=digits)
            rounded = context.divide(Decimal(gamma.numerator), Decimal(gamma.denominator))
            chance = Fraction(context.exp(-rounded))
            # Decimal rounds both operations correctly, so the error is below this for every gamma below 10**4.
            error = Fraction(1, 10 ** (digits - 6))
            if Fraction(self._first + 1, 1 << self._bits) <= chance - error:
                return True
            if Fraction(self._first, 1 << self._bits) >= chance + error:
                return False
            self._first = self._first << 64 | int.from_bytes(self._random_bytes(8), "little")
            self._bits += 64


def _words(count: int, kind: str, random_bytes: RandomBytes) -> npt.NDArray[Any]:
    return np.frombuffer(random_bytes(np.dtype(kind).itemsize * count), kind)
