"""Defines plans whose coordinator announces every sum so far, as the beginning of one vector of fixed length.

The vector has the sums of the first round, then those of each Newton round, then those of the last round. Sums of later
rounds are 0 and are not sent before the result. So every program computes the same coefficients from the same sums, and
a restart needs no other state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import Field, StrictInt

from protos.plan.networks.network_tensors import Constant, Part, TensorSpec
from protos.plan.plan_head import PlanHead
from protos.wire.messages import MalformedMessage


class AnnouncingPlan(PlanHead):
    """A plan with a first round of sums, then any number of Newton rounds, then a last round.

    Attributes:
        fewest_sites: the number of sites that every printed number needs.
        largest_rows: the largest number of rows of all sites together, for the bounds of sums.
        rows_per_unknown: the least number of other sites' patients for each number that a reader could solve for.
    """

    fewest_sites: StrictInt = Field(default=4, ge=3, le=100)
    largest_rows: StrictInt = Field(default=1 << 20, ge=1, le=1 << 26)
    rows_per_unknown: float = Field(default=5.0, ge=1.0, le=1e6)

    def why_too_many_rows(self) -> Iterator[str]:
        """Yield the reason if sums of so many rows could be larger than their 64 bits."""
        if self.largest_rows * len(self.site_names) >= 1 << 27:
            yield (
                f"largest_rows ({self.largest_rows}) times the number of sites ({len(self.site_names)}) must be below "
                "134,217,728"
            )

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Return how many sums the first round, each Newton round and the last round have."""

    @cached_property
    def words(self) -> int:
        """Return the number of sums in the whole run."""
        first, newton, last = self.sizes
        return first + self.training_rounds * newton + last

    @cached_property
    def tensor(self) -> TensorSpec:
        """Return the tensor of all sums, four numbers each, that sites receive with the result."""
        return self._tensor_of(self.words)

    def _tensor_of(self, words: int) -> TensorSpec:
        return TensorSpec("announced.sums", (words, 4), Part.COMMON, Constant(0.0))

    def tensors_before(self, round_number: int) -> tuple[TensorSpec, ...]:
        """Return the tensor of the sums of the rounds before this one, which sites receive with its offer."""
        if not round_number:
            return ()
        return (self._tensor_of(self.place(min(round_number - 1, self.training_rounds), self.training_rounds).stop),)

    def whole(self, round_number: int, received: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a received vector with zeros for the sums that follow: float32 of shape (numbers of `tensor`,).

        Raises:
            MalformedMessage: it has neither the sums before this round nor all of the run.
        """
        every, before = self.tensor.number_count, sum(one.number_count for one in self.tensors_before(round_number))
        if received.shape not in ((before,), (every,)):
            raise MalformedMessage("another number of announced sums")
        return np.pad(received, (0, every - received.size))

    def place(self, round_number: int, made: int) -> slice:
        """Return the slice that contains one round's sums in the vector of all sums of the run.

        Args:
            round_number: 0 for the first round, then the Newton rounds, then the last round.
            made: the number of Newton rounds of the run; the next round is the last one.
        """
        first, newton, last = self.sizes
        if round_number == 0:
            return slice(0, first)
        if round_number > made:
            return slice(self.words - last, self.words)
        start = first + (round_number - 1) * newton
        return slice(start, start + newton)
