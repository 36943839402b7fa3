"""Computes restricted cubic splines: cubic between declared knots, and straight lines beyond the outer ones.

k knots give k - 1 columns: the number x itself and k - 2 curved ones, in the basis of Harrell 2015, equation 2.25, with
the curved columns divided by the squared distance of the outer knots, as `rcs` of R's rms does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protos.plan.analyses import Float64


def spline_column(values: Float64, knots: Sequence[float], place: int) -> Float64:
    """Return a column for values of any shape: x itself at place 0, then the curved columns 1 to k - 2.

    Curved columns are 0 up to their own knot, and never fall.
    """
    if place == 0:
        return values
    own, late, last = knots[place - 1], knots[-2], knots[-1]
    bent = (
        np.maximum(values - own, 0.0) ** 3
        - np.maximum(values - late, 0.0) ** 3 * ((last - own) / (last - late))
        + np.maximum(values - last, 0.0) ** 3 * ((late - own) / (last - late))
    )
    return np.asarray(bent / (last - knots[0]) ** 2)
