"""What the noise of a private plan takes from a model: trainings on made-up patients, with the noise and without it.

Made-up columns are independent and normal, and the outcome follows a linear score of all columns whose AUROC is about
0.79. So the figures say how much the noise, the clip and the rounds of a plan cost. They are no forecast for patients.
The rules:

* the noise is as large beside the sum of all declared patients as in the plan, however few patients are made up;
* steps are those of the plan's server rule, and the network is the plan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.numbers.round_sums import Sums
from protos.plan.architecture import network_tensors
from protos.plan.exchange import Exchanges
from protos.plan.initial_values import initial_values
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.private_training import PrivateTraining
from protos.plan.server_rules import apply_rule, begin_rule
from protos.privacy.accounting import PRIVATE_SCALE
from protos.wire.messages import Stage

Float64: TypeAlias = npt.NDArray[np.float64]

_MOST_ROWS: Final = 2000
_TEST_ROWS: Final = 4000
_DRAWS: Final = 3
_MOST_WORK: Final = 2 * 10**8  # rows times numbers times rounds of one training; some seconds
_MOST_ROUNDS: Final = 1000
_SLOPE: Final = 1.35  # of the true score in the logit


@dataclass(frozen=True)
class MadeUp:
    """AUROC over made-up test rows, and how many made-up patients were trained on."""

    with_noise: float
    without: float
    patients: int


def made_up_training(plan: Plan) -> MadeUp | None:
    """Train a plan on made-up patients; None if it trains no private network or would take too long."""
    training = plan.private_training
    if training is None:
        return None
    rows = min(training.patients, _MOST_ROWS)
    steps = training.sums
    if steps > _MOST_ROUNDS or rows * len(training.names) * steps > _MOST_WORK:
        return None
    generator = np.random.default_rng(0)
    direction = generator.standard_normal(len(plan.shared_columns))
    direction *= _SLOPE / np.linalg.norm(direction)
    features = generator.standard_normal((rows + _TEST_ROWS, len(direction)))
    outcomes = (generator.random(len(features)) < 1 / (1 + np.exp(-features @ direction))).astype(np.float64)
    parts = slice(rows), slice(rows, None)
    known, tested = ((features[part], outcomes[part]) for part in parts)
    drawn = [_area(plan, training, known, tested, np.random.default_rng(draw)) for draw in range(_DRAWS)]
    return MadeUp(float(np.mean(drawn)), _area(plan, training, known, tested, None), rows)


def _area(
    plan: Plan,
    training: PrivateTraining,
    known: tuple[Float64, Float64],
    tested: tuple[Float64, Float64],
    noise: np.random.Generator | None,
) -> float:
    """AUROC after all rounds."""
    manifest, rule, count = manifest_of(plan), plan.ingredients.server_rule, len(training.tensors)
    parameters, state = manifest.initial_parameters(plan.seed), begin_rule(rule, manifest.parameters)
    exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    whole = network_tensors(plan.architecture, columns=len(plan.shared_columns), outputs=1)
    fixed = [initial_values(tensor, plan.seed).astype(np.float64) for tensor in whole[count:]]
    scale = training.patients * (training.promise.sampling or 1.0) / len(known[0])
    # Under local noise each site makes its own steps, so its patients are a part of their own.
    sites = training.sites if training.is_local else 1
    parts = [tuple(values[site::sites] for values in known) for site in range(sites)]
    for _ in range(training.rounds):
        arrays = [*(values.astype(np.float64) for values in manifest.views(parameters).values()), *fixed]
        sums = np.zeros(len(training.names))
        for features, outcomes in parts:
            moved = followed = np.zeros(len(sums))
            for made in range(training.steps * training.inner):
                here = _moved(arrays, count, training.local_change(moved * PRIVATE_SCALE))
                moved = moved + training.pull * (followed - moved)
                moved += scale * _clipped_sum(here, count // 2, training.promise.clip, features, outcomes)
                moved += 0.0 if noise is None else noise.normal(0.0, training.deviation, len(sums))
                if (made + 1) % training.inner == 0:
                    followed = followed + training.follow * (moved - followed)
            sums += followed if training.follow else moved
        numbers = np.rint(sums * PRIVATE_SCALE).astype(np.int64).tolist()
        scalars = dict(zip(training.names, numbers, strict=True))
        updates = np.empty(0, np.int32)
        apply_rule(plan, manifest, Sums(exchange=exchange, contributors=plan.quorum, updates=updates, scalars=scalars),
                   parameters, state)  # fmt: skip
    arrays = [*(values.astype(np.float64) for values in manifest.views(parameters).values()), *fixed]
    return _ranked(_read(arrays, tested[0])[-1][:, 0], tested[1])


def _moved(arrays: Sequence[Float64], count: int, change: Float64) -> list[Float64]:
    """The first `count` arrays with a change added, and the others."""
    shared = arrays[:count]
    parts = np.split(change, np.cumsum([array.size for array in shared])[:-1])
    moved = [array + part.reshape(array.shape) for array, part in zip(shared, parts, strict=True)]
    return [*moved, *arrays[count:]]


def _read(arrays: Sequence[Float64], features: Float64) -> list[Float64]:
    """What each layer reads, and at the end the logits."""
    read = [features]
    for place in range(0, len(arrays), 2):
        outputs = read[-1] @ arrays[place].T + arrays[place + 1]
        read.append(outputs if place + 2 == len(arrays) else np.maximum(outputs, 0.0))
    return read


def _clipped_sum(arrays: Sequence[Float64], shared: int, clip: float, features: Float64, outcomes: Float64) -> Float64:
    """The sum of the rows' gradients of the first `shared` layers, each at most 1 long in units of the clip."""
    read = _read(arrays, features)
    moves = [1 / (1 + np.exp(-np.clip(read[-1], -40, 40))) - outcomes[:, None]]
    for place in range(len(arrays) - 2, 0, -2):
        moves.insert(0, (moves[0] @ arrays[place]) * (read[place // 2] > 0))
    pairs = list(zip(moves, read, strict=False))[:shared]
    squares = np.sum([(move**2).sum(axis=1) * (1 + (own**2).sum(axis=1)) for move, own in pairs], axis=0)
    factors = (1 / np.maximum(np.sqrt(squares), clip))[:, None]
    return np.concatenate(
        [part for move, own in pairs for part in (((move * factors).T @ own).ravel(), (move * factors).sum(axis=0))]
    )


def _ranked(scores: Float64, outcomes: Float64) -> float:
    """AUROC by the ranks of the scores; equal scores count as ordered by chance."""
    order = np.lexsort((np.random.default_rng(0).random(len(scores)), scores))
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    there = outcomes == 1
    positive, negative = int(there.sum()), int((~there).sum())
    return float((ranks[there].sum() - positive * (positive + 1) / 2) / (positive * negative))
