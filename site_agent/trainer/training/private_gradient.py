"""One site's sum of clipped gradients, one term for each patient. The gate adds the noise later.

The rules:

* no patient's term depends on the other patients of its batch, not even in its last bit. Libraries add up products in
  an order that follows from the number of rows. So inputs, weights, activations and derivatives are rounded to grids on
  which every product and every sum is exact in float64, whatever the order;
* a patient with several rows has one term, the sum over these rows, shortened to the norm 1 in units of the clip.
  Which way it is computed follows from this patient's number of rows alone;
* a term is finite, whatever the rows and the parameters are.

Layers are linear with relu between them, and the outcome is binary. Source: Abadi et al. 2016, algorithm 1, with one
patient as the unit, and with noise that is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import RandomBytes
from site_agent.trainer.prior.private_terms import rounded_sum

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Pass: TypeAlias = tuple[Float64, Float64]

# Inputs and activations have 18 bits, weights 26 and derivatives 18. So a product has 44 bits, and the sum of 500 of
# them and a bias has fewer than the 53 bits of float64. A product of a derivative and an input has 36 bits, so a
# patient may have 131,072 rows. With more, rounding depends on this patient's rows alone.
_INPUT: Final = (64.0, 1 << 12)  # largest magnitude, steps in 1
_WEIGHT: Final = (64.0, 1 << 20)
_DERIVATIVE: Final = (4.0, 1 << 16)
_FURTHEST_LOGIT: Final = 40.0
_STEPS_OF_ROWS: Final = PRIVATE_SCALE // _INPUT[1]
_ROWS_AT_ONCE: Final = 2048
_FEW_ROWS: Final = 16  # of a patient, up to which a term's norm is computed from pairs of rows
# Rows of a patient that cancel further count less: the square of the sum is taken as at least this part of the sum of
# the squares. So 16 rows are together at most 4 * 8 times as long as a term may be. A square has fewer than 2,112
# roundings (a layer has two numbers or more), each below 2**-53 * 16 * 64 of it, so a norm is wrong by at most 2**-32.
_LEAST_LEFT: Final = 1 / 64


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

    @cached_property
    def on_grid(self) -> Float64:
        """Weights, and biases as the last column, float64 (outputs + 1, inputs + 1). The last row returns the 1."""
        outputs, inputs = self.weight.shape
        wide = np.zeros((outputs + 1, inputs + 1))
        wide[:-1, :-1], wide[:-1, -1], wide[-1, -1] = self.weight, self.bias, 1.0
        return _in_steps(wide, _WEIGHT) * (1.0 / _WEIGHT[1])

    @cached_property
    def backward(self) -> Float64:
        """As `on_grid`, but without biases and last row, float64 of shape (outputs, inputs + 1)."""
        weights = self.on_grid[:-1].copy()
        weights[:, -1] = 0.0
        return weights


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """A site's training rows, prepared once for all rounds.

    Attributes:
        inputs: whole numbers of steps, float64 of shape (rows, inputs + 1). The last column is 1 for the bias.
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None where each row counts as a patient.
    """

    inputs: Float64
    outcomes: Float64
    patients: Integers | None

    @classmethod
    def of(cls, features: npt.NDArray[np.float32], outcomes: Float64, patients: Integers | None) -> PrivateRows:
        """Put features of shape (rows, inputs) on their grid."""
        wide = np.column_stack([features, np.ones(len(features), np.float32)])
        return cls(_in_steps(wide, _INPUT), outcomes, patients)

    def taken(self, kept: npt.NDArray[np.bool_] | Integers) -> PrivateRows:
        """Return some of the rows, by a bool for each row or by their places."""
        patients = None if self.patients is None else self.patients[kept]
        return PrivateRows(self.inputs[kept], self.outcomes[kept], patients)

    @cached_property
    def parts(self) -> tuple[PrivateRows, PrivateRows | None]:
        """The rows of patients with few rows, each patient's together, and those of all others, if there are any."""
        if self.patients is None:
            return self, None
        _, places, counts = np.unique(self.patients, return_inverse=True, return_counts=True)
        order = np.argsort(places, kind="stable")
        has_few = counts[places[order]] <= _FEW_ROWS
        return self.taken(order[has_few]), None if has_few.all() else self.taken(order[~has_few])

    @cached_property
    def owners(self) -> tuple[Integers, int]:
        """The patient of each row, counted from 0, int64 of shape (rows,), and the most rows of a patient."""
        if self.patients is None:
            return np.arange(len(self.outcomes)), 1
        _, places, counts = np.unique(self.patients, return_inverse=True, return_counts=True)
        return np.asarray(places, np.int64), int(counts.max(initial=0))

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """About `_ROWS_AT_ONCE` rows each. No patient is divided if each patient's rows are together."""
        starts, rows = np.flatnonzero(np.diff(self.owners[0], prepend=-1)), len(self.outcomes)
        places = np.append(starts, rows)[np.searchsorted(starts, np.arange(0, rows, _ROWS_AT_ONCE))]
        return tuple(slice(first, last) for first, last in pairwise(np.unique([*places, rows]).tolist()))


