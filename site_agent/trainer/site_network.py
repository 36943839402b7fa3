"""Builds a plan's network at this site, and prepares its training: initial values, procedure and batches.

Federated tensors start from the plan's seed, so that they are equal at every site. All others start from a secret of
the site, because somebody who could compute a private layer would learn more from a sum of updates. The study and the
same network trained alone both start here. So both train by the same code.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    ConvolutionalNetwork,
    DenseNetwork,
    GlobalLayersNetwork,
    NamedTensors,
    ParallelNetwork,
    Part,
    TensorSpec,
    network_tensors,
)
from protos.plan.canonical import digest, pack
from protos.plan.ingredients import Method
from protos.plan.manifest import Starts, started
from protos.plan.network_plan import NetworkPlan
from protos.plan.schedules import StepSchedule
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.failures import NetworkDiffers
from site_agent.trainer.fitting import require_module
from site_agent.trainer.models.dense_models import Columns, Dense, Parallel
from site_agent.trainer.models.global_layers_model import GlobalLayers
from site_agent.trainer.models.image_models import Convolutional
from site_agent.trainer.models.user_module import build_user_module, check_batch, freeze_tensors
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.flat_network import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, predict
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Recipe


def build_network(architecture: Architecture, columns: int, outputs: int, common: int | None = None) -> nn.Module:
    """Build the network of a plan, float32 on the CPU, from rows (B, columns) to logits (B, outputs).

    Its parameters are exactly `network_tensors`, in that order, and NaN until the caller has filled them. Every network
    has `represent` and `decide`, see `layers.Represents`. `common` is the number of first columns that the plan lists
    for all sites; None means all. Raise ConfigurationError if sizes are out of range.
    """
    shared = columns if common is None else common
    # Sizes are checked before memory is reserved.
    network_tensors(architecture, columns=columns, outputs=outputs, common=shared)
    match architecture:
        case GlobalLayersNetwork():
            return GlobalLayers(architecture, columns, outputs)
        case DenseNetwork():
            return Dense(architecture, columns, outputs)
        case ParallelNetwork():
            return Parallel(architecture, columns, outputs, shared)
        case ColumnsNetwork():
            return Columns(architecture, columns, outputs, shared)
        case ConvolutionalNetwork():
            return Convolutional(architecture, outputs)
        case NamedTensors():
            raise TypeError("a hospital builds this network itself")
        case _:
            assert_never(architecture)


@dataclass(frozen=True)
class Seeds:
    """A site's sources of random numbers: the plan's public seed for shared values, and its own for all other values.

    `origin` is 32 bytes derived from the site's secret and the plan's digest. In experiments that anybody must be able
    to repeat, it is the plan's seed.
    """

    plan: int
    site: str
    origin: int | bytes = field(repr=False)

    @classmethod
    def secret(cls, secret: bytes, plan: NetworkPlan, site: str) -> Seeds:
        """Return the seeds of a hospital's random numbers. Two plans with the same seed still get different ones."""
        return cls(plan.seed, site, hmac.digest(secret, pack("draws", plan.digest, site), "sha256"))

    @classmethod
    def published(cls, seed: int, site: str) -> Seeds:
        """Return the seeds of an experiment with public data. The seeds depend only on the plan's seed."""
        return cls(seed, site, seed)

    def own(self, purpose: str) -> int:
        """Return this site's own seed of random numbers for one purpose."""
        return int.from_bytes(digest(purpose, self.origin, self.site)[:7], "little")

    @property
    def is_published(self) -> bool:
        """Whether the site's random numbers depend only on public seeds, as in experiments with public data."""
        return isinstance(self.origin, int)

    @property
    def private_start(self) -> int | bytes:
        """The seed for the initial parameters of private layers."""
        own = "private start"
        return self.own(own) if isinstance(self.origin, int) else digest(own, self.origin, self.site)

    @property
    def user_module(self) -> int:
        """The seed of the initial values that a hospital's own network draws."""
        return self.plan if self.is_published else self.own("own module")


