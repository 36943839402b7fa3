"""Computes the sums of a private round: of one clipped gradient, or of several local steps with noise.

The mechanism is in protos/plan/private_training.py. The rules:

* no patient's term depends on the other patients of its batch, not even in its last bit. Libraries add up products in
  an order that depends on the number of rows. So inputs, weights, activations and derivatives are rounded to grids on
  which every product and every sum is exact in float64, whatever the order;
* a patient with several rows has one term, the sum over these rows, shortened to the norm 1 in units of the clip;
* a term is finite, whatever the rows and the parameters are;
* under shared noise the sum is exact, and the gate adds this site's share of the noise;
* private layers take steps too under some methods. Their sums have the whole noise before they leave this file;
* under local noise no step reads a sum before its whole noise is added. Only sums with noise are sent;
* local noise is from the operating system's randomness, never from a seed.

Layers are linear with relu between them, and the outcome is binary. Source: Abadi et al. 2016, algorithm 1, with one
patient as the unit. The gradients are written by hand, because no library computes them without rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.noisy_results import local_change
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import RandomBytes, discrete_gaussian
from site_agent.trainer.prior.site_sums import Float64, Integers, rounded_sum

Pass: TypeAlias = tuple[Float64, Float64]  # derivatives (rows, outputs) and inputs (rows, inputs) of a layer

# Inputs and activations have 18 bits, weights 26 and derivatives 18. So a product has 44 bits, and the sum of 500
# products and a bias has fewer than the 53 bits of float64. A product of a derivative and an input has 36 bits, so sums
# of up to 131,072 rows of a patient are exact. With more rows, rounding depends on this patient's rows alone.
_INPUT: Final = (64.0, 1 << 12)  # largest magnitude, steps in 1
_WEIGHT: Final = (64.0, 1 << 20)
_DERIVATIVE: Final = (4.0, 1 << 16)
_FURTHEST_LOGIT: Final = 40.0
_NUMBERS_AT_ONCE: Final = 1 << 18  # of patients' gradients, which fit into a processor's cache; changes no result
_SINGLE_ROWS_AT_ONCE: Final = 1024  # likewise


@dataclass(frozen=True)
class Layer:
    """A linear layer in float64: weight of shape (outputs, inputs), and bias of shape (outputs,)."""

    weight: Float64
    bias: Float64

    @property
    def number_count(self) -> int:
        return self.weight.size + self.bias.size

    @property
    def on_grid(self) -> Layer:
        """This layer with rounded values."""
        return Layer(*(_in_steps(values, _WEIGHT) / _WEIGHT[1] for values in (self.weight, self.bias)))


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """A site's training rows, prepared once for all rounds.

    `inputs` are whole numbers of steps, float64 (rows, inputs). `outcomes` are 0 or 1, float64 (rows,). `patients` are
    int64 (rows,), equal for rows of one patient; None if each row counts as a patient.
    """

    inputs: Float64
    outcomes: Float64
    patients: Integers | None

    @classmethod
    def of(cls, features: npt.NDArray[np.float32], outcomes: Float64, patients: Integers | None) -> PrivateRows:
        """Prepare the rows for private training from features of shape (rows, inputs), by rounding the features."""
        return cls(_in_steps(features, _INPUT), outcomes, patients)

    @cached_property
    def by_count(self) -> tuple[tuple[Float64, Float64, int], ...]:
        """Inputs and outcomes of the patients with 1 row, with 2 rows, and so on, and this number of rows.

        The rows of a patient are next to each other.
        """
        if self.patients is None:
            return ((self.inputs, self.outcomes, 1),)
        _, places, counts = np.unique(self.patients, return_inverse=True, return_counts=True)
        found = []
        for each in np.unique(counts).tolist():
            rows = np.flatnonzero(counts[places] == each)
            rows = rows[np.argsort(places[rows], kind="stable")]
            found.append((self.inputs[rows], self.outcomes[rows], each))
        return tuple(found)

    def blocks(self, numbers: int) -> Iterator[tuple[Float64, Float64, int]]:
        """Yield the rows in blocks with all rows of each of its patients, whose gradients have so many numbers."""
        for inputs, outcomes, each in self.by_count:
            size = _SINGLE_ROWS_AT_ONCE if each == 1 else each * max(1, _NUMBERS_AT_ONCE // max(numbers, each))
            for first in range(0, len(outcomes), size):
                yield inputs[first : first + size], outcomes[first : first + size], each


def clipped_gradients(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, *, shared: int | None = None
) -> Integers:
    """Return the site's sum of clipped gradients, int64 of shape (numbers,): for each layer its weight, then its bias.

    A patient's term of norm 1 has the integer norm PRIVATE_SCALE. `layers` have at most 500 inputs each; the last one
    has one output. `clip` is the largest norm of one patient's gradient. Only `shared` layers from the input have a
    gradient, and the others must be fixed; None for all.
    """
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    rounded = [layer.on_grid for layer in layers]
    for inputs, outcomes, each in rows.blocks(total.size):
        passes = _passes(rounded, inputs, outcomes)[:shared]
        if each == 1:
            total += _sum_of_single_rows(passes, clip)
            continue
        parts: list[Float64] = []
        for moves, read in passes:
            moves, read = (rows.reshape(-1, each, rows.shape[1]) for rows in (moves, read))
            parts += [(moves.mT @ read).reshape(len(moves), -1), moves.sum(1) * _INPUT[1]]
        total += rounded_sum(np.concatenate(parts, axis=1), clip * _INPUT[1] * _DERIVATIVE[1])
    return total


def _sum_of_single_rows(passes: Sequence[Pass], clip: float) -> Integers:
    """Return the sum of the clipped gradients of patients with one row each, int64 of shape (numbers,).

    The fast path: with 1,000 rows it needs a tenth of the time. A row's gradient of a layer is each derivative times
    each input. Its square is that of the derivatives times that of the inputs (Goodfellow 2015), and both are exact.
    The derivatives are shortened and rounded to steps of 2**-18. Times inputs in steps of 2**-12 they are integers of
    scale 2**30, so the sum over rows is one exact matrix product. Rounding moves a derivative by at most half a step.
    """
    sizes = [np.vecdot(read, read) + float(_INPUT[1] ** 2) for _, read in passes]
    squares = sum(np.vecdot(moves, moves) * size for (moves, _), size in zip(passes, sizes, strict=True))
    lost = np.sqrt(sum(moves.shape[1] * size for (moves, _), size in zip(passes, sizes, strict=True)))
    norms = np.sqrt(squares) / (clip * _INPUT[1] * _DERIVATIVE[1])
    largest = 1.0 - lost / (2 * PRIVATE_SCALE) - 1.0 / PRIVATE_SCALE
    factors = largest / np.maximum(norms, largest) * (PRIVATE_SCALE // _INPUT[1] / _DERIVATIVE[1] / clip)
    parts: list[Float64] = []
    for moves, read in passes:
        short = np.rint(moves * factors[:, None])
        parts += [(short.T @ read).ravel(), short.sum(0) * _INPUT[1]]
    return np.concatenate(parts).astype(np.int64)


def _passes(layers: Sequence[Layer], inputs: Float64, outcomes: Float64) -> list[Pass]:
    """Compute for each layer the derivatives of each row's cross-entropy by its outputs, and its inputs, in steps."""
    read, most = [inputs], _DERIVATIVE[0] * _DERIVATIVE[1]
    for layer in layers[:-1]:
        sums = read[-1] @ layer.weight.T + layer.bias * _INPUT[1]
        read.append(np.clip(np.rint(sums), 0.0, _INPUT[0] * _INPUT[1]))
    last = layers[-1]
    logits = np.clip(read[-1] @ last.weight[0] / _INPUT[1] + last.bias, -_FURTHEST_LOGIT, _FURTHEST_LOGIT)
    moves = [np.rint(_DERIVATIVE[1] / (1.0 + np.exp(-logits)) - _DERIVATIVE[1] * outcomes)[:, None]]
    for layer, here in zip(layers[:0:-1], read[:0:-1], strict=True):
        moves.append(np.clip(np.rint(moves[-1] @ layer.weight * (here > 0)), -most, most))
    return list(zip(reversed(moves), read, strict=True))


