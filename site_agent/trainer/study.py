"""One plan at one site: the network and its data, trained round by round, chosen, tested, reported.

Everything here stays at the site except what `train` returns. The site's gain is measured against the
same network trained alone, with the same budget and the same rule of choice (`train_alone`). The rules:

* what `train` hands out is exactly the plan's manifest: names, shapes and order are read from the
  network's own memory and compared before the first step;
* rounds only rise. One is made again only from its own start and the same shared values, as often as
  this hospital's policy allows, for a set of sites that lost a member;
* a model whose validation loss is not finite is never chosen, and none is reported where none is left.

What a site draws for itself (first values of private layers, order of batches, dropout) follows from
the plan's seed and the site's name, so that training can be repeated to the bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protos.architecture import TensorSpec, body_tensors, network_tensors
from protos.canonical import digest
from protos.errors import ConfigurationError
from protos.fixed_point import round_rows
from protos.manifest import Manifest, describe_difference, manifest_of
from protos.messages import MalformedMessage
from protos.parameters import parameters_digest
from protos.plan import EqualWeights, Plan, RowWeights
from site_agent.config import Hospital
from site_agent.trainer.checkpoints import BestCheckpoint, Json
from site_agent.trainer.data.dataset import Dataset, Examples, align
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.evaluation import Evaluation, evaluate, scores_of, targets_of
from site_agent.trainer.failures import NetworkDiffers, TrainingDiverged
from site_agent.trainer.models.catalogue import build_network
from site_agent.trainer.training.bridge import FlatNetwork, Vector
from site_agent.trainer.training.local import LocalTraining, Rows, TrainingState, predict


@dataclass(frozen=True)
class Outcome:
    """A chosen model, on this site's own test rows."""

    chosen: BestCheckpoint
    values: dict[str, Vector]
    evaluation: Evaluation
    validation_losses: tuple[tuple[int, float], ...]

    def facts(self) -> dict[str, Json]:
        """For the site's own report; a loss that was not finite is null, because JSON has no other."""
        return {
            "metrics": dict(self.evaluation.metrics),
            "checkpoint": {
                "rule": self.chosen.rule,
                "round": self.chosen.round,
                "loss": _finite_or_none(self.chosen.loss),
            },
            "validation_losses": [[number, _finite_or_none(loss)] for number, loss in self.validation_losses],
        }


