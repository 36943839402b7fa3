"""What a plan may say about the optimiser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.optimisers import Adam, AdamW, Optimiser, StochasticGradientDescent, is_plain_descent

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


def test_plans_written_before_keep_their_meaning() -> None:
    """The keys that plans had first keep name and default."""
    adamw, descent = _read(name="adamw", learning_rate=0.1), _read(name="sgd", learning_rate=0.1)

    assert isinstance(adamw, AdamW)
    assert adamw.weight_decay == 0.01
    assert isinstance(descent, StochasticGradientDescent)
    assert (descent.momentum, descent.weight_decay) == (0.0, 0.0)


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


@pytest.mark.parametrize("name", NAMES)
def test_only_sgd_alone_is_plain_descent(name: str) -> None:
    """Every other optimiser, and SGD with momentum or weight decay, steps by more than the gradient."""
    assert is_plain_descent(_read(name=name, learning_rate=0.1)) == (name == "sgd")
    assert not is_plain_descent(_read(name=name, learning_rate=0.1, weight_decay=0.1))
    if name == "sgd":
        assert not is_plain_descent(_read(name=name, learning_rate=0.1, momentum=0.9))
        assert not is_plain_descent(_read(name=name, learning_rate=0.1, momentum=0.9, nesterov=True))


def test_the_weight_decay_of_adam_is_off_unless_asked_for() -> None:
    """Adam and AdamW differ in their default as torch's do."""
    assert Adam(name="adam", learning_rate=0.1).weight_decay == 0.0
