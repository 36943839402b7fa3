"""A plan's network at this site: its tensors, its memory and its first values.

Federated tensors and the body start from the plan's seed, so that they are equal at every site; all
others start from the site's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from protos.errors import ConfigurationError
from protos.plan.architecture import NamedTensors, Part, TensorSpec, network_tensors
from protos.plan.canonical import digest
from protos.plan.manifest import Manifest, describe_difference
from protos.plan.plan import Plan
from site_agent.trainer.failures import NetworkDiffers
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.models.own_module import build_own_module, check_batch
from site_agent.trainer.training.bridge import FlatNetwork


@dataclass(frozen=True)
class Seeds:
    """What a site draws from: the plan's seed, and for itself seeds that follow from it and the site's name."""

    plan: int
    site: str

    def own(self, purpose: str) -> int:
        """A seed of this site's own for one purpose."""
        return int.from_bytes(digest(purpose, self.plan, self.site)[:7], "little")


@dataclass(frozen=True, kw_only=True)
class SiteNetworks:
    """Builds networks of one plan for one site.

    Attributes:
        plan: the plan.
        columns: how many encoded columns the network reads.
        outputs: how many outputs it has.
        common: how many of the columns are common to all sites; None where that is not told apart.
        own_module: the file of the hospital's own network, where the plan lists tensors only.
    """

    plan: Plan
    columns: int
    outputs: int
    common: int | None = None
    own_module: Path | None = None

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor of the network; of an own module those that the plan names."""
        return network_tensors(self.plan.architecture, columns=self.columns, outputs=self.outputs, common=self.common)

    def build(self) -> nn.Module:
        """The network; ours hold NaN until they are started, a hospital's own starts itself.

        Raises:
            ConfigurationError: the plan wants the hospital's own module, and there is none or it does not fit.
            NetworkDiffers: the network is not what the contract lists.
        """
        if isinstance(self.plan.architecture, NamedTensors):
            if self.own_module is None:
                raise ConfigurationError(
                    what="The plan names tensors of the hospital's own network, and hospital.yaml names no module.",
                    consequence="Nothing was trained and nothing left this site.",
                    remedy="Give the file of your network as own_module under training in hospital.yaml.",
                )
            return build_own_module(self.own_module, self.columns, self.outputs, self.tensors, self.plan.seed)
        network = build_network(self.plan.architecture, self.columns, self.outputs, self.common)
        self._check(network)
        return network

    def check_batch(self, flat: FlatNetwork, rows: int) -> None:
        """Refuse a hospital's own network that cannot be trained on batches of so many rows.

        Raises:
            ConfigurationError: see `own_module.check_batch`.
        """
        if self.own_module is not None and isinstance(self.plan.architecture, NamedTensors):
            check_batch(self.own_module, flat.network, self.columns, rows, [tensor.name for tensor in self.tensors])

    def lay(self, federated: Iterable[TensorSpec], copies: int | None = None) -> FlatNetwork:
        """The network with these tensors laid out as the federated ones.

        Raises:
            NetworkDiffers: it does not have one of them, or in another shape.
        """
        network, wanted = self.build(), tuple(federated)
        found = {name: tuple(inner.shape) for name, inner in network.named_parameters()}
        mine = {tensor.name: found[tensor.name] for tensor in wanted if tensor.name in found}
        difference = describe_difference(Manifest(wanted, ()), mine)
        if difference:
            raise NetworkDiffers(difference)
        return FlatNetwork(network, [tensor.name for tensor in wanted], copies)

    def start(self, flat: FlatNetwork, public: Iterable[TensorSpec], seeds: Seeds, copy: int | None = None) -> None:
        """First values: public tensors and what starts equal from the plan's seed, all others from the site's own.

        Where the plan says `start: own`, all are the site's own, as in the authors' experiment.
        """
        if self.plan.start == "own":
            flat.start(self.tensors, seeds.own("private start"), copy)
            return
        equal = {Part.BODY, *self.plan.ingredients.starts_equal}
        names = {tensor.name for tensor in public} | {tensor.name for tensor in self.tensors if tensor.part in equal}
        flat.start([tensor for tensor in self.tensors if tensor.name in names], seeds.plan, copy)
        flat.start([tensor for tensor in self.tensors if tensor.name not in names], seeds.own("private start"), copy)

    def _check(self, network: nn.Module) -> None:
        """Every tensor is in the contract's list, in its order; nothing is kept outside of it."""
        found = {name: tuple(inner.shape) for name, inner in network.named_parameters()}
        difference = describe_difference(Manifest(self.tensors, ()), found)
        if not difference and list(found) != [tensor.name for tensor in self.tensors]:
            difference = "its tensors stand in another order"
        if not difference and any(True for _ in network.buffers()):
            difference = "it keeps buffers"
        if difference:
            raise NetworkDiffers(difference)
