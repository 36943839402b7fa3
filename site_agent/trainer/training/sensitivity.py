"""Measures how sensitive the loss is to each layer, for PLayer-FL.

Source: Elhussein and Gürsoy 2025: F_l = sum over layers k <= l of the mean over the layer's parameters of
(value * gradient)^2, after the first local epoch. The gradient is that of the mean loss over all training rows, so it
does not depend on random draws. Rows that do not fit into one pass are processed in blocks. With class weights, whose
sum differs between blocks, the result is the mean of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protos.plan.architecture import TensorSpec
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import rows_at_once
from site_agent.trainer.training.torch_losses import LossFunction


def sensitivities(flat: FlatNetwork, rows: Rows, loss: LossFunction, tensors: Sequence[TensorSpec]) -> Tensor:
    """Return the sensitivity F of every layer, float64 of shape (layers,), never falling; (copies, layers) for a stack.

    `flat` is the network after its first local epoch. `tensors` are all its tensors, in its order.
    """
    block = rows_at_once(flat, rows.features)
    flat.zero_gradients()
    flat.network.eval()
    blocks = torch.split(rows.features, block, dim=-2), torch.split(rows.targets, block, dim=rows.features.dim() - 2)
    for features, targets in zip(*blocks, strict=True):
        share = features.shape[-2] / len(rows)
        batch = Rows(features, targets).to(flat.device)
        torch.autograd.backward(share * loss(flat.network(batch.features), batch.targets))
    flat.network.train()  # training continues with this network
    of_layers: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        inner = flat.network.get_parameter(tensor.name)
        assert inner.grad is not None
        squared = (inner.data.double() * inner.grad.double()).square()
        of_layers.setdefault(tensor.layer, []).append(squared.flatten(0 if flat.copies is None else 1))
    means = [torch.cat(parts, dim=-1).mean(-1) for parts in of_layers.values()]
    return torch.stack(means, dim=-1).cpu().cumsum(-1)
