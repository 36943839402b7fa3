"""Defines how a site decides to refuse shared parameters, and how many sites must accept the parameters.

Each site measures the received parameters on its own rows before it trains on them. If too few sites accept, the run
returns to the parameters that were accepted last. docs/design/acceptance.md has the reasons.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protos.plan.documents import Document


class HeldOutLoss(Document):
    """A site refuses received parameters if its loss on its own rows rises more than noise can explain.

    The site compares them with the parameters that were accepted last. It refuses if two conditions are true. The sum
    of the rows' rises is at least `standard_errors` times the root of the sum of their squares. Their mean is more than
    `largest_rise` times the loss of a network whose outputs are all 0. So a site with fewer rows than the square of
    `standard_errors` never refuses because of its loss. A site also refuses parameters that moved further than the
    plan's clipping range allows a server rule.

    Attributes:
        quorum: the fewest sites that must accept. With fewer the run returns to the parameters accepted last.
        standard_errors: how far a rise must exceed noise, at each refusing site.
        largest_rise: a share of the loss of a network that has not learned anything.
        patience: this many returns in a row to the same parameters end the training.
    """

    rule: Literal["held-out-loss"]
    quorum: int = Field(ge=2, le=100)
    standard_errors: float = Field(ge=1, le=10)
    largest_rise: float = Field(gt=0, le=10)
    patience: int = Field(default=3, ge=2, le=1000)
