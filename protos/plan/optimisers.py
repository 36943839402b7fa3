"""Defines the PyTorch optimisers and the loss functions that a plan can name for training at a site.

Every setting of an optimiser is a key of the plan with torch's default. Only the learning rate has no default. Adam and
AdamW have torch's decays and its offset, which divides by no 0 if a gradient is 0, as in a column that a site lacks.

The target in a site's own contract decides the usual loss, so the plan does not repeat it: binary cross-entropy,
cross-entropy over several classes, or squared error.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from protos.plan.documents import Document

_LearningRate: TypeAlias = Annotated[float, Field(gt=0, le=10)]
_WeightDecay: TypeAlias = Annotated[float, Field(ge=0, le=10)]


class AdamW(Document):
    """AdamW. Loshchilov and Hutter 2019, algorithm 2."""

    name: Literal["adamw"]
    learning_rate: _LearningRate
    weight_decay: _WeightDecay = 0.01


class Adam(Document):
    """Adam. Kingma and Ba 2015, algorithm 1. `weight_decay` is added to the gradient, unlike in AdamW."""

    name: Literal["adam"]
    learning_rate: _LearningRate
    weight_decay: _WeightDecay = 0.0


class StochasticGradientDescent(Document):
    """Each step follows the gradient of a batch, with momentum if the plan sets it."""

    name: Literal["sgd"]
    learning_rate: _LearningRate
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: _WeightDecay = 0.0


Optimiser: TypeAlias = Annotated[AdamW | Adam | StochasticGradientDescent, Field(discriminator="name")]


def is_plain_descent(optimiser: Optimiser) -> bool:
    """Return whether an optimiser step is only the learning rate times the gradient, as SCAFFOLD assumes.

    Only then is (x - y) / (steps * learning rate) the mean gradient of a round (docs/researcher.md, SCAFFOLD).
    """
    return isinstance(optimiser, StochasticGradientDescent) and optimiser.momentum == 0 and optimiser.weight_decay == 0


# "balanced" is rows / (classes * rows of the class), from the site's own training rows.
ClassWeights: TypeAlias = Literal["none", "balanced"]


class TaskDefault(Document):
    """The usual loss: cross-entropy for classes, squared error for numbers."""

    name: Literal["task-default"]
    class_weights: ClassWeights = "none"


class Focal(Document):
    """Focal loss: -(1 - p)^gamma * log(p), where p is the target's probability. Lin et al. 2017, eq. 4.

    Class weights are those of eq. 5. With `gamma` 0 this is cross-entropy. With a higher value, rows that are already
    predicted well count less.
    """

    name: Literal["focal"]
    gamma: float = Field(default=2.0, ge=0, le=20)
    class_weights: ClassWeights = "none"


Loss: TypeAlias = Annotated[TaskDefault | Focal, Field(discriminator="name")]
