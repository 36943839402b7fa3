"""What a plan may say about the optimiser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.optimisers import Optimiser

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
        *({"learning_rate": rate} for rate in (0, -1.0, 10.5, "0.1", True)),
        {"weight_decay": -0.1},
        {"weight_decay": 11},
        {"first_decay": 1},
        {"second_decay": 1},
        {"offset": 0},
        {"offset": 1e-40},
        {"momentum": 1},
        {"nesterov": True},
        {"centered": True},
        {"betas": [0.9, 0.999]},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(name: str, keys: dict[str, Any]) -> None:
    """A setting that no optimiser can use, or that this one does not have, never becomes a record."""
    with pytest.raises(ValidationError):
        _read(**{"name": name, "learning_rate": 0.1} | keys)
