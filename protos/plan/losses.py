"""Defines the loss functions that a plan can name for a site's network.

The target in a site's own contract decides the function, so the plan does not repeat it: binary cross-entropy,
cross-entropy over several classes, or squared error.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from protos.plan.documents import Document

_Weight: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6)]
# One positive number for each class, in the order of the contract's classes: two for a binary target. "balanced" is
# rows / (classes * rows of the class), from the site's own training rows.
ClassWeights: TypeAlias = (
    Literal["none", "balanced"] | Annotated[tuple[_Weight, ...], Field(min_length=2, max_length=10_000)]
)


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
