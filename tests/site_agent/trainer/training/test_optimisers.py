"""Torch's optimisers step as the plan sets, and their state survives a restart to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protos.plan.optimisers import Adam, AdamW, Optimiser, StochasticGradientDescent
from site_agent.trainer.training.training_model import build_optimiser, load_optimiser_tensors, optimiser_tensors

# Each with settings that are not its defaults, and torch's plainest code with the same.
CASES: list[tuple[Optimiser, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (AdamW(name="adamw", learning_rate=0.02), torch.optim.AdamW, {}),
    (AdamW(name="adamw", learning_rate=0.02, weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    (Adam(name="adam", learning_rate=0.02), torch.optim.Adam, {}),
    (Adam(name="adam", learning_rate=0.02, weight_decay=0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    (StochasticGradientDescent(name="sgd", learning_rate=0.02), torch.optim.SGD, {}),
    (
        StochasticGradientDescent(name="sgd", learning_rate=0.02, momentum=0.9, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.1},
    ),
]
RECORDS = [record for record, _, _ in CASES]
SHAPES = [(13,), (3, 7)]


def _parameters(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _step(optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    """Steps along gradients that follow from the parameters and the number of the step."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = parameter.detach() + torch.randn(parameter.shape, generator=generator)
        optimiser.step()


def _values(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def _all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("record", "kind", "settings"), CASES, ids=str)
def test_a_plans_settings_are_torchs(
    record: Optimiser, kind: type[torch.optim.Optimizer], settings: dict[str, Any]
) -> None:
    """Twelve steps go where torch's unfused code goes with the same settings, in either shape."""
    found, expected = _parameters(0), _parameters(0)

    _step(build_optimiser(record, found), found, range(12))
    _step(kind(expected, lr=0.02, foreach=False, **settings), expected, range(12))  # type: ignore[call-arg]

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("before", [0, 1, 7])
@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_restored_optimiser_goes_on_to_the_bit(record: Optimiser, before: int) -> None:
    """Saved after no, one or some steps and read into a fresh one, it makes the steps that would have followed."""
    straight = _parameters(1)
    first = build_optimiser(record, straight)
    _step(first, straight, range(before))
    saved, values = optimiser_tensors(first), _values(straight)
    _step(first, straight, range(before, before + 6))

    resumed = [nn.Parameter(value) for value in values]
    second = build_optimiser(record, resumed)
    load_optimiser_tensors(second, saved)
    _step(second, resumed, range(before, before + 6))

    assert _all_equal(_values(resumed), _values(straight))
    left, right = optimiser_tensors(first), optimiser_tensors(second)
    assert left.keys() == right.keys()
    assert _all_equal(list(left.values()), list(right.values()))
