"""A plan's rule for refusing shared parameters: how a site decides, and how many sites must accept.

Each site measures the shared parameters that it receives on its own rows before it trains on them. If too few sites
accept them, the run returns to the parameters that were accepted last. docs/design/acceptance.md has the reasons.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protos.plan.documents import Document


class HeldOutLoss(Document):
    """A site refuses if its loss on its own rows rises, beyond noise and by more than a share.

    Both have to hold for the step from the parameters accepted last to the received ones: the sum of the rows' rises is
    at least `standard_errors` times the root of the sum of their squares, and their mean is more than `largest_rise` of
    the loss of a network whose outputs are all 0. So a site with fewer rows than the square of `standard_errors` never
    refuses for its loss.
    It also refuses parameters that moved further than the plan's clipping range lets a server rule move them.

    Attributes:
        quorum: the fewest sites that have to accept; with fewer the run goes back to what was accepted last.
        standard_errors: how far beyond noise a rise has to be, at each of the sites that refuse.
        largest_rise: a share of the loss of a network that has learned nothing.
        patience: that many returns in a row to the same parameters end the training.
    """

    rule: Literal["held-out-loss"]
    quorum: int = Field(ge=2, le=100)
    standard_errors: float = Field(ge=1, le=10)
    largest_rise: float = Field(gt=0, le=10)
    patience: int = Field(default=3, ge=2, le=1000)
