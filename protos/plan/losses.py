"""Defines the loss functions that a plan can name for a site's network, and the use of a baseline in its training.

The target in a site's own contract decides the function, so the plan does not repeat it: binary cross-entropy,
cross-entropy over several classes, squared error, or soft Dice with cross-entropy.

A baseline is the model that the site's statistician would use: a linear model and a random forest. The out-of-fold
losses of the two decide their shares (site_agent/trainer/baselines.py). The site fits the baseline to its own training
rows and keeps it. None of its numbers is part of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from protos.plan.architecture import Architecture, GlobalLayersNetwork
from protos.plan.documents import Document

_Weight: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6)]
# One positive number for each class, in the order of the contract's classes: two for a binary target. "balanced" is
# rows / (classes * rows of the class), from the site's own training rows.
ClassWeights: TypeAlias = (
    Literal["none", "balanced"] | Annotated[tuple[_Weight, ...], Field(min_length=2, max_length=10_000)]
)


class TaskDefault(Document):
    """The usual loss: cross-entropy for classes, squared error for numbers, soft Dice plus cross-entropy for masks."""

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


class BaselineUse(Document):
    """The settings by which a site's network uses the site's own baseline. A setting with the value 0 has no effect.

    Attributes:
        target_share: the baseline's share of a training row's target, from fits without the row's patient; the rest is
            the label.
        path_start: the first weight of the baseline's logit in the network's linear path. The logit is then one more
            private column (one for each class if there are several).
        result_share: the baseline's share of the site's result, on the scale of logits.
    """

    target_share: float = Field(default=0.5, ge=0, le=1)
    path_start: float = Field(default=0.5, ge=0, le=2)
    result_share: float = Field(default=0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _does_something(self) -> BaselineUse:
        if not (self.target_share or self.path_start or self.result_share):
            raise ValueError(
                "all three settings of expert are 0, so the baseline would have no effect. Write expert: null instead"
            )
        return self

    def why_impossible(self, architecture: Architecture, *, agrees_on_columns: bool) -> Iterator[str]:
        """Yield each reason why a plan cannot use a baseline's predictions in training, as a short text."""
        if not self.path_start:
            return
        if agrees_on_columns:
            yield (
                "path_start makes the baseline's prediction a private column, but this method shares layers that "
                "read all columns"
            )
        if not isinstance(architecture, GlobalLayersNetwork) or not architecture.linear_path:
            yield (
                "path_start adds the baseline's prediction to a linear path, so it needs global-layers-network with "
                "linear_path"
            )
