"""Implements rules that need each site's own vector: pFedLA, the coordinate-wise median, and the trimmed mean.

No other file has them. The deployed coordinator has no code that stores one site's vector: it adds arriving vectors to
a running sum, and they are masked. Neither a median nor a mixture of layers can be computed from a sum. So sites train
as in a deployment, and only the replacement of the coordinator differs.

Sources: Yin et al. 2018, "Byzantine-Robust Distributed Learning", definitions 1 and 2; Ma et al. 2022,
"Layer-wised Model Aggregation for Personalized Federated Learning" (pFedLA).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.ingredients import Everything, Mean, Parts
from protos.plan.manifest import Manifest, manifest_of, slices_of
from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.requests import Asked
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Outcome, Study

Float32: TypeAlias = npt.NDArray[np.float32]
# A function that returns the values that a harmful site sends instead of its update, float32 of shape (numbers,).
Harm: TypeAlias = Callable[[Float32], Float32]


def reversed_and_tenfold(update: Float32) -> Float32:
    """Return a harmful site's values: its update in the opposite direction, ten times as long."""
    return -10.0 * update


class VectorRule(Protocol):
    """Replaces the server rule of the coordinator. All vectors have the shape (sites, numbers)."""

    def next_values(self, received: Float32, updates: Float32) -> Float32:
        """Return the next parameters for each site, from the parameters that each site received and from its update."""
        ...


class Median:
    """Each number is the median over the sites.

    With an even number of sites, it is the mean of the two middle numbers.
    """

    def next_values(self, received: Float32, updates: Float32) -> Float32:
        """See VectorRule."""
        middle = np.median(received + updates, axis=0)
        return np.broadcast_to(middle, received.shape).astype(np.float32)


class TrimmedMean:
    """Each number is the mean over the sites without a fixed number of the lowest and of the highest numbers."""

    def __init__(self, trimmed: int) -> None:
        self._trimmed = trimmed

    def next_values(self, received: Float32, updates: Float32) -> Float32:
        """See VectorRule.

        Raises:
            ValueError: nothing would be left.
        """
        kept = len(received) - 2 * self._trimmed
        if kept < 1:
            raise ValueError(f"of {len(received)} sites {self._trimmed} cannot be left out at either end")
        ordered = np.sort(received + updates, axis=0)
        mean = ordered[self._trimmed : self._trimmed + kept].astype(np.float64).mean(axis=0)
        return np.broadcast_to(mean, received.shape).astype(np.float32)


class PlainMean:
    """Each number is the mean over the sites with equal weights, for comparison."""

    def next_values(self, received: Float32, updates: Float32) -> Float32:
        """See VectorRule."""
        mean = (received + updates).astype(np.float64).mean(axis=0)
        return np.broadcast_to(mean, received.shape).astype(np.float32)


