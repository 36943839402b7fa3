"""One site's sum of clipped gradients, one term for each patient; what noise is later added to by the gate.

The rules:

* no patient's term depends on who stands beside it, not even in its last bit. Libraries add up products in an order
  that follows from the number of rows. So inputs, weights, activations and derivatives are rounded to grids on which
  every product and every sum is exact in float64, whatever the order;
* a patient with many rows has one term, the sum over these rows, shortened to the norm 1 in units of the clip;
* a term is finite, whatever the rows and the parameters are.

Layers are linear with relu between them, and the outcome is binary. Source: Abadi et al. 2016, algorithm 1, with one
patient as the unit, and with noise that is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import RandomBytes
from site_agent.trainer.prior.private_terms import summed_terms

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Float = TypeVar("Float", np.float32, np.float64)

# Inputs and activations have 18 bits, weights 26 and derivatives 18. So a product has 44 bits, and the sum of 500 of
# them and a bias has fewer than the 53 bits of float64. A product of a derivative and an input has 36 bits, so a
# patient may have 131,072 rows. With more, rounding depends on this patient's rows alone.
_INPUT: Final = (64.0, 1 << 12)  # largest magnitude, steps in 1
_WEIGHT: Final = (64.0, 1 << 20)
_DERIVATIVE: Final = (4.0, 1 << 16)
_FURTHEST_LOGIT: Final = 40.0
_STEPS_OF_ROWS: Final = PRIVATE_SCALE // _INPUT[1]
_ROWS_AT_ONCE: Final = 1024


@dataclass(frozen=True)
class Layer:
    """A linear map, in float64 of any values.

    Attributes:
        weight: of shape (outputs, inputs).
        bias: of shape (outputs,).
    """

    weight: Float64
    bias: Float64

    @property
    def number_count(self) -> int:
        """Numbers of weight and bias."""
        return self.weight.size + self.bias.size


def clipped_gradients(
    layers: Sequence[Layer],
    clip: float,
    features: npt.NDArray[np.float32],
    outcomes: Float64,
    patients: Integers | None,
    *,
    shared: int | None = None,
) -> tuple[int, ...]:
    """Return the site's sum of terms as integers, in the order of the layers, each with its weight, then its bias.

    Args:
        layers: of the network, at most 500 inputs each; the last one has one output.
        clip: the largest norm of one patient's gradient.
        features: of shape (rows, inputs).
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None where each row counts as a patient.
        shared: so many layers from the input have a gradient, the others have to be fixed; None for all.
    """
    exact = [
        Layer(_on_grid(_finite(layer.weight), _WEIGHT), _on_grid(_finite(layer.bias), _WEIGHT)) for layer in layers
    ]
    is_single = _have_one_row(len(outcomes), patients)
    # Which way a patient's term is computed follows from this patient's number of rows alone.
    if patients is None or is_single.all():
        return tuple(_sum_of_single_rows(exact, clip, features, outcomes, shared).tolist())
    total = _sum_of_single_rows(exact, clip, features[is_single], outcomes[is_single], shared)
    numbers, others = len(total), np.flatnonzero(~is_single)

    def terms_of(rows: Integers) -> Float64:
        return _gradients(_passes(exact, features[others[rows]], outcomes[others[rows]])[:shared], numbers)

    terms = summed_terms(terms_of, len(others), numbers, patients[others], unit=clip)
    return tuple(one + other for one, other in zip(total.tolist(), terms, strict=True))


def drawn_rows(rows: int, patients: Integers | None, rate: float, random_bytes: RandomBytes) -> npt.NDArray[np.bool_]:
    """Draw which rows take part in a round, bool of shape (rows,): each patient with all rows, or with none.

    Source: Abadi et al. 2016, section 3.1 (each patient independently; no batch of a fixed size).

    Args:
        rows: of the training part.
        patients: as in `clipped_gradients`.
        rate: the probability with which a patient takes part, above 0 and below 1.
        random_bytes: the operating system's outside of tests. Nobody else may learn who takes part.
    """
    names = np.arange(rows) if patients is None else patients
    _, places = np.unique(names, return_inverse=True)
    count = int(places.max(initial=-1)) + 1
    drawn = np.frombuffer(random_bytes(8 * count), "<u8")
    # A float64 below 1 times 2**64 is a whole number below 2**64, so the probability is the rate, or less by 2**-64.
    return np.asarray((drawn < np.uint64(int(rate * 2.0**64)))[places])


def _have_one_row(rows: int, patients: Integers | None) -> npt.NDArray[np.bool_]:
    if patients is None:
        return np.ones(rows, dtype=bool)
    _, places, counts = np.unique(patients, return_inverse=True, return_counts=True)
    return np.asarray(counts[places] == 1)


def _sum_of_single_rows(
    layers: Sequence[Layer],
    clip: float,
    features: npt.NDArray[np.float32],
    outcomes: Float64,
    shared: int | None,
) -> Integers:
    """The sum of the terms of patients with one row each, int64 of shape (numbers,).

    A row's gradient of a layer is each derivative times each input. The derivatives are shortened and rounded to steps
    of 2**-18. Times inputs in steps of 2**-12 they are integers of scale 2**30. So the sum over rows is one product of
    matrices, and it is exact.
    """
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    for first in range(0, len(outcomes), _ROWS_AT_ONCE):
        block = slice(first, first + _ROWS_AT_ONCE)
        passes = _passes(layers, features[block], outcomes[block])[:shared]
        factors = _shortened(passes, clip)[:, None] * _STEPS_OF_ROWS
        parts = []
        for moves, read in passes:
            whole = np.rint(moves * factors)
            parts += [(whole.T @ (read * _INPUT[1])).ravel(), whole.sum(axis=0) * _INPUT[1]]
        total += np.concatenate(parts).astype(np.int64)
    return total


def _shortened(passes: Sequence[tuple[Float64, Float64]], clip: float) -> Float64:
    """By what each row's derivatives are multiplied, float64 of shape (rows,), so that its term has at most the norm 1.

    Rounding moves each derivative by at most half a step, and with it this derivative's part of the term.
    """
    sizes = [1.0 + _sums_of_squares(read) for _, read in passes]
    squares = [_sums_of_squares(moves) * size for (moves, _), size in zip(passes, sizes, strict=True)]
    lost = [moves.shape[1] * size for (moves, _), size in zip(passes, sizes, strict=True)]
    norms = np.sqrt(np.sum(squares, axis=0)) / clip
    room = 1.0 - np.sqrt(np.sum(lost, axis=0)) / (2 * _STEPS_OF_ROWS) - 1.0 / PRIVATE_SCALE
    return np.asarray(np.minimum(1.0, room / np.maximum(norms, room)) / clip)


def _sums_of_squares(values: Float64) -> Float64:
    """Of each row, float64 of shape (rows,). They are exact for values on a grid, so their order does not matter."""
    return np.asarray(np.einsum("ij,ij->i", values, values))


def _gradients(passes: Sequence[tuple[Float64, Float64]], numbers: int) -> Float64:
    """The gradient of each row's cross-entropy, float64 of shape (rows, numbers)."""
    found, start = np.empty((len(passes[0][0]), numbers)), 0
    for moves, read in passes:
        bias = start + moves.shape[1] * read.shape[1]
        found[:, start:bias] = (moves[:, :, None] * read[:, None, :]).reshape(len(read), -1)
        start = bias + moves.shape[1]
        found[:, bias:start] = moves
    return found


