"""Builds a plan's network at this site: its tensors, its memory and its initial values.

Federated tensors start from the plan's seed, so that they are equal at every site. All others start from a secret of
the site, because somebody who could compute a private layer would learn more from a sum of updates.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import nn

from protos.plan.architecture import NamedTensors, Part, TensorSpec, network_tensors
from protos.plan.canonical import digest, pack
from protos.plan.manifest import Manifest, Starts, started
from protos.plan.plan import Plan
from site_agent.trainer.failures import NetworkDiffers, unfit
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.models.own_module import build_own_module, check_batch, keep_terms
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import check_memory


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
    def secret(cls, secret: bytes, plan: Plan, site: str) -> Seeds:
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
    def own_module(self) -> int:
        """The seed of the initial values that a hospital's own network draws."""
        return self.plan if self.is_published else self.own("own module")


@dataclass(frozen=True, kw_only=True)
class SiteNetworks:
    """Builds networks of one plan for one site.

    The network reads `columns` encoded columns. All sites have `common` of them; None if the network treats all columns
    alike. `own_module` is the file of the hospital's own network, if the plan lists only tensors, and `module_seed` the
    seed of its first values. `starts` are the values of the plan's starting file. `device` is `cpu` or `cuda`.
    """

    plan: Plan
    columns: int
    outputs: int
    common: int | None = None
    own_module: Path | None = None
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
            ConfigurationError: the plan requires the hospital's own module, and the module is missing or does not fit.
            NetworkDiffers: the network has other tensors than its plan lists.
        """
        if isinstance(self.plan.architecture, NamedTensors):
            if self.own_module is None:
                raise unfit(
                    what="The plan needs the hospital's own network, but hospital.yaml does not name its file.",
                    remedy="In hospital.yaml, set own_module under training to the Python file of your network.",
                )
            network = build_own_module(self.own_module, self.columns, self.outputs, self.tensors, self.module_seed)
            declared = self.plan.architecture
            frozen = started(self.plan, declared.frozen, self.starts)
            keep_terms(self.own_module, network, declared, frozen, self.plan.seed, self.columns)
            return network
        network = build_network(self.plan.architecture, self.columns, self.outputs, self.common)
        self._check(network)
        return network

    def check_batch(self, flat: FlatNetwork, rows: int) -> None:
        """Raise an error if the network cannot train on batches of this size. See `check_memory` and `check_batch`."""
        check_memory(flat, rows)
        if self.own_module is not None and isinstance(self.plan.architecture, NamedTensors):
            check_batch(self.own_module, flat.network, self.columns, rows, [tensor.name for tensor in self.tensors])

    def lay(self, federated: Iterable[TensorSpec], copies: int | None = None) -> FlatNetwork:
        """Build the network with its federated tensors in one flat tensor, or raise NetworkDiffers."""
        network, wanted = self.build(), tuple(federated)
        found = {name: tuple(inner.shape) for name, inner in network.named_parameters()}
        mine = {tensor.name: found[tensor.name] for tensor in wanted if tensor.name in found}
        difference = describe_difference(Manifest(wanted, ()), mine)
        if difference:
            raise NetworkDiffers(difference)
        return FlatNetwork(network, [tensor.name for tensor in wanted], copies, self.device)

    def start(self, flat: FlatNetwork, public: Iterable[TensorSpec], seeds: Seeds, copy: int | None = None) -> None:
        """Set the network's initial parameters. The plan's seed determines the shared tensors: all sites start equal.

        It also determines tensors that the method starts equal. The site's own seed determines all others. If the plan
        has `start: own`, the site's seed determines all tensors, as in the authors' experiment. In published
        experiments a body starts equal also if it is private.
        """
        if self.plan.start == "own":
            flat.start(self.tensors, seeds.private_start, copy)
            return
        equal = {*self.plan.ingredients.starts_equal} | ({Part.BODY} if seeds.is_published else set())
        names = {tensor.name for tensor in public} | {tensor.name for tensor in self.tensors if tensor.part in equal}
        flat.start([tensor for tensor in self.tensors if tensor.name in names], seeds.plan, copy)
        flat.start([tensor for tensor in self.tensors if tensor.name not in names], seeds.private_start, copy)

    def _check(self, network: nn.Module) -> None:
        """Check that the network has exactly the listed tensors in their order, and no buffers."""
        found = {name: tuple(inner.shape) for name, inner in network.named_parameters()}
        difference = describe_difference(Manifest(self.tensors, ()), found)
        if not difference and list(found) != [tensor.name for tensor in self.tensors]:
            difference = "its tensors stand in another order"
        if not difference and any(True for _ in network.buffers()):
            difference = "it keeps buffers"
        if difference:
            raise NetworkDiffers(difference)


def describe_difference(expected: Manifest, found: Mapping[str, tuple[int, ...]]) -> str:
    """Return how a network's shared tensors differ from those of the plan. Return an empty text if they agree.

    Args:
        found: the shape of each tensor by name.
    """
    wanted = {tensor.name: tensor.shape for tensor in expected.tensors}
    lines = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    lines += [f"{name} is not in the plan" for name in found.keys() - wanted.keys()]
    lines += [
        f"{name} has shape {found[name]}, the plan says {wanted[name]}"
        for name in wanted.keys() & found.keys()
        if wanted[name] != found[name]
    ]
    return "; ".join(sorted(lines)[:5])
