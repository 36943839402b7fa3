"""Runs many seeds of one federation at once: each site trains a stack of copies, with one copy for each seed.

The networks, procedures, penalties and optimisers are the deployment's own, with one more axis. Each copy has its own
plan (its seed), run and sums. Copies with different shapes cannot be stacked, so methods that choose layers are run one
by one (federations.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from global_layers.one_process import Collection, Part
from protos.plan.exchange import is_measured
from protos.plan.ingredients import Prefix, SensitivePrefix
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.trainer.choice import Measures, Rule
from site_agent.trainer.data.dataset import Dataset, align, input_columns
from site_agent.trainer.site_network import Seeds, SiteNetworks, SiteRows, begin_training, rows_of
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.flat_network import FlatNetwork, State


@dataclass(frozen=True, kw_only=True, eq=False)
class StackOutcome:
    """The outputs of a site's chosen models for its rows, for each copy, including the share of its baseline.

    Attributes:
        rounds: int64 of shape (copies,), the chosen round.
        losses: float64 of shape (copies,), its validation loss.
        validation_outputs: float32 of shape (copies, validation rows, outputs).
        test_outputs: float32 of shape (copies, test rows, outputs).
    """

    rounds: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    validation_outputs: npt.NDArray[np.float32]
    test_outputs: npt.NDArray[np.float32]


def can_stack(plan: Plan) -> bool:
    """Whether all copies of a plan exchange the same layers in every round."""
    method = plan.ingredients
    return not isinstance(method.federated, SensitivePrefix | Prefix)


def federate_stack(
    plans: Sequence[Plan],
    sites: Mapping[str, Sequence[Dataset]],
) -> dict[str, StackOutcome]:
    """Run all rounds of plans that differ only in their seed. Return every site's chosen models.

    Args:
        plans: one for each copy; without masking.
        sites: each one's encoded rows, one data set for each copy, of equal sizes.

    Raises:
        ValueError: the plans cannot be stacked.
        OperatorError: a plan does not fit a site.
    """
    plan = plans[0]
    if not can_stack(plan) or any(other.model_copy(update={"start": plan.start}) != plan for other in plans):
        raise ValueError("plans that differ in their seed alone, and exchange the same layers")
    collections = [Collection(each) for each in plans]
    members = {name: StackedSite(plans, name, datasets) for name, datasets in sites.items()}
    for number in range(plan.rounds):
        offered = [collection.run.offered(number) for collection in collections]
        stage, best = offered[0].offer.stage, [each.offer.best_round for each in offered]
        received = torch.from_numpy(np.stack([each.values for each in offered]))
        for collection in collections:
            collection.begin(number)
        for name, member in members.items():
            updates, scalars = member.round(number, stage, received, best)
            for place, collection in enumerate(collections):
                part = Part(updates=updates[place], scalars=scalars[place], rows=member.rows)
                collection.add(name, number, part)
        for collection in collections:
            collection.close(number)
    results = [collection.run.result() for collection in collections]
    last = torch.from_numpy(np.stack([values for _, values in results]))
    for member in members.values():
        member.close(plan.rounds, last, [finish.best_round for finish, _ in results])
    return {name: member.conclude() for name, member in members.items()}


class StackedSite:
    """One site with a copy for each seed. It does the work of Study for all copies at once."""

    def __init__(
        self,
        plans: Sequence[Plan],
        site: str,
        datasets: Sequence[Dataset],
    ) -> None:
        plan, dataset = plans[0], datasets[0]
        self._plan = plan
        seeds = [Seeds.published(each.seed, site) for each in plans]
        columns, common = input_columns(plan, dataset.columns)
        if plan.columns:
            datasets = [align(each, columns) for each in datasets]
        networks = SiteNetworks(
            plan=plan, columns=len(columns), outputs=dataset.outputs, common=common, module_seed=plan.seed
        )
        self._tensors = Collection(plan).run.manifest.tensors
        rows = stack_rows([rows_of(own) for own in datasets])
        self._training = begin_training(networks, plan.ingredients, self._tensors, rows, seeds)
        self._measures = Measures(plan, len(rows.training), len(rows.validation))
        self._choice = _StackedChoice(plan.checkpoint, len(plans))
        self._has_taken_in, self._is_closed = False, False
        self.rows = self._measures.rows

    def round(
        self, number: int, stage: Stage, received: Tensor, best: Sequence[int | None]
    ) -> tuple[npt.NDArray[np.float32], list[list[int]]]:
        """Train one round.

        Return all copies' updates, float32 (copies, numbers), and each copy's scalars without row count.
        """
        copies = len(received)
        if stage is Stage.VALIDATION:
            self.close(number, received, best)
            return np.empty((copies, 0), np.float32), self._scalars(copies, is_due=True)
        plan, numbers = self._plan, self._training.flat.federated_values.shape[-1]
        values, controls = received[:, :numbers], received[:, numbers:]
        if plan.start.name == "equal" or number > 0:
            self._take_in(values)
        self._choice.follow(best)
        if is_measured(plan, number) and plan.checkpoint != "latest":  # the last model is measured at the end
            self._measure(number)
        local = self._training.local
        local.train_round(plan.schedule.steps_per_round, values, controls if controls.numel() else None)
        update = self._training.flat.update(values).numpy()
        return update, self._scalars(copies, is_due=plan.has_validation_round and is_measured(plan, number))

    def close(self, number: int, received: Tensor, best: Sequence[int | None]) -> None:
        """Load the last aggregates, and measure their validation losses once."""
        if not self._is_closed:
            self._take_in(received)
            self._measure(number)
            self._is_closed = True
        self._choice.follow(best)

    def conclude(self) -> StackOutcome:
        """Return the outputs of the chosen models, fine-tuned if the method requires it."""
        training, epochs = self._training, self._plan.ingredients.fine_tuning_epochs
        flat = training.local.evaluated()
        self._choice.restore(flat)
        if epochs:
            training.local.fine_tune(flat, epochs, training.recipe)
        validation, test = training.results(flat)
        return StackOutcome(
            rounds=self._choice.rounds.numpy(),
            losses=self._choice.losses.numpy(),
            validation_outputs=validation,
            test_outputs=test,
        )

    def _take_in(self, values: Tensor) -> None:
        self._training.flat.take_in(values, self._plan.ingredients.update_rate if self._has_taken_in else 1.0)
        self._has_taken_in = True

    def _measure(self, number: int) -> None:
        self._choice.consider(number, self._training.validation_losses(), self._training.local.evaluated())

    def _scalars(self, copies: int, *, is_due: bool) -> list[list[int]]:
        if not is_due:
            return [[] for _ in range(copies)]
        measured = [self._measures.validation_of(loss) for loss in self._choice.last.tolist()]
        return [list(each.values()) for each in measured]


class _StackedChoice:
    """Chooses a model as `Choice` does, separately for each copy."""

    def __init__(self, rule: Rule, copies: int) -> None:
        self._rule = rule
        self.rounds = torch.full((copies,), -1)
        self.losses = torch.full((copies,), torch.inf, dtype=torch.float64)
        self.last = torch.full((copies,), torch.nan, dtype=torch.float64)
        self._kept: State = {}
        self._waiting: State = {}
        self._measured = -1

    def consider(self, number: int, losses: Tensor, flat: FlatNetwork) -> None:
        """Keep each copy's received model if the rule prefers this model to the copy's earlier models."""
        self.last, self._measured, self._waiting = losses.double(), number, flat.state()
        if self._rule == "latest":
            self._keep(torch.ones(len(losses), dtype=torch.bool))
        elif self._rule == "local":
            self._keep(torch.isfinite(self.last) & (self.last < self.losses))

    def follow(self, best: Sequence[int | None]) -> None:
        """Keep the last candidate of each copy whose run reports its round as the best round over all sites."""
        if self._rule == "global":
            told = torch.tensor([-2 if number is None else number for number in best])
            self._keep((told == self._measured) & (self.rounds != told))

    def restore(self, flat: FlatNetwork) -> None:
        """Load the chosen model into every copy.

        A copy without a chosen model keeps the model that was measured last.
        """
        self._keep(self.rounds < 0)
        flat.restore(self._kept)

    def _keep(self, chosen: Tensor) -> None:
        if not self._kept:
            self._kept = {name: tensor.clone() for name, tensor in self._waiting.items()}
        for name, tensor in self._waiting.items():
            self._kept[name][chosen] = tensor[chosen]
        self.rounds[chosen], self.losses[chosen] = self._measured, self.last[chosen]


def stack_rows(many: Sequence[SiteRows]) -> SiteRows:
    """Stack data sets with the same number of rows, so that each copy of the network has its own data set."""

    def stacked(parts: list[Rows]) -> Rows:
        return Rows(torch.stack([p.features for p in parts]), torch.stack([p.targets for p in parts]))

    return SiteRows(
        task=many[0].task,
        training=stacked([rows.training for rows in many]),
        validation=stacked([rows.validation for rows in many]),
        test=stacked([rows.test for rows in many]),
    )
