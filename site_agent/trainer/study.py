"""One plan at one site: the network and its data, trained round by round, chosen, tested, reported.

Everything here stays at the site except what `train` returns. The site's gain is measured against the
same network trained alone, with the same budget and the same rule of choice (`siloed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from protos.architecture import GlobalLayersNetwork, NamedTensors, TensorSpec, network_tensors
from protos.canonical import digest
from protos.errors import ConfigurationError
from protos.fixed_point import round_rows
from protos.manifest import describe_difference, manifest_of
from protos.plan import Plan, RowWeights
from site_agent.config import Hospital
from site_agent.trainer.checkpoints import BestCheckpoint
from site_agent.trainer.data.dataset import Dataset, Examples, align
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.evaluation import Evaluation, evaluate, probabilities
from site_agent.trainer.models.catalogue import build_network
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Rows, predict

Values = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Outcome:
    """A chosen model, on this site's own test rows."""

    chosen: BestCheckpoint
    values: Values
    evaluation: Evaluation
    validation_losses: tuple[tuple[int, float], ...]

    def facts(self) -> dict[str, Any]:
        """For the site's own report."""
        return {
            "metrics": dict(self.evaluation.metrics),
            "checkpoint": {"rule": self.chosen.rule, "round": self.chosen.round, "loss": self.chosen.loss},
            "validation_losses": [list(entry) for entry in self.validation_losses],
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
        self.manifest = manifest_of(plan)
        self.dataset = align(dataset, plan.columns) if plan.columns else dataset
        self._check_outputs()
        self._flat = self._network(self.dataset, federated=[tensor.name for tensor in self.manifest.tensors])
        shapes = {name: tuple(values.shape) for name, values in self._flat.network.named_parameters()}
        federated = {tensor.name: shapes.get(tensor.name, ()) for tensor in self.manifest.tensors}
        difference = describe_difference(self.manifest, federated)
        if difference:
            raise ConfigurationError(
                what=f"This site's network differs from the plan: {difference}.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Install the same version of global-layers everywhere.",
            )
        self._training = self._local(self._flat, self.dataset)
        self._choice = _Choice(BestCheckpoint(rule=plan.checkpoint))
        self._rounds_taken = 0

    @property
    def rows(self) -> int:
        """Training rows on the public grid where the plan weighs by them, otherwise 0."""
        match self.plan.weighting:
            case RowWeights(largest_rows=largest):
                return round_rows(len(self.dataset.training), largest)
            case _:
                return 0

    def train(self, round_number: int, received: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take in the shared values, train one round, return the change.

        Args:
            round_number: rounds are asked for in rising order, each once.
            received: float32 in the manifest's order.

        Returns:
            float32 in the manifest's order: the federated parameters now minus `received`.
        """
        if round_number < self._rounds_taken:
            raise ValueError("a round that was trained already")
        self._rounds_taken = round_number + 1
        self._take_in(round_number, received)
        self._training.train(self.plan.schedule.steps_per_round)
        return self._flat.change(received)

    def conclude(self, received: npt.NDArray[np.float32]) -> Outcome:
        """Take in the last aggregate, choose a checkpoint, test it once."""
        self._take_in(self._rounds_taken, received)
        return self._choice.outcome(self._flat, self.dataset)

    def train_alone(self) -> Outcome:
        """The same network on this site's own columns, with the same budget, and nobody else."""
        dataset = self.own
        flat = self._network(dataset, federated=[])
        training, choice = self._local(flat, dataset), _Choice(BestCheckpoint(rule=self.plan.checkpoint))
        for epoch in range(self.plan.schedule.epochs):
            training.train(self.plan.schedule.batches_per_epoch)
            choice.consider(epoch + 1, training.validation_loss(), flat)
        return choice.outcome(flat, dataset)

    def _take_in(self, round_number: int, received: npt.NDArray[np.float32]) -> None:
        self._flat.take_in(received, self.plan.ingredients.update_rate)
        if self._training.epoch_ended:
            self._choice.consider(round_number, self._training.validation_loss(), self._flat)

    def _network(self, dataset: Dataset, federated: list[str]) -> FlatNetwork:
        sizes = (self.plan.architecture, len(dataset.columns), dataset.outputs)
        flat = FlatNetwork(build_network(*sizes), federated)
        shared = {tensor.name for tensor in self.manifest.tensors}
        tensors = self._tensors(dataset)
        flat.start([tensor for tensor in tensors if tensor.name in shared], self.plan.seed)
        flat.start([tensor for tensor in tensors if tensor.name not in shared], self._own_seed("private start"))
        return flat

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
        )

    def _own_seed(self, purpose: str) -> int:
        """A seed of this site's own, from the plan's seed and the site's name."""
        return int.from_bytes(digest(purpose, self.plan.seed, self._site)[:7], "little")

    def _check_outputs(self) -> None:
        plan, dataset = self.plan, self.dataset
        if isinstance(plan.architecture, NamedTensors):
            return
        assert isinstance(plan.architecture, GlobalLayersNetwork)
        if plan.outputs is not None and plan.outputs != dataset.outputs:
            raise ConfigurationError(
                what=f"The plan's network has {plan.outputs} outputs, this site's outcome needs {dataset.outputs}.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Share inner layers only (method: global-layers), or agree on one outcome at all sites.",
            )


class _Choice:
    """Which round's model is kept; see BestCheckpoint."""

    def __init__(self, best: BestCheckpoint) -> None:
        self._best, self._values = best, Values()
        self._losses: list[tuple[int, float]] = []

    def consider(self, round_number: int, validation_loss: float, flat: FlatNetwork) -> None:
        self._losses.append((round_number, validation_loss))
        self._best, is_kept = self._best.consider(round_number, validation_loss)
        if is_kept:
            self._values = flat.values()

    def outcome(self, flat: FlatNetwork, dataset: Dataset) -> Outcome:
        if self._values:
            flat.restore(self._values)
        outputs = predict(flat, _rows(dataset.test).features)
        scores = probabilities(dataset.task, outputs)
        evaluation = evaluate(dataset.task, dataset.test.targets, scores, dataset.classes)
        return Outcome(self._best, self._values or flat.values(), evaluation, tuple(self._losses))


def _rows(examples: Examples) -> Rows:
    targets = torch.from_numpy(examples.targets)
    return Rows(torch.from_numpy(examples.features), targets if targets.dtype == torch.int64 else targets.float())
