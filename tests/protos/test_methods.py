"""The settings of methods."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.methods import MethodChoice


@pytest.mark.parametrize(
    "document",
    [
        {"name": "fedprox", "strengh": 0.1}, {"name": "fedprox", "strength": 0.0},
        {"name": "fedprox", "strength": float("nan")}, {"name": "global-layers", "update_rate": 0.0},
        {"name": "global-layers", "update_rate": 1.5}, {"name": "fedadam", "first_decay": 1.0},
        {"name": "fedadam", "offset": 0.0}, {"name": "fedadagrad", "second_decay": 0.5},
        {"name": "moon", "temperature": 0.0}, {"name": "fedrep", "head_epochs": 0},
        {"name": "pfedme", "inner_steps": True}, {"name": "apfl", "share": 1.1},
        {"name": "player-fl", "threshold": 1.0}, {"name": "fedavgg"},
        {"name": "composition", "of": ({"name": "fedprox"}, {"name": "moon"})},
    ],
    ids=str,
)  # fmt: skip
def test_a_misspelt_or_impossible_setting_is_refused(document: dict[str, Any]) -> None:
    """A key that a method does not have, or a number it cannot bear, never becomes a method."""
    with pytest.raises(ValidationError):
        TypeAdapter[Any](MethodChoice).validate_python(document)