class Study:
    """A plan in training at this site."""

    def __init__(self, plan: Plan, hospital: Hospital, dataset: Dataset, preprocessing: Preprocessing) -> None:
        """Build and start the network.

        Raises:
            OperatorError: the plan does not fit this site's table, network or number of rows.
        """
        self.plan, self.own, self.preprocessing = plan, dataset, preprocessing
        self._site = hospital.site
        self._check_outputs()
        self.dataset = align(dataset, plan.columns) if plan.columns else dataset
        self._flat, self.manifest = self._federated_network(manifest_of(plan))
        self._training = self._local(self._flat, self.dataset)
        self._choice = _Choice(BestCheckpoint(rule=plan.checkpoint))
        self._rounds_taken = 0
        self._has_taken_in = False
        self._redraw_budget = hospital.policy.lost_site_budget
        self._redrawn: set[tuple[int, int]] = set()
        self._start_of_round: tuple[bytes, TrainingState] | None = None

    @property
    def rows(self) -> int:
        """Training rows on the public grid where the plan weighs by them, otherwise 0."""
        match self.plan.weighting:
            case RowWeights(largest_rows=largest):
                return round_rows(len(self.dataset.training), largest)
            case EqualWeights():
                return 0
            case _:
                assert_never(self.plan.weighting)

    def train(self, round_number: int, received: Vector, redraw: int = 0) -> Vector:
        """Take in the shared values, train one round, return the change.

        Args:
            round_number: rounds are asked for in rising order; a site may enter late and may miss some.
            received: finite float32 of shape (parameters,), in the manifest's order.
            redraw: 0 for the ordinary draw of batches and dropout, otherwise the number that, with the
                round, keys another one; equal numbers give equal bits. PROTOCOL.md, section 3, rule 3.

        Returns:
            float32 of the same shape and order: the federated parameters now minus `received`.

        Raises:
            MalformedMessage: the round is over, is none of the plan's, was drawn afresh more often than
                this site allows, or the values do not fit.
        """
        is_again = round_number == self._rounds_taken - 1 and self._start_of_round is not None
        if not (is_again or self._rounds_taken <= round_number < self.plan.schedule.rounds):
            raise MalformedMessage("a round that is over, or that the plan does not have")
        asked = self._redrawn | ({(round_number, redraw)} if redraw else set())
        if len(asked) > self._redraw_budget and asked != self._redrawn:
            raise MalformedMessage("a round to be drawn afresh more often than this site allows")
        if is_again:
            self._return_to_start(received)
        else:
            self._begin(round_number, received)
        self._redrawn = asked
        if redraw:
            self._training.draw_afresh(self._own_seed(f"round {round_number} redraw {redraw}"))
        penalties = self.plan.ingredients.penalties
        self._training.train(self.plan.schedule.steps_per_round, penalties, torch.from_numpy(received))
        return self._flat.change(received)

    def conclude(self, received: Vector) -> Outcome:
        """Take in the last aggregate, choose a checkpoint, test it once.

        The last aggregate is always considered, also by a site that entered late and is amid an epoch.

        Raises:
            MalformedMessage: the values do not fit.
            TrainingDiverged: no finite model is left to choose.
        """
        self._take_in(received)
        self._choice.consider(self.plan.schedule.rounds, self._training.validation_loss(), self._flat)
        return self._choice.outcome(self._flat, self.dataset, self.preprocessing)

    def train_alone(self) -> Outcome | None:
        """The same network on this site's own columns, as often considered, and nobody else.

        It does not depend on the plan's method: for method local it is the study itself, to the bit.

        Returns:
            None where training diverged.
        """
        flat = FlatNetwork(build_network(self.plan.architecture, len(self.own.columns), self.own.outputs), ())
        self._start(flat, self._tensors(self.own), public=())
        training, choice = self._local(flat, self.own), _Choice(BestCheckpoint(rule=self.plan.checkpoint))
        for round_number in range(1, self.plan.schedule.rounds + 1):
            training.train(self.plan.schedule.steps_per_round)
            if training.epoch_ended:
                choice.consider(round_number, training.validation_loss(), flat)
        try:
            return choice.outcome(flat, self.own, self.preprocessing)
        except TrainingDiverged:
            return None  # an opponent that cannot stand is a result of the comparison, not a failure

    def _begin(self, round_number: int, received: Vector) -> None:
        self._take_in(received)
        if self._training.epoch_ended:
            self._choice.consider(round_number, self._training.validation_loss(), self._flat)
        self._rounds_taken = round_number + 1
        if self._redraw_budget:  # otherwise the copy of three models would be made for nothing
            self._start_of_round = parameters_digest(received), self._training.state()

    def _return_to_start(self, received: Vector) -> None:
        if self._start_of_round is None or parameters_digest(received) != self._start_of_round[0]:
            raise MalformedMessage("other shared values for the same round")
        self._training.restore(self._start_of_round[1])

    def _take_in(self, received: Vector) -> None:
        if received.shape != (self.manifest.parameters,) or (received.size and not _is_finite(received)):
            raise MalformedMessage("shared values of another size, or not finite")
        # A late entrant has no shared values of its own yet, only first values to be replaced.
        rate = self.plan.ingredients.update_rate if self._has_taken_in else 1.0
        self._flat.take_in(received, rate)
        self._has_taken_in = True

    def _federated_network(self, agreed: Manifest) -> tuple[FlatNetwork, Manifest]:
        """The network in training, and the manifest of what its memory really hands out.

        Raises:
            NetworkDiffers: that is not what the plan agreed to.
        """
        network = build_network(self.plan.architecture, len(self.dataset.columns), self.dataset.outputs)
        tensors = self._tensors(self.dataset)
        _check_network(network, tensors)
        by_name = {tensor.name: tensor for tensor in tensors}
        missing = [tensor.name for tensor in agreed.tensors if tensor.name not in by_name]
        if missing:
            raise NetworkDiffers(f"{missing[0]} is missing")
        flat = FlatNetwork(network, [tensor.name for tensor in agreed.tensors])
        found = Manifest(tuple(replace(by_name[name], shape=shape) for name, shape in flat.federated), agreed.scalars)
        if found.digest != agreed.digest:
            raise NetworkDiffers(describe_difference(agreed, dict(flat.federated)))
        self._start(flat, tensors, public=found.tensors)
        return flat, found

    def _start(self, flat: FlatNetwork, tensors: tuple[TensorSpec, ...], public: tuple[TensorSpec, ...]) -> None:
        """Federated tensors and the body start from the plan's seed, all others from the site's own."""
        names = {tensor.name for tensor in (*public, *body_tensors(self.plan.architecture))}
        flat.start([tensor for tensor in tensors if tensor.name in names], self.plan.seed)
        flat.start([tensor for tensor in tensors if tensor.name not in names], self._own_seed("private start"))

    def _tensors(self, dataset: Dataset) -> tuple[TensorSpec, ...]:
        return network_tensors(self.plan.architecture, columns=len(dataset.columns), outputs=dataset.outputs)

    def _local(self, flat: FlatNetwork, dataset: Dataset) -> LocalTraining:
        return LocalTraining(
            flat,
            task=dataset.task,
            training=_rows(dataset.training),
            validation=_rows(dataset.validation),
            schedule=self.plan.schedule,
            optimiser=self.plan.optimiser,
            order=np.random.default_rng(self._own_seed("batch order")),
            dropout_seed=self._own_seed("dropout"),
        )

    def _own_seed(self, purpose: str) -> int:
        """A seed of this site's own, from the plan's seed and the site's name."""
        return int.from_bytes(digest(purpose, self.plan.seed, self._site)[:7], "little")

    def _check_outputs(self) -> None:
        if self.plan.outputs not in (None, self.own.outputs):
            raise ConfigurationError(
                what=f"The plan has {self.plan.outputs} outputs, this site's outcome needs {self.own.outputs}.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Share inner layers only (method: global-layers), or agree on one outcome at all sites.",
            )


