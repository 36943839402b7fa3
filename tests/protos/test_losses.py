"""The settings of the loss that a plan may have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.losses import Focal, Loss, TaskDefault

LOSSES: TypeAdapter[Loss] = TypeAdapter(Loss)


@pytest.mark.parametrize(
    "loss",
    [
        TaskDefault(name="task-default"),
        TaskDefault(name="task-default", class_weights="balanced"),
        Focal(name="focal"),
        Focal(name="focal", gamma=3.0, class_weights=(1.0, 2.5, 0.5)),
    ],
    ids=str,
)
def test_a_loss_survives_the_wire(loss: Loss) -> None:
    """An announcement is read back as the same record."""
    assert LOSSES.validate_json(LOSSES.dump_json(loss)) == loss


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "hinge"},
        {"name": "task-default", "gamma": 2.0},
        *({"name": "focal", "gamma": gamma} for gamma in (-0.1, 20.5, "2", True)),
        *(
            {"name": "focal", "class_weights": weights}
            for weights in ("Balanced", [1.0], [1, 0], [1, -1], [], 2.0, None)
        ),
        {"name": "focal", "class_weights": [1, 1e7]},
    ],
    ids=str,
)
def test_losses_that_nobody_can_compute_are_refused(keys: dict[str, Any]) -> None:
    """An unknown loss, a setting out of range or a class without a positive weight never becomes a record."""
    with pytest.raises(ValidationError):
        LOSSES.validate_json(json.dumps(keys))
