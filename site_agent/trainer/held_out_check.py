"""Decides whether this site accepts the shared parameters that it received, by a test before training.

The received model is compared with the one that the sites accepted last, on this site's own rows
(docs/design/acceptance.md). The site accepts or refuses. Neither a loss nor a row leaves the site. The rules:

* a site refuses if its loss rises beyond noise and by much (protos/plan/schedules.py). It also refuses parameters
  that moved further than any server rule moves by clipped updates, and outputs that are not finite;
* a site that lacks the parameters accepted last cannot compare, so it accepts;
* if the run returns to earlier parameters, this site returns to its own state before it loaded the refused ones. If the
  parameters then differ by a bit from the accepted ones, they are refused as a malformed message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from protos.plan.exchange import is_measured
from protos.plan.plan import Plan
from protos.plan.schedules import HeldOutLoss
from protos.plan.server_rules import largest_step
from protos.wire.messages import MalformedMessage
from site_agent.trainer.training.state import State, part_of, prefixed

_ROUNDING: float = 2.0**-20  # relative rounding error of a float32 sum and of the float64 computation of the rule


@dataclass(frozen=True, eq=False)
class Received:
    """Shared parameters that this site received in a round, `values`: float32 of shape (shared numbers,).

    `is_decided` is whether the sites accept or refuse them in that round. `losses` is float32 of shape (tested rows,),
    empty if the round was not measured.
    """

    round: int
    is_decided: bool
    values: Tensor = field(repr=False)
    losses: Tensor = field(repr=False)

    def state(self) -> State:
        """Return what this site last received and loaded, as tensors by name, to save it."""
        place = torch.tensor([self.round, int(self.is_decided)])
        return {"place": place, "values": self.values, "losses": self.losses}

    @classmethod
    def from_state(cls, state: State) -> Received | None:
        """Build this object from the tensors that `state` returned. Return None if there are no tensors."""
        if not state:
            return None
        number, is_decided = state["place"].tolist()
        return cls(number, bool(is_decided), state["values"], state["losses"])


class HeldOutCheck:
    """Compares received parameters with the parameters that were accepted last, and keeps the state for a rollback."""

    def __init__(self, plan: Plan, rule: HeldOutLoss) -> None:
        self._plan, self._rule = plan, rule
        self.accepted: Received | None = None
        self.newest: Received | None = None
        self._before: State = {}  # this site's state before it loaded parameters that are not yet accepted
        self.refuses = False
        # For each rollback: the repeated round, and the round of the parameters.
        self.returns: list[tuple[int, int]] = []

    def is_measured(self, round_number: int) -> bool:
        """Return whether the sites test received parameters in this round: the first round, or one with a decision."""
        return round_number == self._plan.has_probe or is_measured(self._plan, round_number)

    def has_refused(self, values: Tensor, returned_to: int | None) -> bool:
        """Return whether the sites rejected the parameters that this site received last."""
        newest = self.newest
        if newest is None or returned_to is None or newest.round <= returned_to:
            return False
        return not torch.equal(newest.values, values)

    def hear(self, round_number: int, values: Tensor, returned_to: int | None) -> State:
        """Follow the decision of all sites about the parameters that were received last.

        `returned_to` is the round whose parameters `values` are, if the run was rolled back; otherwise None. Return the
        state of its own to which this site returns, or an empty state if the site continues.

        Raises:
            MalformedMessage: the run returns to other parameters than the accepted ones.
        """
        before: State = {}
        newest, accepted = self.newest, self.accepted
        if returned_to is None:
            if newest is not None and newest.round != round_number - 1:
                self.accepted = None  # this site missed a round, so it did not receive the decision
            elif newest is not None and newest.is_decided:
                self.accepted = newest
        elif newest is not None and newest.round == returned_to:
            self.accepted = newest  # only the sum of the last round was dropped
        elif accepted is not None and accepted.round == returned_to:
            before = self._before
        else:
            self.accepted = None
        if returned_to is not None and self.accepted is not None and not torch.equal(self.accepted.values, values):
            raise MalformedMessage("other parameters than those that the sites accepted last")
        if returned_to is not None and (round_number, returned_to) not in self.returns:
            self.returns.append((round_number, returned_to))
        if self.accepted is not accepted or before:
            self._before = {}
        return before

    def remember(self, state: State) -> None:
        """Store `state`. This site returns to this state if the parameters that it loads next are not accepted."""
        self._before = self._before or state

    @property
    def has_state(self) -> bool:
        """Whether this site stores a state to which it can return."""
        return bool(self._before)

    def take(self, round_number: int, values: Tensor, losses: Tensor, scale: float) -> None:
        """Decide whether this site accepts parameters received in a round: float32 of shape (shared numbers,).

        `losses` are float32 of shape (tested rows,), with these parameters, and empty if the round is not measured.
        `scale` is the mean loss of a network whose outputs are all 0, on the same rows.
        """
        is_start = round_number == self._plan.has_probe
        self.newest = Received(round_number, is_start or losses.numel() > 0, values, losses)
        known = self.accepted
        self.refuses = False
        if losses.numel() and known is not None and known.losses.numel():
            rounds = round_number - known.round
            self.refuses = self._moved_too_far(known.values, values, rounds) or is_harmful(
                self._rule, known.losses, losses, scale
            )

    def resampled(self, is_resampled: bool) -> None:
        """Record whether the newest round is a resampled round. In such a round no site accepts or refuses."""
        if self.newest is not None and self.newest.round != self._plan.has_probe:
            self.newest = replace(self.newest, is_decided=self.newest.losses.numel() > 0 and not is_resampled)

    def state(self) -> State:
        """Return the state of this check, from which the next decision follows."""
        accepted = {} if self.accepted is None else self.accepted.state()
        newest = {} if self.newest is None else self.newest.state()
        returns = {"returns": torch.tensor(self.returns, dtype=torch.int64).reshape(-1, 2)}
        return prefixed("accepted", accepted) | prefixed("newest", newest) | prefixed("before", self._before) | returns

    def restore(self, state: State) -> None:
        """Restore a state that `state` returned earlier."""
        self.accepted = Received.from_state(part_of(state, "accepted"))
        self.newest = Received.from_state(part_of(state, "newest"))
        self._before, self.refuses = part_of(state, "before"), False
        self.returns = [(number, returned_to) for number, returned_to in state["returns"].tolist()]

    def _moved_too_far(self, before: Tensor, after: Tensor, rounds: int) -> bool:
        limit = rounds * largest_step(self._plan)
        largest = max(float(before.abs().max()), float(after.abs().max()), limit)
        return not float((after - before).abs().max()) <= limit + largest * _ROUNDING


def is_harmful(rule: HeldOutLoss, before: Tensor, after: Tensor, scale: float) -> bool:
    """Return whether a site's loss has risen by more than noise and by more than the plan's limit.

    `before` and `after` are each row's loss, float32 (rows,), with the parameters accepted last and the received ones.
    `scale` is the mean loss of a network whose outputs are all 0.
    """
    if not bool(torch.isfinite(before).all()):
        return False  # the accepted parameters cannot be worse than themselves
    if not bool(torch.isfinite(after).all()):
        return True
    rises = after.double() - before.double()
    # A few rows with certain but wrong predictions can determine the whole mean and most of its standard error. So the
    # rises are tested twice: unchanged, and limited to the loss of a network that has learned nothing. One test is
    # enough.
    tests = [(float(part.mean()), standard_errors(part)) for part in (rises, rises.clamp(-scale, scale))]
    return any(mean > rule.largest_rise * scale and errors >= rule.standard_errors for mean, errors in tests)


def standard_errors(rises: Tensor) -> float:
    """Return the sum of paired differences in standard errors: sum / sqrt(sum of squares). It is at most sqrt(rows).

    The rows are paired, so what makes a row difficult for both models cancels. This is Student's t with the spread
    around 0 in place of the spread around the mean. Suppose that each row rises or falls by the same amount with equal
    probability. Then x or more has a probability of at most exp(-x^2 / 2), for any number of rows and any
    distribution (Efron 1969). So few rows give no false alarm: fewer than x^2 rows never reach x.
    """
    squares = float(rises.square().sum())
    return float(rises.sum()) / math.sqrt(squares) if squares > 0 else 0.0