def clipped_gradients(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, *, shared: int | None = None, room: float = 1.0
) -> tuple[int, ...]:
    """Return the site's sum of terms as integers, in the order of the layers, each with its weight, then its bias.

    The norm 1 of a term is PRIVATE_SCALE.

    Args:
        layers: of the network, at most 500 inputs each; the last one has one output.
        clip: the largest norm of one patient's gradient.
        rows: of this site.
        shared: this many layers from the input have a gradient, the others have to be fixed; None for all.
        room: the largest norm of a term, at most 1.
    """
    few, others = rows.parts
    total = _sum_of_few_rows(layers, clip, few, shared, room)
    if others is not None:
        total += _sum_of_many_rows(layers, clip, others, shared, room)
    return tuple(total.tolist())


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


def _sum_of_few_rows(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, shared: int | None, room: float
) -> Integers:
    """The sum of the terms of patients with few rows each, int64 of shape (numbers,).

    A row's gradient of a layer is each derivative times each input. The derivatives are shortened and rounded to steps
    of 2**-18. Times inputs in steps of 2**-12 they are integers of scale 2**30. So the sum over rows is one product of
    matrices, and it is exact: the rows of a patient together are at most 32 times as long as a term may be.
    """
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    for block in rows.blocks:
        passes = _passes(layers, rows.inputs[block], rows.outcomes[block])[:shared]
        factors = _shortened(layers, passes, clip, rows.owners[0][block], rows.owners[1], room)
        for moves, _ in passes:
            moves *= factors
            np.rint(moves, out=moves)
        total += _in_order(layers, [moves.T @ read for moves, read in passes]).astype(np.int64)
    return total


def _sum_of_many_rows(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, shared: int | None, room: float
) -> Integers:
    """The sum of the terms of patients with many rows each: one exact product of matrices for each patient."""
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    for block in rows.blocks:
        passes = _passes(layers, rows.inputs[block], rows.outcomes[block])[:shared]
        starts = np.flatnonzero(np.diff(rows.owners[0][block], prepend=-1)).tolist()
        patients = [slice(first, last) for first, last in pairwise([*starts, block.stop - block.start])]
        sums = [np.stack([moves[mine].T @ read[mine] for mine in patients]) for moves, read in passes]
        total += rounded_sum(_in_order(layers, sums), clip * _INPUT[1] * _DERIVATIVE[1], room)
    return total