def _in_steps(values: npt.NDArray[Any], grid: tuple[float, int]) -> Float64:
    """Round values to whole numbers of steps of a grid. NaN becomes 0. Infinite values become the largest step."""
    largest, steps = grid
    kept = np.clip(values.astype(np.float64), -largest, largest)
    kept[np.isnan(kept)] = 0.0
    return np.rint(kept * steps)


def private_sums(
    training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows, random_bytes: RandomBytes
) -> tuple[int, ...]:
    """Return a private round's integers: the sums of `training.names` in order, then the noisy sums of private layers.

    `arrays` are weight and bias of each layer, in order. `random_bytes` are the operating system's outside of tests.
    """
    is_own = training.is_own
    if not training.is_local:
        exact = _clipped_sum(training, arrays, rows)
        noise = discrete_gaussian(training.own_numbers, training.own_variance, random_bytes)
        return (*exact[~is_own].tolist(), *(exact[is_own] + noise).tolist())
    trained = arrays[: training.trained]
    ends, pull = np.cumsum([array.size for array in trained]), np.where(is_own, 0.0, training.pull)
    start, moved = np.concatenate([array.ravel() for array in trained]), np.zeros(ends[-1], np.int64)
    followed = moved  # the shared model for pFedMe; the received values for every other method
    for made in range(training.steps * training.inner):
        parts = np.split(start + local_change(training, moved.astype(np.float64)), ends[:-1])
        here = [part.reshape(array.shape) for part, array in zip(parts, trained, strict=True)]
        sums = _clipped_sum(training, [*here, *arrays[len(trained) :]], rows)
        noise = discrete_gaussian(len(sums), training.share_variance, random_bytes)
        # The proximal term moves the values back a part of the way. It reads only values with noise.
        moved = moved + _part(followed - moved, pull) + sums + noise
        if (made + 1) % training.inner == 0:
            followed = followed + _part(moved - followed, training.follow)
    # The gate refuses larger numbers. A site's own patients must not decide that.
    found = np.clip(followed if training.follow else moved, -_bounds(training), _bounds(training))
    return (*found[~is_own].tolist(), *found[is_own].tolist())


def _bounds(training: PrivateTraining) -> Integers:
    return np.where(training.is_own, training.own_bound, training.bound)


def _part(way: Integers, share: float | Float64) -> Integers:
    return np.asarray(np.rint(way * share).astype(np.int64))


def _clipped_sum(training: PrivateTraining, arrays: Sequence[Float64], rows: PrivateRows) -> Integers:
    layers = [Layer(weight, bias) for weight, bias in zip(arrays[::2], arrays[1::2], strict=True)]
    exact = clipped_gradients(layers, training.promise.clip, rows, shared=training.trained // 2)
    # Two clipped sums are not further apart than the sums were, so no site reports its number of patients.
    return np.clip(exact, -training.largest_sum, training.largest_sum)