class LayerMixtures(nn.Module):
    """Implements pFedLA: for each layer, each site receives a mixture of all sites' layers with learnt weights.

    A vector for each site goes through one hidden layer with ReLU for each layer of the network, then a linear map and
    a softmax over the sites. With own vectors y_j, weights a_ij and the site's update c_i from x_i = sum_j a_ij y_j,
    one step of plain descent is made on -<c_i, x_i>. So x_i moves as the site would have moved it. All numbers are
    float64. Only the first values are random.
    """

    def __init__(self, manifest: Manifest, sites: int, *, seed: int, width: int = 16, rate: float = 0.01) -> None:
        """Draw the initial values of the networks that compute the weights.

        Args:
            manifest: which numbers belong to which layer.
            sites: the number of sites.
            seed: of the first values.
            width: of the sites' vectors and the hidden layer; 16 as PLayer-FL's code has it for heart.
            rate: of the descent.
        """
        super().__init__()
        self._layers = _places(manifest)
        self._rate = rate
        generator = torch.Generator().manual_seed(seed)
        self.embeddings = nn.Parameter(torch.randn(sites, width, generator=generator, dtype=torch.float64))
        shape = (len(self._layers), width, width)
        self.hidden = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64) / width**0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(len(self._layers), width, dtype=torch.float64))
        self.output = nn.Parameter(torch.zeros(len(self._layers), sites, width, dtype=torch.float64))
        self.output_bias = nn.Parameter(torch.zeros(len(self._layers), sites, dtype=torch.float64))
        self._own: Tensor | None = None

    def weights(self) -> Tensor:
        """float64 of shape (sites, layers, sites): shares of all sites' layers that a site receives; rows sum to 1."""
        inner = torch.einsum("lhe,ie->ilh", self.hidden, self.embeddings) + self.hidden_bias
        return functional.softmax(torch.einsum("ljh,ilh->ilj", self.output, inner.relu()) + self.output_bias, dim=-1)

    def next_values(self, received: Float32, updates: Float32) -> Float32:
        """See VectorRule."""
        if self._own is not None:  # the values that were received first come from the plan's seed, not from a mixture
            self.learn(torch.from_numpy(updates).double())
        self._own = torch.from_numpy(received + updates).double()
        return self.mixtures(self._own).detach().numpy().astype(np.float32)

    def mixtures(self, own: Tensor) -> Tensor:
        """float64 of shape (sites, numbers) from the sites' own vectors of the same shape."""
        weights = self.weights()
        mixed = torch.empty_like(own)
        for place, layer in enumerate(self._layers):
            mixed[:, layer] = weights[:, place] @ own[:, layer]
        return mixed

    def learn(self, updates: Tensor) -> None:
        """Make one learning step of each site's weights, along the update that its mixture led to."""
        if self._own is None:
            raise ValueError("no mixture was made yet")
        loss = -(updates * self.mixtures(self._own)).sum()
        inner = list(self.parameters())
        for value, gradient in zip(inner, torch.autograd.grad(loss, inner), strict=True):
            value.data -= self._rate * gradient


Build: TypeAlias = Callable[[Plan, Manifest, int], VectorRule]


def federate_vectors(
    plan: Plan, sites: Mapping[str, Dataset], build: Build, harm: Mapping[str, Harm] | None = None
) -> dict[str, Outcome]:
    """Run all rounds of a plan with a rule that reads every site's vector.

    Args:
        plan: its method federates everything or named parts, by no other rule than the mean.
        sites: each one's encoded rows.
        build: the rule from the plan, the manifest and the number of sites.
        harm: the values that harmful sites send instead of their update.

    Raises:
        ValueError: the method is another one.
        TrainingDiverged: no finite model remains at a site.
    """
    method = plan.ingredients
    has_fixed_layers = isinstance(method.federated, Everything | Parts) and isinstance(method.server_rule, Mean)
    if not has_fixed_layers or plan.checkpoint == "global":
        raise ValueError("a method that always federates the same, and a checkpoint that each site chooses for itself")
    manifest = manifest_of(plan)
    rule = build(plan, manifest, len(sites))
    studies = {name: Study(plan, own, seeds=Seeds.published(plan.seed, name)) for name, own in sites.items()}
    received = np.tile(manifest.initial_parameters(plan.seed), (len(sites), 1))
    for number in range(plan.rounds):
        updates = []
        for (name, study), own in zip(studies.items(), received, strict=True):
            update = np.asarray(study.train(Asked(round=number), own).updates, np.float32)
            updates.append(harm[name](update) if harm and name in harm else update)
        received = rule.next_values(received, np.stack(updates))
    for study, own in zip(studies.values(), received, strict=True):
        study.close(Asked(round=plan.rounds, stage=None), own)
    return {name: study.conclude() for name, study in studies.items()}


def _places(manifest: Manifest) -> list[npt.NDArray[np.int64]]:
    """The numbers of each layer, in the order of the layers."""
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    for tensor, part in zip(manifest.tensors, slices_of(manifest.tensors), strict=True):
        found.setdefault(tensor.layer, []).append(np.arange(part.start, part.stop))
    return [np.concatenate(parts) for parts in found.values()]
