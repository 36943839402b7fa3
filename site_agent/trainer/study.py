"""Trains the network of one plan at one site, round by round, then chooses a model and tests it.

Everything stays at the site except the result of `train`. The site's gain is measured against the same network trained
alone, with the same budget and the same rule of choice (network_baselines.py). The rules:

* `train` returns exactly the tensors and scalars of the round. Their names, shapes and order are read from the
  network's memory and compared before the first step;
* the round number never falls. After a loss of memory the study continues from a saved state;
* a model whose validation loss is not finite is never chosen. If no other model remains, none is reported.

The site's random draws (first values of private layers, order of batches, dropout) follow from its own secret and the
plan. So this site can repeat its training to the bit, and nobody else can compute the draws.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.numbers.fixed_point import NotFinite
from protos.numbers.short_integers import (
    WIDTHS,
    Integers,
    encode_short,
    largest_integer,
    rounding_stream,
    unpack_exponents,
)
from protos.plan.architecture import TensorSpec
from protos.plan.canonical import digest
from protos.plan.exchange import Exchange, Exchanges, is_measured
from protos.plan.ingredients import InnerProblem, Mixture, PersonalCopy, SensitivePrefix
from protos.plan.manifest import Manifest, Starts, largest_weight, manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.noisy_results import local_change
from protos.plan.short_wire import layer_parts
from protos.wire.messages import MalformedMessage, Stage
from site_agent.trainer.choice import Choice, Measures
from site_agent.trainer.data.dataset import Dataset, align, input_columns
from site_agent.trainer.disk import Json, SavedStudy
from site_agent.trainer.failures import TrainingDiverged
from site_agent.trainer.fitting import check_fit
from site_agent.trainer.prior.concept_columns import ConceptInputs, shared_count
from site_agent.trainer.requests import Answer, Asked, PlannedStudy, Vector
from site_agent.trainer.site_network import Seeds, SiteNetworks, SiteTraining, begin_training, rows_of
from site_agent.trainer.training.flat_network import part_of, prefixed
from site_agent.trainer.training.local import sensitivities
from site_agent.trainer.training.private_gradient import PrivateRows, private_sums

# Receives the choice so far, and whether no later model follows.
Watch: TypeAlias = Callable[[Choice, bool], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The chosen model and its predictions on this site's rows. The predictions include the baseline's part.

    `choice` has the chosen round with the losses that decided. Both outputs are float32 of shape (rows, outputs), and
    those of test rows are finite.
    """

    choice: dict[str, Json]
    values: dict[str, npt.NDArray[np.generic]] = field(repr=False)
    validation_outputs: npt.NDArray[np.float32] = field(repr=False)
    test_outputs: npt.NDArray[np.float32] = field(repr=False)


