"""Computes learning rate schedules: the factor by which the optimiser's learning rate is multiplied in each step.

A factor depends only on the number of the step. So a site that joins late or restarts from a checkpoint uses the same
rates as all other sites.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import Field

from protos.plan.documents import Document


class ConstantRate(Document):
    """The learning rate is the same in every step."""

    name: Literal["constant"]


class CosineRate(Document):
    """Cosine schedule without restarts, down to `floor` times the learning rate. Loshchilov and Hutter 2017, eq. 5."""

    name: Literal["cosine"]
    floor: float = Field(default=0.0, ge=0, le=1)


RateSchedule: TypeAlias = Annotated[ConstantRate | CosineRate, Field(discriminator="name")]


def rate_factor(schedule: RateSchedule, step: int, steps: int) -> float:
    """Return the factor of the learning rate at one step.

    Args:
        step: the number of the next step, from 0; from `steps` on the factor no longer changes.
        steps: of the whole run, at least 1.

    Returns:
        from 0 to 1. The cosine would reach its floor one step after the last.
    """
    if step < 0 or steps < 1:
        raise ValueError("a step from 0, and at least one step")
    step = min(step, steps)
    match schedule:
        case ConstantRate():
            return 1.0
        case CosineRate(floor=floor):
            return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        case _:
            assert_never(schedule)
