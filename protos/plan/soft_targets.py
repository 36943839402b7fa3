"""Defines how a site's own baseline takes part in the training of the site's network.

A baseline is the model that the site's statistician would use: a linear model and a random forest. The out-of-fold
losses of the two decide their shares (site_agent/trainer/baselines.py). The site fits the baseline to its own training
rows and keeps it. None of its numbers is part of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from protos.plan.architecture import Architecture, GlobalLayersNetwork
from protos.plan.documents import Document


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
            raise ValueError("with all three at 0 the baseline does nothing; write expert: null")
        return self

    def why_impossible(self, architecture: Architecture, *, agrees_on_columns: bool) -> Iterator[str]:
        """Yield each reason why a plan cannot use soft targets, as one clause."""
        if not self.path_start:
            return
        if agrees_on_columns:
            yield "the baseline's logit is a private column, and this method federates layers that see all columns"
        if not isinstance(architecture, GlobalLayersNetwork) or not architecture.linear_path:
            yield "the baseline's logit enters a linear path, which only global-layers-network with linear_path has"
