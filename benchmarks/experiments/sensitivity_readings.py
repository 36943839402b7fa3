"""Computes PLayer-FL's sensitivities for each interpretation of which gradients they need, after one local epoch.

Source: Elhussein and Gürsoy 2025, equation 2 and algorithms 1 to 3, and the authors' published analysis of layers. The
text reuses gradients "already computed as part of the standard training process" and does not say of which batches.
The authors' code computes another gradient after the epoch, on as many random training rows as a batch has, and leaves
biases out. The deployment computes the gradient of all training rows after the epoch (training/sensitivity.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from global_layers.one_process import Collection
from protos.plan.architecture import TensorSpec
from protos.plan.plan import Plan
from site_agent.trainer.data.dataset import Dataset, align, input_columns
from site_agent.trainer.site_network import Seeds, SiteNetworks
from site_agent.trainer.site_training import SiteTraining, begin_training, rows_of
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.sensitivity import sensitivities

READINGS: Final = ("all rows", "last batch", "mean of batches", "random batch")
_RANDOM_ROWS: Final = 32  # the authors' batch


def read_sensitivities(sites: Mapping[str, Dataset], plan: Plan) -> dict[str, list[float]]:
    """Return for each interpretation the sum over the sites of every layer's sensitivity after one local epoch.

    Args:
        sites: each one's encoded rows, with equal columns.
        plan: of PLayer-FL. Its sites start and draw batches as they do in a run.

    Returns:
        For each of `READINGS` the layers' F in the network's order, never falling:

        * all rows: parameters after the epoch, gradient of all training rows. This is what a run uses;
        * last batch: parameters after the epoch, gradient of the epoch's last batch;
        * mean of batches: the mean over the epoch's batches, each with its gradient and the parameters before its step;
        * random batch: parameters after the epoch, gradient of 32 random training rows, without biases.
    """
    found = [_of_site(plan, name, dataset, place) for place, (name, dataset) in enumerate(sites.items())]
    return {reading: np.sum([each[reading] for each in found], axis=0).tolist() for reading in READINGS}


def chosen_layers(found: Sequence[float], threshold: float) -> int:
    """Return the number of federated layers: all layers up to the first rise above the threshold, but not the last."""
    sharp = (p for p, (before, after) in enumerate(pairwise(found), start=1) if after > threshold * before)
    return next(sharp, len(found) - 1)


def _of_site(plan: Plan, site: str, dataset: Dataset, place: int) -> dict[str, list[float]]:
    columns, common = input_columns(plan, dataset.columns)
    own = align(dataset, columns) if plan.columns else dataset
    networks = SiteNetworks(plan=plan, columns=len(columns), outputs=own.outputs, common=common, module_seed=plan.seed)
    federated = Collection(plan).run.manifest.tensors
    training = begin_training(networks, plan.ingredients, federated, rows_of(own), Seeds.published(plan.seed, site))
    flat, rows = training.flat, training.rows.training
    values = flat.federated_values.clone()
    of_batches = []
    for _ in range(plan.schedule.batches(len(rows))):
        before = {tensor.name: flat.network.get_parameter(tensor.name).detach().clone() for tensor in networks.tensors}
        training.local.train_round(1, values, torch.zeros_like(values))
        of_batches.append(_cumulated(training, networks.tensors, before))
    last = _cumulated(training, networks.tensors)
    mean = torch.stack(of_batches).mean(0)
    all_rows = sensitivities(flat, rows, training.recipe.loss, networks.tensors)
    drawn = torch.from_numpy(np.random.default_rng((plan.seed, place)).integers(len(rows), size=_RANDOM_ROWS))
    weights = [tensor for tensor in networks.tensors if len(tensor.shape) > 1]
    random = _of_rows(training, rows.select(drawn), weights)
    return dict(zip(READINGS, (each.tolist() for each in (all_rows, last, mean, random)), strict=True))


def _of_rows(training: SiteTraining, rows: Rows, tensors: Sequence[TensorSpec]) -> Tensor:
    training.flat.zero_gradients()
    torch.autograd.backward(training.recipe.loss(training.flat.network(rows.features), rows.targets))
    return _cumulated(training, tensors)


def _cumulated(
    training: SiteTraining, tensors: Sequence[TensorSpec], values: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Return the sensitivity F of every layer, float64, from the network's gradients and its own or other values."""
    of_layers: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        inner = training.flat.network.get_parameter(tensor.name)
        assert inner.grad is not None
        value = inner.data if values is None else values[tensor.name]
        of_layers.setdefault(tensor.layer, []).append((value.double() * inner.grad.double()).square().flatten())
    return torch.stack([torch.cat(parts).mean() for parts in of_layers.values()]).cumsum(0)