def _shortened(
    layers: Sequence[Layer], passes: Sequence[Pass], clip: float, owners: Integers, most: int, room: float = 1.0
) -> Float64:
    """By what each row's derivatives are multiplied, float64 of shape (rows, 1), so that no term is longer than `room`.

    The square of a sum of rows is the sum of all products of two of them. The product of two rows' gradients is that of
    their derivatives times that of their inputs (Goodfellow 2015, for a row with itself). Both are exact, because they
    are sums of whole numbers. All else is computed for each row, or added in the order of a patient's rows.

    Rounding moves each derivative by at most half a step, and with it this derivative's part of the term.
    """
    own, lost = np.zeros((2, len(owners)))
    for layer, (moves, read) in zip(layers, passes, strict=False):
        size = np.vecdot(read, read)
        own = own + np.vecdot(moves, moves) * size
        lost = lost + layer.bias.size * size
    squares, losses = own.copy(), np.sqrt(lost)
    if most > 1:
        for away in range(1, most):
            pairs = sum(
                np.vecdot(moves[away:], moves[:-away]) * np.vecdot(read[away:], read[:-away]) for moves, read in passes
            )
            squares[:-away] += np.where(owners[away:] == owners[:-away], 2.0 * pairs, 0.0)
        owners = owners - owners[0]
        squares, own, losses = (np.asarray(np.bincount(owners, part), float) for part in (squares, own, losses))
        squares = np.maximum(squares, own * _LEAST_LEFT)
    norms = np.sqrt(squares) / (clip * _INPUT[1] * _DERIVATIVE[1])
    largest = room - losses / (2 * PRIVATE_SCALE) - 1.0 / PRIVATE_SCALE
    factors = largest / np.maximum(norms, largest) * (_STEPS_OF_ROWS / _DERIVATIVE[1] / clip)
    return np.asarray(factors[owners] if most > 1 else factors)[:, None]


def _in_order(layers: Sequence[Layer], products: Sequence[Float64]) -> Float64:
    """Each layer's weights, then its biases: (..., numbers), from one (..., outputs or more, inputs + 1) for each."""
    parts = []
    for layer, product in zip(layers, products, strict=False):
        mine = product[..., : layer.bias.size, :]
        parts += [mine[..., :-1].reshape(*mine.shape[:-2], -1), mine[..., -1]]
    return np.concatenate(parts, axis=-1)


def _passes(layers: Sequence[Layer], inputs: Float64, outcomes: Float64) -> list[Pass]:
    """For each layer the derivatives of each row's cross-entropy by its outputs, and its inputs, in steps.

    Inputs have a last column of ones as in `PrivateRows`, and derivatives of all layers but the last one of zeros.
    """
    read = [inputs]
    for layer in layers[:-1]:
        here = read[-1] @ layer.on_grid.T
        np.rint(here, out=here)
        read.append(np.clip(here, 0.0, _INPUT[0] * _INPUT[1], out=here))
    last, most = layers[-1], _DERIVATIVE[0] * _DERIVATIVE[1]
    logits = np.clip(read[-1] @ last.on_grid[0] / _INPUT[1], -_FURTHEST_LOGIT, _FURTHEST_LOGIT)
    moves = [np.rint(_DERIVATIVE[1] / (1.0 + np.exp(-logits)) - _DERIVATIVE[1] * outcomes)[:, None]]
    for layer, here in zip(layers[:0:-1], read[:0:-1], strict=True):
        back = moves[-1] * layer.backward if layer is last else moves[-1][:, :-1] @ layer.backward
        back *= np.clip(here, 0.0, 1.0)  # the derivative of relu: a positive whole number is at least 1
        np.rint(back, out=back)
        moves.append(np.clip(back, -most, most, out=back))
    return list(zip(reversed(moves), read, strict=True))


def _in_steps(values: npt.NDArray[Any], grid: tuple[float, int]) -> Float64:
    """The nearest whole numbers of steps of a grid, with 0 for no number; infinite values are as good as huge ones."""
    largest, steps = grid
    kept = np.clip(np.nan_to_num(values.astype(np.float64), posinf=largest, neginf=-largest), -largest, largest)
    kept *= steps
    return np.rint(kept, out=kept)