def _passes(
    layers: Sequence[Layer], features: npt.NDArray[np.float32], outcomes: Float64
) -> list[tuple[Float64, Float64]]:
    """For each layer the derivatives of each row's cross-entropy by its outputs, and its inputs."""
    read = [_on_grid(_finite(features), _INPUT).astype(np.float64)]  # float32 holds this grid
    for layer in layers[:-1]:
        read.append(_on_grid(read[-1] @ layer.weight.T + layer.bias, _INPUT, lowest=0.0))
    logits = np.clip(read[-1] @ layers[-1].weight.T + layers[-1].bias, -_FURTHEST_LOGIT, _FURTHEST_LOGIT)
    moves = [_on_grid(1.0 / (1.0 + np.exp(-logits)) - outcomes[:, None], _DERIVATIVE)]
    for layer, own in zip(layers[:0:-1], read[:0:-1], strict=True):
        moves.append(_on_grid((moves[-1] @ layer.weight) * (own > 0.0), _DERIVATIVE))
    return list(zip(reversed(moves), read, strict=True))


def _finite(values: npt.NDArray[Float]) -> npt.NDArray[Float]:
    """The values, with 0 where they are no number; infinite ones are as good as huge ones."""
    lacking = np.isnan(values)
    if not lacking.any():
        return values
    found = values.copy()
    found[lacking] = 0.0
    return found


def _on_grid(values: npt.NDArray[Float], grid: tuple[float, int], *, lowest: float | None = None) -> npt.NDArray[Float]:
    """The nearest values of a grid that are not below the lowest, from values that are numbers."""
    largest, steps = grid
    kept = np.clip(values, -largest if lowest is None else lowest, largest)
    kept *= steps
    np.rint(kept, out=kept)
    kept *= 1.0 / steps  # exact, since steps are a power of two
    return kept
