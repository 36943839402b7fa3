"""Encodes real numbers as 32-bit integers, so that sums are exact.

Source: docs/privacy.md, "Integers". K sites contribute, each value is clipped to C, and the scale S is the
largest power of two with S * C <= floor((2**31 - 1) / K). Then every sum over K sites is within plus or minus 2**31 -
1, so arithmetic modulo 2**32 keeps it in any order. S is a power of two, so decoding is exact: adding 1 for n rounds
gives exactly n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 16  # numbers processed at once: three float32 blocks fit into a core's own cache


def is_power_of_two(number: float) -> bool:
    """Return whether a number is 2**n for a whole number n, which may be negative."""
    return number > 0 and math.isfinite(number) and math.frexp(number)[0] == 0.5


class NotFinite(ValueError):  # names the value's position; the caller turns it into an error
    """A value is infinite or not a number; `index` is its position in the vector."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of one plan's updates as integers.

    Attributes:
        clipping_range: C, a power of two, so that S * C is a power of two and exact in float32.
        sites: K, the number of sites in the plan. So the scale does not depend on which sites take part.
    """

    clipping_range: float
    sites: int

    def __post_init__(self) -> None:
        if not is_power_of_two(self.clipping_range) or self.sites < 1:
            raise ValueError("a clipping range that is a power of two, and at least one site")
        if self.scale < 1:
            raise ValueError("the clipping range leaves no bits for fractions")

    @cached_property
    def scale(self) -> float:
        """Return the scale S, by which numbers are multiplied before rounding. S is a power of two."""
        return 2.0 ** math.floor(math.log2(((1 << 31) - 1) // self.sites / self.clipping_range))

    def encode(self, values: npt.NDArray[np.float32], weight: float, out: npt.NDArray[np.int32]) -> int:
        """Write rint(S * weight * clip(values, -C, C)) into `out`.

        Values are clipped before weighting. So every honest sum is at most S * C times the sum of the weights, and a
        larger sum can be refused (`most`).

        Args:
            values: float32 of shape (n,).
            weight: at most 1, rounded to float32.
            out: int32 of shape (n,).

        Returns:
            The number of clipped values.

        Raises:
            NotFinite: a value is infinite or not a number; `out` is then unusable.
        """
        if not 0 <= weight <= 1:
            raise ValueError("a weight lies between 0 and 1")
        factor = np.float32(self.scale) * np.float32(weight)  # exact: S is a power of two
        limit = factor * np.float32(self.clipping_range)
        scratch = np.empty(min(BLOCK, values.size), np.float32)
        clipped = 0
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and is clipped like any other large value
            for start in range(0, values.size, BLOCK):
                given, block = values[start : start + BLOCK], scratch[: min(BLOCK, values.size - start)]
                np.multiply(given, factor, out=block)
                largest = max(float(block.max()), -float(block.min()))
                if not largest <= limit:
                    clipped += self._clip(given, block, start, limit)
                np.rint(block, out=block)
                out[start : start + BLOCK] = block
        return clipped

    @staticmethod
    def _clip(given: npt.NDArray[np.float32], block: npt.NDArray[np.float32], start: int, limit: np.float32) -> int:
        finite = np.isfinite(given)
        if not finite.all():
            raise NotFinite(start + int(np.argmin(finite)))
        outside = int(np.count_nonzero(np.abs(block) > limit))
        np.clip(block, -limit, limit, out=block)
        return outside

    def most(self, weights: float, sites: int) -> float:
        """Return the largest absolute value that one number can have in a sum of honest contributions.

        Args:
            weights: the sum of the sites' weights.
            sites: their number; each site's rounding adds at most a half.
        """
        return self.scale * self.clipping_range * weights + 0.5 * sites


def round_rows(rows: int, largest: int) -> int:
    """Round a row count to two significant bits, at most `largest`.

    Without rounding, a change of membership would reveal the leaving site's exact count by subtraction
    (docs/privacy.md, "Integers"). The quotient rows / 2**n is exact in float32.
    """
    if rows < 1:
        raise ValueError("a site without rows does not contribute")
    step = 1 << max(0, rows.bit_length() - 2)
    return min((rows + step // 2) // step * step, largest)
