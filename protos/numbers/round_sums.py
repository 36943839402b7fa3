"""Defines the record of all sums of one round. The record contains no number of a single site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from protos.numbers.short_integers import Integers
from protos.plan.exchange import Exchange
from protos.plan.manifest import ROWS
from protos.plan.weighting import EqualWeights, RowWeights, Weighting


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The complete, consistent sums of one round.

    Attributes:
        contributors: the number of training sites in the sums.
        updates: signed integers of shape (numbers of exchange.up,), the sum of the encoded weighted updates.
        scalars: the sum of each of the exchange's scalars by its name.
        exponents: of the scales of short integers, one for each of the manifest's layers; empty for 32 bits.
    """

    exchange: Exchange
    contributors: int
    updates: Integers = field(repr=False)
    scalars: Mapping[str, int]
    exponents: tuple[int, ...] = ()

    def weight(self, weighting: Weighting) -> float:
        """Return the sum of the weights by which the sites multiplied their updates."""
        match weighting:
            case EqualWeights():
                return float(self.contributors)
            case RowWeights(largest_rows=largest_rows):
                return self.scalars[ROWS] / largest_rows
            case _:
                assert_never(weighting)