class _Choice:
    """Which round's model is kept; see BestCheckpoint."""

    def __init__(self, best: BestCheckpoint) -> None:
        self._best = best
        self._kept: Tensor | None = None
        self._losses: list[tuple[int, float]] = []

    def consider(self, round_number: int, validation_loss: float, flat: FlatNetwork) -> None:
        self._losses.append((round_number, validation_loss))
        self._best, is_kept = self._best.consider(round_number, validation_loss)
        if is_kept:
            self._kept = flat.snapshot(self._kept)

    def outcome(self, flat: FlatNetwork, dataset: Dataset, preprocessing: Preprocessing) -> Outcome:
        if self._kept is None:
            raise TrainingDiverged
        flat.restore(self._kept)
        outputs = predict(flat, _rows(dataset.test).features)
        if not np.isfinite(outputs).all():
            raise TrainingDiverged
        targets, scores = targets_of(preprocessing, dataset.test.targets), scores_of(preprocessing, outputs)
        evaluation = evaluate(dataset.task, targets, scores, dataset.classes)
        return Outcome(self._best, flat.values(), evaluation, tuple(self._losses))


def _check_network(network: nn.Module, tensors: tuple[TensorSpec, ...]) -> None:
    """Every tensor is in the contract's list, in its order; nothing is kept outside of it."""
    found = {name: tuple(inner.shape) for name, inner in network.named_parameters()}
    difference = describe_difference(Manifest(tensors, ()), found)
    if not difference and list(found) != [tensor.name for tensor in tensors]:
        difference = "its tensors stand in another order"
    if not difference and any(True for _ in network.buffers()):
        difference = "it keeps buffers"
    if difference:
        raise NetworkDiffers(difference)


def _rows(examples: Examples) -> Rows:
    targets = torch.from_numpy(examples.targets)
    return Rows(torch.from_numpy(examples.features), targets if targets.dtype == torch.int64 else targets.float())


def _is_finite(values: npt.NDArray[np.float32]) -> bool:
    # The smallest and the largest are no number as soon as one value is none; no second array is made.
    return math.isfinite(values.min()) and math.isfinite(values.max())


def _finite_or_none(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None
