"""Computes PLayer-FL's measures of each layer, which show from which layer on sites differ.

Source: Elhussein and Gürsoy 2025, equations 2 and A.1 to A.3. All sites start with equal parameters. They train alone
for some epochs, or together until the end of a plan. The loss is the mean over all training rows of a site, in
float64. The networks are small, so the Hessian's trace is exact.

The similarity is linear CKA as Kornblith et al. 2019 define it: its denominator is the product of the norms. The paper
prints the squares of these norms. With them, equal representations would not have a similarity of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from benchmarks.experiments.federations import federate
from benchmarks.experiments.stacks import StackedSite
from global_layers.one_process import Collection
from protos.plan.manifest import slices_of
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.training.torch_losses import LossFunction, build_loss

MEASURES: Final = ("sensitivity", "gradient variance", "Hessian trace", "similarity")
Layers: TypeAlias = dict[str, list[str]]


def measure_layers(sites: Mapping[str, Dataset], plan: Plan, *, epochs: int) -> dict[str, list[float]]:
    """Every measure of every layer, in the network's order.

    Args:
        sites: each one's encoded rows, with equal columns.
        plan: of fedavg on a dense network. Only its seed, loss and optimiser are used.
        epochs: the number of local epochs before the measurement.

    Returns:
        By `MEASURES`: the sum of the sites' sensitivities, the means of their gradient variances and Hessian traces,
        and the mean similarity of pairs of sites over the test rows of all sites.
    """
    return _measure({name: _trained(name, dataset, plan, epochs) for name, dataset in sites.items()}, sites, plan)


def measure_shared(sites: Mapping[str, Dataset], plan: Plan) -> dict[str, list[float]]:
    """Every measure of every layer, in the network's order, for the last shared model of a federation.

    Args:
        sites: each one's encoded rows, with equal columns.
        plan: of fedavg on a dense network. The sites run all of its rounds.

    Returns:
        As `measure_layers`. The similarity is 1, because all sites have the same model.
    """
    collection, _ = federate(plan, sites)
    _, values = collection.run.result()
    return _measure({name: _network_of(values, dataset, plan) for name, dataset in sites.items()}, sites, plan)


def _measure(networks: Mapping[str, nn.Module], sites: Mapping[str, Dataset], plan: Plan) -> dict[str, list[float]]:
    layers = _layers(plan)
    found = [_of_site(networks[name], dataset, plan, layers) for name, dataset in sites.items()]
    rows = torch.from_numpy(np.concatenate([dataset.test.features for dataset in sites.values()])).double()
    seen = [_representations(network, rows, layers) for network in networks.values()]
    pairs = [[_similarity(a, b) for a, b in zip(*pair, strict=True)] for pair in combinations(seen, 2)]
    sensitivity, variance, trace = (np.array([site[kind] for site in found]) for kind in range(3))
    means = (sensitivity.sum(0), variance.mean(0), trace.mean(0), np.mean(pairs, axis=0))
    return {kind: [float(value) for value in values] for kind, values in zip(MEASURES, means, strict=True)}


def _trained(name: str, dataset: Dataset, plan: Plan, epochs: int) -> nn.Module:
    """A site's network after its local epochs, float64."""
    manifest = Collection(plan).run.manifest
    member = StackedSite([plan], name, [dataset])
    values = manifest.initial_parameters(plan.seed)[np.newaxis]
    for number in range(epochs):
        update, _ = member.round(number, Stage.TRAINING, torch.from_numpy(values), [None])
        values = values + update
    return _network_of(values[0], dataset, plan)


def _network_of(values: npt.NDArray[np.float32], dataset: Dataset, plan: Plan) -> nn.Module:
    """A network with these values, in the order of the manifest, float64."""
    manifest = Collection(plan).run.manifest
    network = build_network(plan.architecture, len(dataset.columns), dataset.outputs)
    state = {
        tensor.name: torch.from_numpy(np.array(values[part], np.float32)).reshape(tensor.shape)
        for tensor, part in zip(manifest.tensors, slices_of(manifest.tensors), strict=True)
    }
    network.load_state_dict(state)
    return network.double().eval()


def _layers(plan: Plan) -> Layers:
    layers: Layers = {}
    for tensor in Collection(plan).run.manifest.tensors:
        layers.setdefault(tensor.layer, []).append(tensor.name)
    return layers


def _of_site(
    network: nn.Module, dataset: Dataset, plan: Plan, layers: Layers
) -> tuple[list[float], list[float], list[float]]:
    features = torch.from_numpy(dataset.training.features).double()
    targets = torch.from_numpy(dataset.training.targets)
    loss = build_loss(plan.loss, dataset.task, dataset.outputs, targets)
    network.zero_grad()
    torch.autograd.backward(loss(network(features), targets))
    sensitivity, variance, trace = list[float](), list[float](), list[float]()
    for names in layers.values():
        inner = [network.get_parameter(name) for name in names]
        values = torch.cat([each.detach().flatten() for each in inner])
        gradients = torch.cat([each.grad.flatten() for each in inner if each.grad is not None])
        sensitivity.append(float((values * gradients).square().mean()))
        variance.append(float(gradients.var(correction=0)))
        trace.append(_trace(network, names, loss, features, targets))
    return np.cumsum(sensitivity).tolist(), variance, trace


def _trace(network: nn.Module, names: list[str], loss: LossFunction, features: Tensor, targets: Tensor) -> float:
    """The sum of the eigenvalues of the loss's Hessian in one layer."""
    total = 0.0
    for name in names:
        value = network.get_parameter(name).detach()

        def at(flat: Tensor, name: str = name, shape: torch.Size = value.shape) -> Tensor:
            result: Tensor = loss(functional_call(network, {name: flat.reshape(shape)}, (features,)), targets)
            return result

        total += float(hessian(at)(value.flatten()).trace().detach())
    return total


def _representations(network: nn.Module, rows: Tensor, layers: Layers) -> list[Tensor]:
    """The outputs of each layer's linear map, (rows, width)."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        seen.append(output.detach())

    hooks = [
        network.get_submodule(names[0].rpartition(".")[0]).register_forward_hook(keep) for names in layers.values()
    ]
    with torch.no_grad():
        network(rows)
    for hook in hooks:
        hook.remove()
    return seen


def _similarity(first: Tensor, second: Tensor) -> float:
    """Linear CKA of two representations of the same rows, from 0 to 1."""
    first, second = first - first.mean(0), second - second.mean(0)
    shared = torch.linalg.matrix_norm(second.T @ first).square()
    norms = torch.linalg.matrix_norm(first.T @ first) * torch.linalg.matrix_norm(second.T @ second)
    return float(shared / norms) if norms > 0 else 0.0
