"""Rounds sums of patients' terms to the integers that are sent: 64 bits, or 32 bits with a smaller scale.

A trainer adds up terms in integers of PRIVATE_SCALE. In 32 bits it then rounds the sum, and not each term, to the
smaller scale S. The rules:

* two sums that differ by a term of norm R differ by at most R S + sqrt(numbers) after rounding, because each number
  moves by less than 1 more. So terms are shortened to R = 1 - sqrt(numbers) / S, and one patient changes at most S;
* S is the smallest power of two with which that shortens a term by at most a thousandth;
* a sum that does not fit is clipped before the noise. Two clipped sums are not further apart than the sums were, so no
  site stops or reports anything because of its number of patients;
* sums are taken modulo 2^32. The sum of all sites modulo 2^32 follows from the noisy sum, so it is as private.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.privacy.accounting import PRIVATE_SCALE

Integers = npt.NDArray[np.int64]

LEAST_STEPS: Final = 1000  # of the scale for each unit of sqrt(numbers): a term loses at most one part in a thousand
LARGEST_NARROW: Final = (1 << 31) - 1


@dataclass(frozen=True)
class Ring:
    """The integers in which a plan's sums are sent.

    Attributes:
        bits: of each number that is sent, 32 or 64.
        numbers: of a patient's term, at least one.
    """

    bits: int
    numbers: int

    @property
    def scale(self) -> int:
        """Return the integer, a power of two, that stands for the norm 1 of a patient's term."""
        if self.bits == 64:
            return PRIVATE_SCALE
        return 1 << ((LEAST_STEPS**2 * self.numbers - 1).bit_length() + 1) // 2

    @property
    def room(self) -> float:
        """Return the largest norm that a patient's term may have before the sum of the terms is rounded."""
        return 1.0 if self.bits == 64 else 1.0 - sqrt(self.numbers) / self.scale

    def rounded(self, exact: Integers, largest: int) -> Integers:
        """Round a sum of terms to the integers of this ring, int64 of shape (numbers,).

        Args:
            exact: the sum in integers of PRIVATE_SCALE, int64 of shape (numbers,).
            largest: the magnitude to which a number is clipped.
        """
        if self.bits == 64:
            return np.clip(exact, -largest, largest)
        step = PRIVATE_SCALE // self.scale  # integer arithmetic: the same bits for every magnitude
        return np.clip((exact + step // 2) // step, -largest, largest)
