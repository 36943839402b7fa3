"""Defines the weight of each site in the mean of a round.

Weights have no default, because they decide whose patients matter more. A site sends its number of rows only inside a
sum. Row counts are rounded. So two sums over different sets of sites, or at different times, do not reveal a site's
exact count. Exact counts need one set of sites in all rounds. A site's counts of any two studies are equal or differ by
the policy's smallest cell or more (`released_count`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, StrictBool, model_validator

from protos.numbers.fixed_point import is_power_of_two, round_rows
from protos.plan.documents import Document

_LARGEST_EXACT: Final = 1 << 24


class EqualWeights(Document):
    """Every site has the same weight."""

    name: Literal["equal"]


class RowWeights(Document):
    """A site is weighted by its training rows, rounded to two significant bits, or exactly with `exact`.

    `largest_rows`, a power of two, limits a site's count. The weight is rows divided by `largest_rows`, which should be
    near the largest site's size. A site with fewer training rows than `fewest_rows` takes no part. So no sum of rows is
    smaller than that many for each contributor, and a site that claims few rows cannot make the others' weights vanish.
    """

    name: Literal["rows"]
    largest_rows: int = Field(ge=1, le=1 << 30)
    fewest_rows: int = Field(default=1, ge=1, le=1 << 30)
    exact: StrictBool = False

    def counted(self, rows: int) -> int:
        """Return the weight of a site with this number of rows. `released_count` first decides this number."""
        return min(rows, self.largest_rows) if self.exact else round_rows(rows, self.largest_rows)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not is_power_of_two(self.largest_rows):
            raise ValueError("largest_rows must be a power of two, such as 1024 or 2048, so that weights are exact")
        if self.fewest_rows > self.largest_rows:
            raise ValueError(
                f"fewest_rows is {self.fewest_rows}, but must not be larger than largest_rows ({self.largest_rows})"
            )
        if round_rows(self.fewest_rows, self.largest_rows) != self.fewest_rows:
            raise ValueError("fewest_rows must be a power of two or three times a power of two, such as 32, 48 or 64")
        if self.exact and self.largest_rows > _LARGEST_EXACT:
            raise ValueError(
                f"with exact, largest_rows is at most {_LARGEST_EXACT}, so that weights are exact in float32"
            )
        return self


Weighting: TypeAlias = Annotated[EqualWeights | RowWeights, Field(discriminator="name")]
