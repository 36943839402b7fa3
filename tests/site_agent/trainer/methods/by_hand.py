"""Networks, losses and descent written in a few lines of float64 torch, without any code of the training. Of the larger
networks the forward pass is ours, which the tests of models prove; gradients and steps are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from protos.plan.plan import Plan
from site_agent.trainer.site_network import build_network
from tests.site_agent.trainer.methods.tiny import RATE, Named, Table

Values: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Values], Tensor]


def tensors(named: Named) -> Values:
    """Float64 copies."""
    return {name: torch.tensor(np.array(array), dtype=torch.float64) for name, array in named.items()}


def layer(values: Values, name: str, inputs: Tensor) -> Tensor:
    """W x + b."""
    return inputs @ values[f"{name}.weight"].T + values[f"{name}.bias"]


def dense_features(values: Values, rows: Tensor) -> Tensor:
    """What a dense network with tanh decides on."""
    names = [name.removesuffix(".weight") for name in values if name.endswith(".weight")]
    for name in names[:-1]:
        rows = torch.tanh(layer(values, name, rows))
    return rows


def dense(values: Values, rows: Tensor) -> Tensor:
    """Logits of a dense network with tanh."""
    last = [name.removesuffix(".weight") for name in values if name.endswith(".weight")][-1]
    return layer(values, last, dense_features(values, rows)).squeeze(-1)


def module_forward(plan: Plan) -> Callable[[Values, Tensor], Tensor]:
    """Logits of the plan's own network of two columns and one output, in float64."""
    network = build_network(plan.architecture, 2, 1).double()

    def forward(values: Values, rows: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, values, (rows,))
        return logits.squeeze(-1)

    return forward


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean of -log p(target) for two classes."""
    chances = 1.0 / (1.0 + torch.exp(-logits))
    return -(targets * torch.log(chances) + (1.0 - targets) * torch.log(1.0 - chances)).mean()


def risk(table: Table, network: Callable[[Values, Tensor], Tensor] = dense) -> Loss:
    """The task's loss over all rows of a site."""
    rows, targets = torch.tensor(table[0], dtype=torch.float64), torch.tensor(table[1], dtype=torch.float64)
    return lambda values: cross_entropy(network(values, rows), targets)


def slope(loss: Loss, values: Values, names: Iterable[str] | None = None) -> Values:
    """The gradient with respect to these tensors, or to all."""
    wanted = list(values if names is None else names)
    leaves = {name: value.clone().requires_grad_(name in wanted) for name, value in values.items()}
    found = torch.autograd.grad(loss(leaves), [leaves[name] for name in wanted])
    return dict(zip(wanted, found, strict=True))


def moved(values: Values, along: Mapping[str, Tensor], rate: float = RATE) -> Values:
    """values - rate * along, for the tensors that are named there."""
    return {name: value - rate * along[name] if name in along else value for name, value in values.items()}


def descended(loss: Loss, values: Values, steps: int, names: Iterable[str] | None = None) -> Values:
    """So many steps of plain descent on these tensors, or on all."""
    wanted = None if names is None else list(names)
    for _ in range(steps):
        values = moved(values, slope(loss, values, wanted))
    return values


def mean(many: Iterable[Values], weights: Iterable[float] | None = None) -> Values:
    """The weighted mean of the tensors that all have."""
    each = list(many)
    shares = torch.tensor(list(weights) if weights is not None else [1.0] * len(each), dtype=torch.float64)
    names = set.intersection(*(set(one) for one in each))
    return {
        name: torch.stack([share * one[name] for share, one in zip(shares / shares.sum(), each, strict=True)]).sum(0)
        for name in each[0]
        if name in names
    }


def part(values: Values, *starts: str) -> Values:
    """The tensors whose names begin so."""
    return {name: value for name, value in values.items() if name.startswith(starts)}


def less(one: Values, other: Values) -> Values:
    """one - other, for the tensors of `other`."""
    return {name: one[name] - other[name] for name in other}


def contrast(own: Tensor, alike: Tensor, other: Tensor, temperature: float) -> Tensor:
    """-log of the softmax of two cosines over the temperature, the mean over rows."""

    def closeness(one: Tensor, two: Tensor) -> Tensor:
        cosine = (one * two).sum(-1) / (one.norm(dim=-1) * two.norm(dim=-1))
        return torch.exp(cosine / temperature)

    towards, away = closeness(own, alike), closeness(own, other)
    return -torch.log(towards / (towards + away)).mean()
