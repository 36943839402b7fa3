"""Computes the loss of a batch: cross-entropy, focal loss or squared error, with class weights.

One callable serves training and validation. The rules:

* a loss is a mean over rows. With class weights it is the weighted mean over the sum of weights, as in torch's
  cross_entropy for class numbers. A batch of rows with weight 0 has loss 0;
* a loss and its gradient are finite for any logit up to 1e4 in size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from protos.plan.optimisers import Focal, Loss, TaskDefault
from site_agent.trainer.data.contract import Task
from site_agent.trainer.failures import unfit


@dataclass(frozen=True, kw_only=True, eq=False)
class LossFunction:
    """Computes a plan's loss for this site's target.

    Outputs are floats of shape (rows, 1) for binary and regression, (rows, classes) logits for multi-class. Targets are
    floats (rows,) from 0 to 1, int64 (rows,) class numbers, or float (rows,) values. `gamma` is the focal loss's
    exponent, 0 for none. `weights` are float32 (classes,); None for equal ones.
    """

    task: Task
    gamma: float = 0.0
    weights: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, shape ()."""
        if self.task == "regression":
            values = outputs.squeeze(-1)
            return (values - targets.expand_as(values)).square().mean(-1)
        if self.gamma or self.weights is not None:
            return self._by_class(outputs, targets)
        if self.task == "binary":
            logits = outputs.squeeze(-1)
            losses = functional.binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none")
            return losses.mean(-1)
        return functional.cross_entropy(outputs, targets)

    def _by_class(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss. A row's target can be a share of the positive class.

        Inside, classes are the first axis, (classes, rows), or (1, rows) if each row has one class. Torch computes a
        softmax over the first axis five times as fast as over a short last one.
        """
        weights = (
            None if self.weights is None else self.weights.to(outputs.device).unsqueeze(-1).expand(-1, len(outputs))
        )
        shares: Tensor | None
        if self.task == "binary":
            logits = outputs.squeeze(-1)
            logs = functional.logsigmoid(torch.stack((-logits, logits)))
            both = torch.stack((1.0 - targets, targets))
            shares = both if weights is None else both * weights
        else:
            index = targets.unsqueeze(0)
            logs = functional.log_softmax(outputs.mT.contiguous(), dim=0).gather(0, index)
            shares = None if weights is None else weights.gather(0, index)
        if self.gamma:
            # Lin et al. 2017, eq. 4 and 5, without their division by the number of assigned anchors. For a gamma below
            # 1, the derivative of the power at 0 would be infinite, and infinity times 0 is NaN.
            misses = (-torch.expm1(logs)).clamp_min(torch.finfo(logs.dtype).tiny)
            logs = logs * misses**self.gamma
        sums = (logs if shares is None else logs * shares).sum((0, -1))
        if weights is None or shares is None:
            return sums / -len(outputs)
        return -sums / shares.sum((0, -1)).clamp_min(torch.finfo(logs.dtype).tiny)


def build_loss(loss: Loss, task: Task, outputs: int, training_targets: Tensor) -> LossFunction:
    """Return the loss that a plan names. Raise ConfigurationError if it does not fit this site's target.

    `outputs` is 1, or the number of classes for multi-class. `training_targets` are as in `LossFunction`. Balanced
    weights are counted from them. A class without training rows has weight 0, also if other rows have it.
    """
    gamma = loss.gamma if isinstance(loss, Focal) else 0.0
    if task == "regression":
        if loss != TaskDefault(name="task-default"):
            raise unfit(
                what="The loss function of the plan is for classes, but the target of this site is a number.",
                remedy="Ask the researcher to change the plan: set the loss to task-default, and leave out "
                "class_weights. "
                "Or choose together an outcome with classes.",
            )
        return LossFunction(task=task)
    classes = 2 if task == "binary" else outputs
    weights = _balanced_weights(task, classes, training_targets) if loss.class_weights == "balanced" else None
    return LossFunction(task=task, gamma=gamma, weights=weights)


def _balanced_weights(task: Task, classes: int, targets: Tensor) -> Tensor:
    """Return rows / (classes * rows of the class), 0 for a class without rows: (classes,).

    Differs from scikit-learn's "balanced" in that classes without rows count among the classes.
    """
    if task == "binary":
        ones = targets.double().sum()
        rows = torch.stack((len(targets) - ones, ones))
    else:
        rows = functional.one_hot(targets, classes).double().sum(0)
    weights = rows.sum() / (classes * rows)
    return torch.where(rows > 0, weights, 0.0).float()
