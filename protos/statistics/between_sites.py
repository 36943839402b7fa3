"""Measures how much sites differ: Cochran's Q, I^2 and the random-effects mean, from sums over the sites.

A site's own estimate b of a coefficient has the weight w = 1 / error^2. The first sums are of 1, w, w^2, w b and
w b^2. They give the variance between sites, which all programs compute. With it each site sends v and v b with
v = 1 / (error^2 + variance). A site with an own estimate has two unknowns at each other site, and six equations: with
four other sites or more it cannot solve them, so fewer than FEWEST_ESTIMATES estimates print nothing. The equations of
several models together could be solved, so only the first model of a plan has them.

Sources: Cochran 1954; Higgins, Thompson 2002; DerSimonian, Laird 1986.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protos.statistics.distributions import TWO_SIDED, p_of_chi_squared

FEWEST_ESTIMATES: Final = 5
FIRST_SUMS: Final = ("count", "weight", "squared", "weighted", "square")
_LARGEST_Z: Final = 40.0  # of an own estimate; a larger one is no estimate of a few patients


@dataclass(frozen=True)
class OwnEstimate:
    """An estimate of one coefficient, and its standard error."""

    value: float
    error: float

    @property
    def first(self) -> tuple[float, ...]:
        """Return the site's numbers in the first sums, in the order of FIRST_SUMS."""
        weight = 1.0 / self.error**2
        return 1.0, weight, weight**2, weight * self.value, weight * self.value**2

    @property
    def is_far(self) -> bool:
        """Return whether the estimate is too far from 0 for its error. Then it is in no sum: all of them are void."""
        return abs(self.value) > _LARGEST_Z * self.error

    def second(self, variance: float) -> tuple[float, float]:
        """Return the site's numbers in the second sums, for an announced variance between sites."""
        weight = 1.0 / (self.error**2 + variance)
        return weight, weight * self.value

    @property
    def record(self) -> dict[str, float]:
        """Return the estimate and the limits of its 95% interval."""
        reach = TWO_SIDED * self.error
        return {"estimate": self.value, "low": self.value - reach, "high": self.value + reach}


def between_sites(
    count: float, weights: float, squares: float, first: float, second: float
) -> tuple[dict[str, float], float] | None:
    """Return what is printed and the variance between sites, from the sums of FIRST_SUMS. None with too few estimates.

    Printed are the sites with an own estimate, Q with its p value, for equal coefficients at all sites, and I^2, the
    share of the variation of estimates that is not chance. The variance is DerSimonian and Laird's.
    """
    sites = round(count)
    if sites < FEWEST_ESTIMATES or weights <= 0.0:
        return None
    q, degrees = max(0.0, second - first**2 / weights), sites - 1
    scale, share = weights - squares / weights, max(0.0, 1.0 - degrees / q) if q > 0.0 else 0.0
    printed = {"sites": sites, "q": q, "p": p_of_chi_squared(q, degrees), "i_squared": share}
    return printed, max(0.0, (q - degrees) / scale) if scale > 0.0 else 0.0
