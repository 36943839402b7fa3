"""A method begun at a site: its networks started, its procedure, its batches.

One function begins every training of this program: a study's, the same network's alone, and the stacks of
copies in which experiments train many seeds at once. So all of them train by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protos.architecture import TensorSpec
from protos.ingredients import Method
from protos.schedules import StepSchedule
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.networks import Seeds, SiteNetworks
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Pace, validation_loss
from site_agent.trainer.training.losses import build_loss
from site_agent.trainer.training.model import Recipe
from site_agent.trainer.training.procedures import build_procedure


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteRows:
    """A site's encoded rows; for a stack each tensor has a first axis of its length."""

    task: Task
    training: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteTraining:
    """What `begin_training` has begun.

    Attributes:
        flat: the network whose change is handed out.
        local: trains it.
        recipe: what all its models share.
        rows: what it trains and is measured on.
    """

    flat: FlatNetwork
    local: LocalTraining
    recipe: Recipe
    rows: SiteRows

    def validation_losses(self) -> Tensor:
        """The loss of the network that the site would use, on its validation rows: shape (), or (copies,)."""
        return validation_loss(self.local.evaluated(), self.rows.validation, self.recipe.loss)


def begin_training(
    networks: SiteNetworks, method: Method, federated: Sequence[TensorSpec], rows: SiteRows, seeds: Seeds | list[Seeds]
) -> SiteTraining:
    """Build, lay out and start the networks of a method at a site.

    Args:
        networks: of the plan and the site.
        method: its procedure and penalties are followed.
        federated: the tensors whose change is handed out.
        rows: encoded.
        seeds: one list entry for each copy where many are trained in a stack.

    Raises:
        OperatorError: plan, network and rows do not fit one another.
    """
    plan = networks.plan
    copies = len(seeds) if isinstance(seeds, list) else None
    each = seeds if isinstance(seeds, list) else [seeds]
    recipe = Recipe(
        build=lambda: networks.lay(federated, copies),
        loss=build_loss(plan.loss, rows.task, networks.outputs, rows.training.targets),
        optimiser=plan.optimiser,
    )
    flat = recipe.build()
    for number, own in enumerate(each):
        networks.start(flat, federated, own, None if copies is None else number)
    orders = [np.random.default_rng(own.own("batch order")) for own in each]
    schedule = plan.schedule
    batches = Batches(
        len(rows.training),
        schedule.batches(len(rows.training)),
        orders,
        stacked=copies is not None,
        batch_rows=schedule.batch_rows if isinstance(schedule, StepSchedule) else None,
    )
    pace = Pace(schedule=plan.rate_schedule, steps=schedule.rounds * schedule.steps_per_round)
    procedure = build_procedure(method, flat, recipe)
    local = LocalTraining(
        procedure, rows=rows.training, batches=batches, pace=pace, dropout_seed=each[0].own("dropout")
    )
    return SiteTraining(flat=flat, local=local, recipe=recipe, rows=rows)


def rows_of(dataset: Dataset) -> SiteRows:
    """A site's data set as tensors."""
    training, validation, test = (_rows(part) for part in (dataset.training, dataset.validation, dataset.test))
    return SiteRows(task=dataset.task, training=training, validation=validation, test=test)


def stack_rows(many: Sequence[SiteRows]) -> SiteRows:
    """Equally large data sets, one for each copy of a stack."""

    def stacked(parts: list[Rows]) -> Rows:
        return Rows(torch.stack([p.features for p in parts]), torch.stack([p.targets for p in parts]))

    return SiteRows(
        task=many[0].task,
        training=stacked([rows.training for rows in many]),
        validation=stacked([rows.validation for rows in many]),
        test=stacked([rows.test for rows in many]),
    )


def _rows(examples: Examples) -> Rows:
    targets = torch.from_numpy(examples.targets)
    return Rows(torch.from_numpy(examples.features), targets if targets.dtype == torch.int64 else targets.float())