class Study(PlannedStudy):
    """One plan that this site trains: its network, its data and its state."""

    def __init__(
        self,
        plan: NetworkPlan,
        dataset: Dataset,
        *,
        seeds: Seeds,
        user_module: Path | None = None,
        inputs: ConceptInputs | None = None,
        starts: Starts | None = None,
        device: str = "cpu",
    ) -> None:
        """Build the network, and prepare its training.

        `user_module` is the file of the hospital's own network. `inputs` are for a network that reads
        concepts; others read the site's own columns. `device` is `cpu` or `cuda`.

        Raises:
            OperatorError: the plan does not fit this site's table, network or number of rows.
        """
        self.plan, self.own, self.seeds, self.user_module, self.inputs = plan, dataset, seeds, user_module, inputs
        check_fit(plan, dataset, seeds.site)
        self.manifest = manifest_of(plan, starts)
        self._exchanges = Exchanges(plan, self.manifest)
        self.dataset, common = _read(plan, dataset, inputs)
        self.data_digest, self.training_rows = dataset.digest, len(dataset.training)
        self.column_count = len(self.dataset.columns)
        self.networks = SiteNetworks(
            plan=plan,
            columns=len(self.dataset.columns),
            outputs=dataset.outputs,
            common=common,
            user_module=user_module,
            module_seed=seeds.user_module,
            starts=starts,
            device=device,
        )
        self._measures = Measures(plan, len(self.dataset.training), len(self.dataset.validation))
        self._begin_training(b"", self.manifest.tensors)
        self.choice, self._rounds_taken, self._is_closed = Choice(plan.checkpoint), 0, False
        self._own_start = self._training.flat.private.data.clone() if plan.own_numbers else None
        self._trains = plan.tier_of(seeds.site) == "training"
        # Called after each measured round, with whether this round is the last one. It changes nothing.
        self.watch: Watch = lambda *_: None
        self.remember: Callable[[], None] = lambda: None  # before the first answer, which values it depends on

    @property
    def site(self) -> str:
        return self.seeds.site

    @property
    def rows(self) -> int:
        """The number of training rows, which decides this site's weight; 0 with equal weights or without training."""
        return self._measures.rows if self._trains else 0

    def count_rows_as(self, training_rows: int, validation_rows: int) -> None:
        """Compute this site's weights from the given numbers of rows, instead of the table's numbers."""
        self._measures = Measures(self.plan, training_rows, validation_rows)

    def train(self, asked: Asked, received: Vector) -> Answer:
        """Load the received parameters, do the work of a round, and return the values to send. No report is written.

        The round must not be earlier than the last one. `received` is finite float32 (numbers that come
        down,). Control variates follow the parameters.

        Raises:
            MalformedMessage: the round is over, is not in the plan, or the values do not fit.
        """
        exchange = self.exchange(asked)
        _check_received(received, exchange.down_numbers)
        match asked.stage:
            case Stage.PROBE:
                return self._probe()
            case Stage.TRAINING:
                return self._train(asked, exchange, received)
            case Stage.VALIDATION:
                self.close(asked, received)
                return Answer(scalars=self._scalars(exchange))
            case Stage.STATISTICS | Stage.NEWTON | Stage.GUARD:
                raise MalformedMessage("sums under a plan that trains a network")
            case None:
                raise ValueError("a result is no round")

    def close(self, asked: Asked, received: Vector) -> None:
        """Load the final shared parameters and measure their loss once. Raise MalformedMessage if they do not fit."""
        _check_received(received, sum(tensor.number_count for tensor in self._exchanges.result(asked.layers)))
        if not self._is_closed:
            self._follow_layers(asked)
            self._follow_own_sums(asked)
            self.choice.follow(asked.best_round)  # before the next measurement replaces the waiting model
            self._take_in(asked, torch.from_numpy(received))
            # If this site missed the validation round, the result is the same model.
            has_passed = asked.stage is None and self.plan.has_validation_round
            self._measure(asked.round - has_passed, is_last=True)
            self._rounds_taken, self._is_closed = self.plan.rounds, True
        self.choice.follow(asked.best_round)

    def saved(self) -> SavedStudy:
        tensors = prefixed("training", self._training.local.state()) | prefixed("choice", self.choice.state())
        if self._short is not None:
            tensors["residual"] = torch.from_numpy(self._short.residual.copy())
        facts: dict[str, Json] = {
            "layers": self._layers.hex(),
            "rounds taken": self._rounds_taken,
            "is closed": self._is_closed,
        }
        return SavedStudy(tensors=tensors, facts=facts)

    def restore(self, saved: SavedStudy) -> None:
        facts: Any = saved.facts  # JSON that this class wrote, under a digest
        layers = bytes.fromhex(facts["layers"])
        if layers != self._layers:
            self._begin_training(layers, self._exchanges.result(layers))
        if self._short is not None:
            self._short.residual[...] = saved.tensors["residual"].numpy()
        self._training.local.restore(part_of(saved.tensors, "training"))
        self.choice.restore(part_of(saved.tensors, "choice"))
        self._rounds_taken, self._is_closed = facts["rounds taken"], facts["is closed"]

    def conclude(self) -> Outcome:
        """Return the chosen model, fine-tuned if the method requires it. Raise TrainingDiverged if none is finite."""
        return conclude(self.plan, self._training, self.choice)

    def _train(self, asked: Asked, exchange: Exchange, received: Vector) -> Answer:
        if self._is_closed or asked.round < self._rounds_taken:
            raise MalformedMessage("a round that is over")
        shared = torch.from_numpy(received)
        values, controls = shared[: exchange.down_parameters], shared[exchange.down_parameters :]
        self._begin_round(asked, values)
        local = self._training.local
        if self.plan.private_training is not None:
            own = self._training.flat.values()
            arrays = [own[tensor.name].astype(np.float64) for tensor in self.networks.tensors]
            sums = private_sums(self.plan.private_training, arrays, self._private_rows, os.urandom)
            if isinstance(self.plan.ingredients.procedure, PersonalCopy | Mixture | InnerProblem):
                # The personal model stays at this site, and the shared model is replaced.
                local.train_round(self.plan.schedule.steps_per_round, values, None)
            return Answer(scalars=sums)
        if self._trains:  # otherwise the parameters stay as received, and the update is zeros
            local.train_round(self.plan.schedule.steps_per_round, values, controls if exchange.has_controls else None)
        update, scalars = self._training.flat.update(values).numpy(), self._scalars(exchange)
        if self._short is None:
            return Answer(updates=update, scalars=scalars)
        if not self._trains:
            return Answer(updates=np.zeros(update.size, WIDTHS[self.plan.bits]), scalars=scalars)
        weight = self.rows / largest_weight(self.plan) if self.rows else 1.0
        try:
            return Answer(updates=self._short.encode(update, asked, weight), scalars=scalars)
        except NotFinite as cause:
            raise TrainingDiverged from cause

    @cached_property
    def _private_rows(self) -> PrivateRows:
        rows = self.dataset.training
        return PrivateRows.of(rows.features, np.asarray(rows.targets, np.float64), self.own.training_patients)

    def _scalars(self, exchange: Exchange) -> tuple[int, ...]:
        values = self._measures.validation_of(self.choice.curve[-1].loss) if self.choice.curve else {}
        return tuple(values[scalar.name] for scalar in exchange.scalars if scalar.name != "rows")

    def _probe(self) -> Answer:
        if self._rounds_taken:
            raise MalformedMessage("a probe after training has begun")
        training, before = self._training, self._training.local.state()
        own = training.flat.federated_values.clone()  # no values or control variates were received yet
        training.local.train_round(self.plan.schedule.batches(len(self.dataset.training)), own, torch.zeros_like(own))
        found = sensitivities(training.flat, training.rows.training, training.recipe.loss, self.networks.tensors)
        training.local.restore(before)
        return Answer(scalars=self._measures.sensitivities(found.tolist()))

    def _begin_round(self, asked: Asked, values: Tensor) -> None:
        self._follow_layers(asked)
        self._take_in(asked, values)
        self._follow_own_sums(asked)
        self.choice.follow(asked.best_round)
        self._measure(asked.round)
        self._rounds_taken = asked.round + 1

    def _follow_layers(self, asked: Asked) -> None:
        """After the sites have chosen the first layers, start training again with only these layers federated."""
        if not isinstance(self.plan.ingredients.federated, SensitivePrefix) or asked.layers == self._layers:
            return
        if self._rounds_taken:
            raise MalformedMessage("other layers than those that were chosen")
        self._begin_training(asked.layers, self._exchanges.result(asked.layers))

    def _take_in(self, asked: Asked, values: Tensor) -> None:
        if self.plan.start.name == "own" and asked.round == 0:
            return  # these values are untrained; the first mean uses the initial values of each site
        rate = self.plan.ingredients.update_rate if self._rounds_taken else 1.0
        self._training.flat.take_in(values, rate)

    def _follow_own_sums(self, asked: Asked) -> None:
        """Compute private layers in a private run: initial values plus one step for each noisy sum that the gate kept.

        Nothing else changes these layers. So a trainer that lost its memory computes the same layers, and no sum
        receives noise twice.
        """
        training = self.plan.private_training
        if training is None or self._own_start is None:
            return
        if len(asked.own_sums) not in (0, training.own_numbers):
            raise MalformedMessage("sums of private layers that the network does not have")
        moved = local_change(training, np.array(asked.own_sums or 0, np.float64)).astype(np.float32)
        self._training.flat.private.data.copy_(self._own_start.cpu() + torch.from_numpy(np.asarray(moved)))

    def _measure(self, round_number: int, *, is_last: bool = False) -> None:
        if is_last or is_measured(self.plan, round_number):
            training = self._training
            self.choice.consider(round_number, float(training.validation_losses()), training.local.evaluated())
            self.watch(self.choice, is_last)

    def _begin_training(self, layers: bytes, federated: tuple[TensorSpec, ...]) -> None:
        method, rows = self.plan.ingredients, rows_of(self.dataset)
        self._layers, self._short = layers, None
        self._training = begin_training(self.networks, method, federated, rows, self.seeds)
        if self.plan.bits != 32:
            key = digest("short updates", self.seeds.origin, self.site)
            self._short = ShortUpdates(self.plan, self.manifest, federated, key)


