"""Defines what a site computes in one round, and its result. No library for training is needed here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.numbers.short_integers import Integers
from protos.plan.exchange import Exchange, Exchanges
from protos.wire.messages import Stage

Vector: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The work that the coordinator requires from a site in one round. See messages.Offer.

    `stage` is None for the result after the last round.
    `own_sums` has the noisy sums of private layers over all earlier rounds, see PrivateTraining. An empty tuple stands
    for zeros.
    """

    round: int
    stage: Stage | None = Stage.TRAINING
    layers: bytes = b""
    best_round: int | None = None
    own_sums: tuple[int, ...] = ()
    scales: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The trainer's result of one round: updates in the order of the round's tensors, and scalars.

    The updates are float32, or short integers under a plan with such.
    These are all numbers of the round except "rows". The noisy sums of private layers follow, if the plan has them.
    """

    updates: Vector | Integers = field(default_factory=lambda: np.empty(0, np.float32), repr=False)
    scalars: tuple[int, ...]


class PlannedStudy:
    """A study whose rounds have the exchanges of its plan."""

    _exchanges: Exchanges

    def exchange(self, asked: Asked) -> Exchange:
        """Return what this site sends and receives in a round. Raise MalformedMessage if the plan has no such round."""
        assert asked.stage is not None
        return self._exchanges.of(asked.round, asked.stage, asked.layers)
