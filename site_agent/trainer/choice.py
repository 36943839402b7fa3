"""Chooses which round's model a site keeps, and encodes the site's measurements as integers for sums over all sites.

A received model is measured by the task's loss alone, without penalty terms. The rules:

* a model whose validation loss is not finite is never chosen because of its loss;
* among equally good models the earliest is chosen;
* the best model over all sites is known one round later, from sums. Until then the last candidate is stored;
* every sent number is weighted by rows as the plan counts them, so that a sum divided by the sum of weights is the
  method's mean. A number beyond its bound becomes the bound, and no number is negative.

Source: FENDA-FL, section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

import torch
from torch import Tensor

from protos.numbers.fixed_point import round_rows
from protos.plan.manifest import LARGEST_LOSS, LARGEST_SENSITIVITY, LOSS_SCALE, SENSITIVITY_SCALE
from protos.plan.network_plan import NetworkPlan
from protos.plan.weighting import EqualWeights, RowWeights
from site_agent.trainer.disk import Json
from site_agent.trainer.training.flat_network import FlatNetwork, State, part_of, prefixed

Rule: TypeAlias = Literal["latest", "local", "global"]


@dataclass(frozen=True)
class Measured:
    """The validation loss at this site of a model that was received in one round, or NaN if the loss was not finite."""

    round: int
    loss: float


class Choice:
    """Measures the models of a run, and keeps the one that the plan's rule prefers."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.curve: list[Measured] = []
        self.chosen: Measured | None = None
        self._chosen_state: State = {}
        self._waiting: tuple[Measured, State] | None = None

    def consider(self, round_number: int, loss: float, flat: FlatNetwork) -> None:
        """Record the validation loss of a received model. Keep the model if the plan's rule prefers it."""
        measured = Measured(round_number, loss)
        self.curve.append(measured)
        match self.rule:
            case "latest":
                self._choose(measured, flat.state())
            case "local":
                if math.isfinite(loss) and (self.chosen is None or loss < self.chosen.loss):
                    self._choose(measured, flat.state())
            case "global":
                if math.isfinite(loss):
                    self._waiting = measured, flat.state()
            case _:
                assert_never(self.rule)

    def follow(self, best_round: int | None) -> None:
        """Under the rule `global`, keep the newest model if the coordinator reports its round as the best."""
        if self.rule == "global" and self._waiting is not None and self._waiting[0].round == best_round:
            self._choose(*self._waiting)

    def restore_chosen(self, flat: FlatNetwork) -> bool:
        """Load the chosen model's parameters into a network. Return whether a model was chosen."""
        if not self._chosen_state and self._waiting is not None:  # the site entered after the best round
            self._choose(*self._waiting)
        if self._chosen_state:
            flat.restore(self._chosen_state)
        return bool(self._chosen_state)

    def facts(self) -> dict[str, Json]:
        """Return the chosen round and the losses of all rounds, for this site's report. A non-finite loss is null."""
        return {
            "rule": self.rule,
            "round": None if self.chosen is None else self.chosen.round,
            "loss": None if self.chosen is None else _finite_or_none(self.chosen.loss),
            "validation_losses": [[measured.round, _finite_or_none(measured.loss)] for measured in self.curve],
        }

    def state(self) -> State:
        curve = torch.tensor([[float(m.round), m.loss] for m in self.curve], dtype=torch.float64).reshape(-1, 2)
        waiting, model = (None, State()) if self._waiting is None else self._waiting
        states = prefixed("chosen model", self._chosen_state) | prefixed("waiting", model)
        places = {"chosen": self._place(self.chosen), "waits": self._place(waiting)}
        return states | {"curve": curve} | places

    def restore(self, state: State) -> None:
        self.curve = [Measured(int(number), loss) for number, loss in state["curve"].tolist()]
        chosen, waits = int(state["chosen"]), int(state["waits"])
        self.chosen = self.curve[chosen] if chosen >= 0 else None
        self._chosen_state = part_of(state, "chosen model")
        self._waiting = (self.curve[waits], part_of(state, "waiting")) if waits >= 0 else None

    def _place(self, measured: Measured | None) -> Tensor:
        return torch.tensor(next((place for place, m in enumerate(self.curve) if m is measured), -1))

    def _choose(self, measured: Measured, state: State) -> None:
        self.chosen, self._chosen_state = measured, state


def _finite_or_none(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


class Measures:
    """Computes the measurements that one site sends under a plan, weighted as the plan requires."""

    def __init__(self, plan: NetworkPlan, training_rows: int, validation_rows: int) -> None:
        match plan.weighting:
            case EqualWeights():
                self.rows, self._weight = 0, 1.0
                self._validation_rows, self._validation_weight = 1, 1.0
            case RowWeights(largest_rows=largest) as weighting:
                self.rows = weighting.counted(training_rows)
                self._weight = self.rows / largest
                self._validation_rows = round_rows(validation_rows, largest)
                self._validation_weight = self._validation_rows / largest
            case _:
                assert_never(plan.weighting)

    def sensitivities(self, found: Sequence[float]) -> tuple[int, ...]:
        """Return the sensitivity F of every layer, for PLayer-FL. All sites have equal weight (algorithm 3)."""
        return tuple(_integer(value, LARGEST_SENSITIVITY, SENSITIVITY_SCALE) for value in found)

    def validation_of(self, loss: float) -> dict[str, int]:
        """Return the numbers that this site sends about the validation loss of one model."""
        loss = min(loss, LARGEST_LOSS) if math.isfinite(loss) else LARGEST_LOSS
        return {
            "validation weight": self._validation_rows,
            "validation loss": _integer(self._validation_weight * loss, LARGEST_LOSS, LOSS_SCALE),
        }


def _integer(value: float, largest: float, scale: int) -> int:
    return round((min(value, largest) if math.isfinite(value) else largest) * scale)
