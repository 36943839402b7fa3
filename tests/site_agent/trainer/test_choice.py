"""The model that a site keeps: the last, its own best, or the best of all sites, always with its evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from site_agent.trainer.choice import Choice, Rule
from site_agent.trainer.training.flat_network import FlatNetwork
from tests.for_each import for_each

NAN = float("nan")


def _flat(value: float = 0.0) -> FlatNetwork:
    flat = FlatNetwork(nn.Linear(2, 1), ["weight"])
    flat.federated.data.fill_(value)
    flat.private.data.fill_(-value)
    return flat


def _considered(rule: Rule, losses: list[float]) -> Choice:
    """A choice that has seen these losses in rounds 0, 1, ...; the model of round n holds only n."""
    choice = Choice(rule)
    for number, loss in enumerate(losses):
        choice.consider(number, loss, _flat(float(number)))
    return choice


def _restored(choice: Choice) -> float | None:
    """The number in the chosen model; None if there is none."""
    flat = _flat(-1.0)
    is_there = choice.restore_chosen(flat)
    assert torch.equal(flat.private.data, -flat.federated.data[:1])
    return float(flat.federated.data[0]) if is_there else None


@for_each("seed", range(20))
def test_the_own_best_is_the_first_minimum(seed: int) -> None:
    """For any losses, the model of the first of the smallest."""
    losses = [float(loss) for loss in np.round(np.random.default_rng(seed).random(30), 1)]

    choice = _considered("local", losses)

    assert _restored(choice) == choice.facts()["round"] == int(np.argmin(losses))
    assert choice.facts()["loss"] == min(losses)


@for_each("seed", range(10))
def test_the_best_of_all_sites_is_followed_a_round_later(seed: int) -> None:
    """The offer of the round after says which round was best so far; the last two come with the result."""
    generator = np.random.default_rng(seed)
    own, over_all = generator.random(12), np.round(generator.random(12), 1)
    choice = Choice("global")

    for number in range(12):
        choice.follow(int(np.argmin(over_all[:number])) if number else None)
        choice.consider(number, float(own[number]), _flat(float(number)))
    choice.follow(int(np.argmin(over_all)))

    assert _restored(choice) == choice.facts()["round"] == int(np.argmin(over_all))
    assert choice.facts()["loss"] == own[int(np.argmin(over_all))]


def test_the_best_round_of_all_is_not_followed_into_a_model_that_is_no_number() -> None:
    """Where the others' best round diverged here, the best that this site could follow before is kept."""
    choice = Choice("global")
    choice.consider(0, 0.5, _flat(0.0))
    choice.follow(0)
    choice.consider(1, NAN, _flat(1.0))
    choice.follow(1)

    assert _restored(choice) == choice.facts()["round"] == 0
    assert choice.facts()["validation_losses"] == [[0, 0.5], [1, None]]
    assert _restored(_considered("global", [NAN, NAN])) is None


@pytest.mark.parametrize("rule", ["latest", "local", "global"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_saved_choice_goes_on_as_if_nothing_had_happened(rule: Rule, count: int) -> None:
    """As bytes of a safetensors file into a fresh choice: evidence, kept and waiting model."""
    losses = [0.5, NAN, 0.3, 0.4, 0.2, 0.6]
    choice = _considered(rule, losses[:count])
    if count > 2:
        choice.follow(2)
    fresh = Choice(rule)

    fresh.restore(load(save(choice.state())))

    for each in (choice, fresh):
        each.follow(count - 1)
        for number in range(count, 6):
            each.consider(number, losses[number], _flat(float(number)))
        each.follow(4)
    assert json.dumps(fresh.facts(), allow_nan=False) == json.dumps(choice.facts(), allow_nan=False)
    assert _restored(fresh) == _restored(choice)
