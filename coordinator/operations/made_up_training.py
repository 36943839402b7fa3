"""Measures the effect of a private plan's noise on a model, by training on made-up patients with and without noise.

The patients are those of made_up_patients.py. So the results show how much the noise, the clip and the rounds of a plan
cost. They are no forecast for patients.

The rules:

* the ratio of the noise to the sum of all declared patients is as in the plan, however few patients are made up;
* private layers are those of each site, so AUROC is then the mean over the sites' networks;
* steps are those of the plan's server rule, and the network is the plan's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.operations.made_up_patients import Float64, made_up_patients, ranked
from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchanges
from protos.plan.initial_values import initial_values
from protos.plan.manifest import manifest_of
from protos.plan.noisy_results import local_change
from protos.plan.plan import Plan
from protos.plan.private_training import PrivateTraining
from protos.plan.server_rules import apply_rule, begin_rule
from protos.wire.messages import Stage

_MOST_ROWS: Final = 2000
_TEST_ROWS: Final = 4000
_DRAWS: Final = 3
_LEAST_ROWS: Final = 300
# Rows times parameters times steps of one training; four trainings together take less than a second.
_MOST_WORK: Final = 2 * 10**7
_MOST_ROUNDS: Final = 1000
_MOST_WORK_OF_RATES: Final = _MOST_WORK // 4  # the same, if several rates are tried
_RATES: Final = (1 / 8, 1 / 4, 1 / 2, 2, 4)  # times the plan's learning rate
_HIGHEST_RATE: Final = 10.0  # that a plan may have
_BETTER: Final = 0.005  # AUROC; three draws of noise vary less


@dataclass(frozen=True)
class MadeUp:
    """The AUROC on made-up test rows with and without noise, and the number of made-up training patients."""

    with_noise: float
    without: float
    patients: int


def made_up_training(plan: Plan, most_work: int = _MOST_WORK) -> MadeUp | str:
    """Train the plan's model on made-up patients, or return a short phrase why this training is not done.

    Fewer patients are made up if a step is slow. `most_work` limits rows times parameters times steps.
    """
    training = plan.private_training
    if training is None:
        return "the plan trains no private network"
    numbers, steps = len(training.is_own), training.sums
    if steps > _MOST_ROUNDS:
        return f"the plan has {steps:,} steps, and a simulation makes at most {_MOST_ROUNDS:,}"
    rows = min(training.patients, _MOST_ROWS, _MOST_WORK // (numbers * steps))
    if rows < min(training.patients, _LEAST_ROWS) or rows * numbers * steps > most_work:
        return f"{steps:,} steps of {numbers:,} numbers would take too long"
    generator = np.random.default_rng(0)
    people = made_up_patients(rows + _TEST_ROWS, len(plan.shared_columns), generator)
    known, tested = ((one.features, one.outcomes) for one in (people.part(slice(rows)), people.part(slice(rows, None))))
    drawn = [_area(plan, training, known, tested, np.random.default_rng(draw)) for draw in range(_DRAWS)]
    return MadeUp(float(np.mean(drawn)), _area(plan, training, known, tested, None), rows)


def better_rate(plan: Plan, found: MadeUp) -> tuple[float, MadeUp] | None:
    """Return a learning rate that gives a clearly higher AUROC on the same made-up patients, and this AUROC.

    Return None if there is no such rate, or if trying takes too long.

    Args:
        plan: trains a private network.
        found: what `made_up_training` returned for this plan.
    """
    content = json.loads(plan.canonical)
    better = {}
    for rate in (plan.optimiser.learning_rate * times for times in _RATES):
        if rate <= _HIGHEST_RATE:
            changed = content | {"optimiser": content["optimiser"] | {"learning_rate": rate}}
            one = made_up_training(Plan.model_validate_json(json.dumps(changed)), _MOST_WORK_OF_RATES)
            if isinstance(one, MadeUp) and one.with_noise >= found.with_noise + _BETTER:
                better[rate] = one
    return max(better.items(), key=lambda pair: pair[1].with_noise, default=None)


def _area(
    plan: Plan,
    training: PrivateTraining,
    known: tuple[Float64, Float64],
    tested: tuple[Float64, Float64],
    noise: np.random.Generator | None,
) -> float:
    """Train for all rounds and return the AUROC on the test rows. Without `noise` the steps have no noise."""
    manifest, rule = manifest_of(plan), plan.ingredients.server_rule
    parameters, state = manifest.initial_parameters(plan.seed), begin_rule(rule, manifest.parameters)
    exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    shared = {tensor.name for tensor in training.tensors}
    first = [initial_values(tensor, plan.seed).astype(np.float64) for tensor in training.network]
    places = [place for place, tensor in enumerate(training.network) if tensor.name in shared]
    moving = range(len(first)) if training.has_own_steps else places
    scale = training.patients * (training.promise.sampling or 1.0) / len(known[0])
    # If each site makes its own steps, each site has its own part of the patients.
    sites = training.sites if training.is_local or training.has_own_steps else 1
    parts = [(known[0][site::sites], known[1][site::sites]) for site in range(sites)]
    kept = np.zeros((sites, len(training.is_own)))  # the changes of private layers
    alone = sqrt(training.own_variance if training.has_own_steps else 0) / training.scale
    deviations = np.where(training.is_own, alone, training.deviation / (1 if training.is_local else sqrt(sites)))
    for _ in range(training.rounds):
        sums = np.zeros(len(training.names))
        arrays = _with_shared(first, places, manifest.views(parameters).values())
        for site, part in enumerate(parts):
            draw = None if noise is None else partial(noise.normal, 0.0, deviations)
            sum_at = partial(_clipped_sum, part, training.promise.clip, scale)
            moved = _steps(training, arrays, moving, kept[site], sum_at, draw)
            sums += moved[~training.is_own]
            kept[site] = np.where(training.is_own, moved, 0.0)
        numbers = np.rint(sums * training.scale).astype(np.int64).tolist()
        scalars = dict(zip(training.names, numbers, strict=True))
        updates = np.empty(0, np.int32)
        apply_rule(plan, manifest, Sums(exchange=exchange, contributors=plan.quorum, updates=updates, scalars=scalars),
                   parameters, state)  # fmt: skip
    arrays = _with_shared(first, places, manifest.views(parameters).values())
    networks = [_moved(arrays, moving, local_change(training, own * training.scale)) for own in kept]
    return float(np.mean([ranked(_read(network, tested[0])[-1][:, 0], tested[1]) for network in networks]))


def _steps(
    training: PrivateTraining,
    arrays: Sequence[Float64],
    places: Sequence[int],
    moved: Float64,
    sum_at: Callable[[int, Sequence[Float64]], Float64],
    draw: Callable[[], Float64 | float] | None,
) -> Float64:
    """Make the optimiser steps of one round. Return the change of each parameter.

    `moved` are the private layers' changes before the round; `draw` returns the noise of a step.
    """
    followed = moved
    for made in range(training.steps * training.inner):
        here = _moved(arrays, places, local_change(training, moved * training.scale))
        moved = moved + training.pull * ~training.is_own * (followed - moved) + sum_at(len(places) // 2, here)
        moved += 0.0 if draw is None else draw()
        if (made + 1) % training.inner == 0:
            followed = followed + training.follow * (moved - followed)
    return followed if training.follow else moved


def _with_shared(
    arrays: Sequence[Float64], places: Sequence[int], values: Iterable[npt.NDArray[np.float32]]
) -> list[Float64]:
    found = list(arrays)
    for place, array in zip(places, values, strict=True):
        found[place] = array.astype(np.float64)
    return found


def _moved(arrays: Sequence[Float64], places: Sequence[int], change: Float64) -> list[Float64]:
    found = list(arrays)
    for place, part in zip(
        places, np.split(change, np.cumsum([arrays[place].size for place in places])[:-1]), strict=True
    ):
        found[place] = arrays[place] + part.reshape(arrays[place].shape)
    return found


def _read(arrays: Sequence[Float64], features: Float64) -> list[Float64]:
    """Return the inputs of each layer as a list. The last element has the logits."""
    read = [features]
    for place in range(0, len(arrays), 2):
        outputs = read[-1] @ arrays[place].T + arrays[place + 1]
        read.append(outputs if place + 2 == len(arrays) else np.maximum(outputs, 0.0))
    return read


def _clipped_sum(
    part: tuple[Float64, Float64], clip: float, scale: float, shared: int, arrays: Sequence[Float64]
) -> Float64:
    """Return `scale` times the sum over rows of the clipped gradients of the first `shared` layers.

    Each row's gradient has at most the norm 1 in units of the clip.
    """
    features, outcomes = part
    read = _read(arrays, features)
    moves = [1 / (1 + np.exp(-np.clip(read[-1], -40, 40))) - outcomes[:, None]]
    for place in range(len(arrays) - 2, 0, -2):
        moves.insert(0, (moves[0] @ arrays[place]) * (read[place // 2] > 0))
    pairs = list(zip(moves, read, strict=False))[:shared]
    squares = np.sum([(move**2).sum(axis=1) * (1 + (own**2).sum(axis=1)) for move, own in pairs], axis=0)
    factors = (1 / np.maximum(np.sqrt(squares), clip))[:, None]
    clipped = [(move * factors, own) for move, own in pairs]
    return scale * np.concatenate(
        [sums for move, own in clipped for sums in ((move.T @ own).ravel(), move.sum(axis=0))]
    )