@dataclass(frozen=True, kw_only=True)
class SiteNetworks:
    """Builds networks of one plan for one site.

    The network reads `columns` encoded columns. All sites have `common` of them; None if the network treats all columns
    alike. `user_module` is the file of the hospital's own network, if the plan lists only tensors. `module_seed` is the
    seed of its first values. `starts` are the values of the plan's starting file. `device` is `cpu` or `cuda`.
    """

    plan: NetworkPlan
    columns: int
    outputs: int
    common: int | None = None
    user_module: Path | None = None
    module_seed: int
    starts: Starts | None = None
    device: str = "cpu"

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the network. For a hospital's own module, only the tensors that the plan names."""
        architecture, sizes = self.plan.architecture, {"columns": self.columns, "outputs": self.outputs}
        return started(self.plan, network_tensors(architecture, **sizes, common=self.common), self.starts)

    def build(self) -> nn.Module:
        """Build the network. Its parameters are NaN until `start` is called, except for a hospital's own module.

        Raises:
            ConfigurationError: the hospital's own module is missing or does not fit, or libraries make other tensors.
        """
        if isinstance(self.plan.architecture, NamedTensors):
            require_module(self.plan, has_module=self.user_module is not None)
            assert self.user_module is not None
            network = build_user_module(self.user_module, self.columns, self.outputs, self.tensors, self.module_seed)
            frozen = started(self.plan, self.plan.architecture.frozen, self.starts)
            freeze_tensors(self.user_module, network, frozen, self.plan.seed)
            return network
        network = build_network(self.plan.architecture, self.columns, self.outputs, self.common)
        found = [(name, tuple(one.shape)) for name, one in (*network.named_parameters(), *network.named_buffers())]
        if found != [(tensor.name, tensor.shape) for tensor in self.tensors]:
            raise NetworkDiffers
        return network

    def lay(self, federated: Iterable[TensorSpec]) -> FlatNetwork:
        """Build the network with its federated tensors in one flat tensor."""
        return FlatNetwork(self.build(), [tensor.name for tensor in federated], self.device)

    def start(self, flat: FlatNetwork, public: Iterable[TensorSpec], seeds: Seeds) -> None:
        """Set the network's initial parameters. The plan's seed determines the shared tensors: all sites start equal.

        It also determines tensors that the method starts equal. The site's own seed determines all others. If the plan
        has `start: own`, the site's seed determines all tensors, as in the authors' experiment. In published
        experiments a body starts equal also if it is private.
        """
        if self.plan.start.name == "own":
            flat.start(self.tensors, seeds.private_start)
            return
        equal = {*self.plan.ingredients.starts_equal} | ({Part.BODY} if seeds.is_published else set())
        names = {tensor.name for tensor in public} | {tensor.name for tensor in self.tensors if tensor.part in equal}
        flat.start([tensor for tensor in self.tensors if tensor.name in names], seeds.plan)
        flat.start([tensor for tensor in self.tensors if tensor.name not in names], seeds.private_start)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteRows:
    """A site's encoded rows."""

    task: Task
    training: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteTraining:
    """A network that is ready for training, with its rows. A round sends the update of `flat`, which `local` trains."""

    flat: FlatNetwork
    local: LocalTraining
    recipe: Recipe
    rows: SiteRows

    def validation_losses(self) -> Tensor:
        """Return the validation loss of the network that the site would use for predictions: shape ()."""
        rows = self.rows.validation
        return self.recipe.loss(torch.from_numpy(predict(self.local.evaluated(), rows.features)), rows.targets)

    def results(self, flat: FlatNetwork) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the outputs of a network for the validation and the test rows: float32 (rows, outputs)."""
        return predict(flat, self.rows.validation.features), predict(flat, self.rows.test.features)


def begin_training(
    networks: SiteNetworks, method: Method, federated: Sequence[TensorSpec], rows: SiteRows, seeds: Seeds
) -> SiteTraining:
    """Build the networks of a method at a site, and prepare their training, whose rounds send updates of `federated`.

    Raises:
        OperatorError: plan, network and rows do not fit one another.
    """
    plan = networks.plan
    recipe = Recipe(
        build=lambda: networks.lay(federated),
        loss=build_loss(plan.loss, rows.task, networks.outputs, rows.training.targets),
        optimiser=plan.optimiser,
    )
    flat = recipe.build()
    networks.start(flat, federated, seeds)
    schedule = plan.schedule
    batches = Batches(
        len(rows.training),
        schedule.batches(len(rows.training)),
        np.random.default_rng(seeds.own("batch order")),
        batch_rows=schedule.batch_rows if isinstance(schedule, StepSchedule) else None,
    )
    if networks.user_module is not None and isinstance(plan.architecture, NamedTensors):
        names = [tensor.name for tensor in networks.tensors]
        check_batch(networks.user_module, flat.network, networks.columns, batches.rows_in_each, names)
    procedure, dropout = build_procedure(method, flat, recipe), seeds.own("dropout")
    local = LocalTraining(procedure, rows=rows.training, batches=batches, dropout_seed=dropout)
    return SiteTraining(flat=flat, local=local, recipe=recipe, rows=rows)


def rows_of(dataset: Dataset) -> SiteRows:
    """Return a site's data set as tensors."""
    training, validation, test = (_rows(part) for part in (dataset.training, dataset.validation, dataset.test))
    return SiteRows(task=dataset.task, training=training, validation=validation, test=test)


def _rows(examples: Examples) -> Rows:
    targets = torch.from_numpy(examples.targets)
    return Rows(torch.from_numpy(examples.features), targets if targets.dtype == torch.int64 else targets.float())
