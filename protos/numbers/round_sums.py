"""Defines the record of all sums of one round. The record contains no number of a single site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from protos.numbers.chunk_layout import Integers32
from protos.plan.exchange import Exchange
from protos.plan.manifest import ROWS
from protos.plan.weighting import EqualWeights, RowWeights, Weighting


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The complete, consistent sums of one round.

    Attributes:
        contributors: the number of training sites in the sums.
        updates: int32 of shape (numbers of exchange.up,), the sum of the encoded weighted updates.
        scalars: the sum of each of the exchange's scalars by its name.
    """

    exchange: Exchange
    contributors: int
    updates: Integers32 = field(repr=False)
    scalars: Mapping[str, int]

    def weight(self, weighting: Weighting) -> float:
        """Return the sum of the weights by which the sites multiplied their updates."""
        match weighting:
            case EqualWeights():
                return float(self.contributors)
            case RowWeights(largest_rows=largest_rows):
                return self.scalars[ROWS] / largest_rows
            case _:
                assert_never(weighting)