def _read(plan: NetworkPlan, own: Dataset, inputs: ConceptInputs | None) -> tuple[Dataset, int | None]:
    """Return the rows in the network's input format, and the number of shared columns, None if all are alike."""
    if (inputs is None) == plan.reads_concepts:
        raise ValueError("a network reads concepts or it does not")
    if inputs is not None:
        return inputs.dataset, shared_count(plan)
    columns, common = input_columns(plan, own.columns)
    return (align(own, columns) if plan.columns else own), common


def conclude(plan: NetworkPlan, training: SiteTraining, choice: Choice) -> Outcome:
    """Restore the chosen model, fine-tune it if required, and predict. Raise TrainingDiverged if none is finite."""
    flat = training.local.evaluated()
    if not choice.restore_chosen(flat):
        raise TrainingDiverged
    if plan.ingredients.fine_tuning_epochs:
        training.local.fine_tune(flat, plan.ingredients.fine_tuning_epochs, training.recipe)
    validation, test = training.results(flat)
    if not np.isfinite(test).all():
        raise TrainingDiverged
    return Outcome(choice=choice.facts(), values=flat.values(), validation_outputs=validation, test_outputs=test)


def _check_received(values: npt.NDArray[np.float32], numbers: int) -> None:
    # The smallest and the largest value are NaN if any value is. This needs no second array.
    is_finite = not values.size or (math.isfinite(values.min()) and math.isfinite(values.max()))
    if values.shape != (numbers,) or not is_finite:
        raise MalformedMessage("shared values of another size, or not finite")


