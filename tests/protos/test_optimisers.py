"""What a plan may say about the optimiser and the loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.optimisers import Focal, Loss, Optimiser, TaskDefault

OPTIMISERS: TypeAdapter[Optimiser] = TypeAdapter(Optimiser)
NAMES = ["adamw", "adam", "sgd"]


def _read(**keys: Any) -> Optimiser:
    return OPTIMISERS.validate_json(json.dumps(keys))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_a_learning_rate_are_enough(name: str) -> None:
    """Every optimiser has a default for all but the learning rate, and survives the wire."""
    read = _read(name=name, learning_rate=0.1)

    assert OPTIMISERS.validate_json(OPTIMISERS.dump_json(read)) == read
    with pytest.raises(ValidationError, match="Field required"):
        _read(name=name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "keys",
    [
        *({"learning_rate": rate} for rate in (0, -1.0, 10.5, "0.1", True)), {"weight_decay": -0.1},
        {"weight_decay": 11}, {"momentum": 1}, {"centered": True}, {"betas": [0.9, 0.999]},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, keys: dict[str, Any]) -> None:
    """A setting that no optimiser can use, or that this one does not have, never becomes a record."""
    with pytest.raises(ValidationError):
        _read(**{"name": name, "learning_rate": 0.1} | keys)


LOSSES: TypeAdapter[Loss] = TypeAdapter(Loss)


@pytest.mark.parametrize(
    "loss",
    [
        TaskDefault(name="task-default"),
        TaskDefault(name="task-default", class_weights="balanced"),
        Focal(name="focal"),
        Focal(name="focal", gamma=3.0, class_weights="balanced"),
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
        *({"name": "focal", "class_weights": weights} for weights in ("Balanced", [1.0, 2.0], 2.0, None)),
    ],
    ids=str,
)
def test_losses_that_nobody_can_compute_are_refused(keys: dict[str, Any]) -> None:
    """An unknown loss, or a setting out of range or of another kind, never becomes a record."""
    with pytest.raises(ValidationError):
        LOSSES.validate_json(json.dumps(keys))
