"""Starts a method's training at a site: its networks, its procedure and its batches.

The study, the same network trained alone, and the stacks of copies in experiments all start here. So all of them train
by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.plan.architecture import ImageNetwork, TensorSpec, UNetNetwork
from protos.plan.ingredients import Method
from protos.plan.plan import Plan
from protos.plan.schedules import StepSchedule
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.site_network import Seeds, SiteNetworks
from site_agent.trainer.training.augmented import Augmenting
from site_agent.trainer.training.batches import Batches, Rows, check_batches
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Pace, predict, validation_loss
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteRows:
    """A site's encoded rows. If several copies of a network train together, each array has a first axis (copies,)."""

    task: Task
    training: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteTraining:
    """A network that is ready for training, with its procedure and its rows.

    A round sends the update of `flat`, which `local` trains.
    """

    flat: FlatNetwork
    local: LocalTraining
    recipe: Recipe
    rows: SiteRows

    def validation_losses(self) -> Tensor:
        """Return the validation loss of the network that the site would use for predictions: shape (), or (copies,)."""
        return validation_loss(self.local.evaluated(), self.rows.validation, self.recipe.loss)

    def results(self, flat: FlatNetwork) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the outputs of a network for the validation and the test rows: float32 (rows, outputs)."""
        return predict(flat, self.rows.validation.features), predict(flat, self.rows.test.features)


def begin_training(
    networks: SiteNetworks, method: Method, federated: Sequence[TensorSpec], rows: SiteRows, seeds: Seeds | list[Seeds]
) -> SiteTraining:
    """Build the networks of a method at a site, and prepare their training.

    A round sends the update of the tensors `federated`. `seeds` is a list for a stack, with an entry for each copy. The
    first entry draws the dropout of all copies, so a copy has other draws than if it were trained alone.

    Raises:
        OperatorError: plan, network and rows do not fit one another.
    """
    plan = networks.plan
    copies = len(seeds) if isinstance(seeds, list) else None
    each = seeds if isinstance(seeds, list) else [seeds]
    recipe = _recipe(networks, federated, rows, copies)
    flat = recipe.build()
    for number, own in enumerate(each):
        copy = None if copies is None else number
        networks.start(flat, federated, own, copy)
    orders = [np.random.default_rng(own.own("batch order")) for own in each]
    schedule = plan.schedule
    check_batches(schedule, len(rows.training))
    batches = Batches(
        len(rows.training),
        schedule.batches(len(rows.training)),
        orders,
        stacked=copies is not None,
        batch_rows=schedule.batch_rows if isinstance(schedule, StepSchedule) else None,
    )
    networks.check_batch(flat, batches.rows_in_each)
    pace = Pace(schedule=plan.rate_schedule, steps=schedule.rounds * schedule.steps_per_round)
    procedure = build_procedure(method, flat, recipe)
    local = LocalTraining(
        procedure,
        rows=rows.training,
        batches=batches,
        pace=pace,
        dropout_seed=each[0].own("dropout"),
        augmenting=_augmenting(plan, each),
    )
    return SiteTraining(flat=flat, local=local, recipe=recipe, rows=rows)


def _recipe(networks: SiteNetworks, federated: Sequence[TensorSpec], rows: SiteRows, copies: int | None) -> Recipe:
    plan = networks.plan
    loss = build_loss(plan.loss, rows.task, networks.outputs, rows.training.targets)
    return Recipe(
        build=lambda: networks.lay(federated, copies),
        loss=loss,
        optimiser=plan.optimiser,
    )


def _augmenting(plan: Plan, seeds: Sequence[Seeds]) -> Augmenting | None:
    network = plan.architecture
    if not plan.augmentation or not isinstance(network, ImageNetwork | UNetNetwork):
        return None
    each = [own.own("augmentation") for own in seeds]
    has_masks = isinstance(network, UNetNetwork)
    return Augmenting(image=network.image, steps=plan.augmentation, seeds=each, has_masks=has_masks)


def rows_of(dataset: Dataset) -> SiteRows:
    """Return a site's data set as tensors."""
    training, validation, test = (_rows(part) for part in (dataset.training, dataset.validation, dataset.test))
    return SiteRows(task=dataset.task, training=training, validation=validation, test=test)


def _rows(examples: Examples) -> Rows:
    targets = torch.from_numpy(examples.targets)
    return Rows(torch.from_numpy(examples.features), targets if targets.dtype == torch.int64 else targets.float())