class ShortUpdates:
    """Encodes the updates of one site in one run.

    `key` comes from the site's secret, and draws the rounding. `residual` is float32 of shape (numbers of an update,):
    private state, which never leaves the site.
    """

    def __init__(self, plan: NetworkPlan, manifest: Manifest, tensors: tuple[TensorSpec, ...], key: bytes) -> None:
        self._layers, self._key, self._kind = manifest.layers, key, WIDTHS[plan.bits]
        self._limit = largest_integer(plan.bits, len(plan.sites))
        self._parts = tuple(layer_parts(tensors))
        self.residual = np.zeros(sum(tensor.number_count for tensor in tensors), np.float32)

    def encode(self, update: Vector, asked: Asked, weight: float) -> Integers:
        """Return an update as integers.

        Args:
            update: float32 of the shape of `residual`.
            weight: of this site in the round's mean, above 0.

        Raises:
            MalformedMessage: the offer has scales for other layers.
            NotFinite: a value is infinite or not a number.
        """
        if len(asked.scales) != len(self._layers):
            raise MalformedMessage("scales of other layers than the manifest's")
        exponents = dict(zip(self._layers, unpack_exponents(asked.scales), strict=True))
        stream, out = rounding_stream(digest("rounding", self._key, asked.round)), np.empty(update.size, self._kind)
        for layer, part in self._parts:
            values, rest = update[part], self.residual[part]
            encode_short(values, rest, exponents[layer], weight, self._limit, stream, out[part])
        return out
