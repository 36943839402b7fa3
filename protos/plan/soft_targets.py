"""Soft targets: how a plan lets each site's own baseline take part in its training.

A baseline is the model that the site's statistician would use: a linear model and a random forest. The out-of-fold
losses of the two decide their shares (site_agent/trainer/baselines.py). It is fitted at the site to the site's training
rows, and stays there. None of its numbers is part of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from protos.plan.architecture import Architecture, GlobalLayersNetwork
from protos.plan.documents import Document


class BaselineUse(Document):
    """The use of a site's own baseline for its network. A key with the value 0 has no effect.

    Attributes:
        target_share: how much of a training row's target is what the baseline says of the row without having
            seen its patient; the rest is the label.
        path_start: with which weight the baseline's logit enters the network's linear path at the start. The
            logit is then one more private column (one for each class if there are several).
        result_share: how much of the site's result is the baseline's, on the scale of logits.
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
        """Yield each reason why a plan cannot use soft targets, one clause each."""
        if not self.path_start:
            return
        if agrees_on_columns:
            yield "the baseline's logit is a private column, and this method federates layers that see all columns"
        if not isinstance(architecture, GlobalLayersNetwork) or not architecture.linear_path:
            yield "the baseline's logit enters a linear path, which only global-layers-network with linear_path has"
