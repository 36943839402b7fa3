"""Computes one site's sum of gradients, in which each patient's gradient is limited (clipped).

The rules:

* no patient's term depends on the other patients of its batch, not even in its last bit. Libraries add up products in
  an order that depends on the number of rows. So inputs, weights, activations and derivatives are rounded to grids on
  which every product and every sum is exact in float64, whatever the order;
* a patient with several rows has one term, the sum over these rows, shortened to the norm 1 in units of the clip.
  Only this patient's number of rows decides which algorithm computes it;
* a term is finite, whatever the rows and the parameters are.

Layers are linear with relu between them, and the outcome is binary. Source: Abadi et al. 2016, algorithm 1, with one
patient as the unit, and with noise that is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.privacy.accounting import PRIVATE_SCALE
from protos.privacy.discrete_gaussian import RandomBytes
from site_agent.trainer.prior.private_terms import Float64, Integers, rounded_sum

Pass: TypeAlias = tuple[Float64, Float64]

# Inputs and activations have 18 bits, weights 26 and derivatives 18. So a product has 44 bits, and the sum of 500
# products and a bias has fewer than the 53 bits of float64. A product of a derivative and an input has 36 bits, so sums
# of up to 131,072 rows of a patient are exact. With more rows, rounding depends on this patient's rows alone.
_INPUT: Final = (64.0, 1 << 12)  # largest magnitude, steps in 1
_WEIGHT: Final = (64.0, 1 << 20)
_DERIVATIVE: Final = (4.0, 1 << 16)
_FURTHEST_LOGIT: Final = 40.0
_STEPS_OF_ROWS: Final = PRIVATE_SCALE // _INPUT[1]
# In measurements 3,072 rows took less time than 2,048 or 6,144. A product of matrices takes less time for each row with
# at most 1,024 of them. Neither number changes a result.
_ROWS_AT_ONCE: Final = 3072
_ROWS_OF_A_PRODUCT: Final = 1024
# For patients with at most this number of rows, the factor that shortens the term is applied to each row.
_FEW_ROWS: Final = 16
# The square of a patient's sum of rows is computed in steps of 2**-52 of L squared, where L is the sum of the rows'
# lengths. It is raised to at least 2**-10 of L squared, so the rows are together at most 32 times as long as the
# largest term. A square has at most two parts for each of 4,096 numbers. Each part's error is half a step and 2**-51 of
# the part. So a square's relative error is below 2**-29.9, and a norm's below 2**-30.9.
_STEPS_OF_LENGTH: Final = 2.0**26
_LEAST_SQUARE: Final = 2.0**42


@dataclass(frozen=True)
class Layer:
    """A linear layer in float64: weight of shape (outputs, inputs), and bias of shape (outputs,)."""

    weight: Float64
    bias: Float64

    @property
    def number_count(self) -> int:
        """The number of values in the weight and the bias of this layer."""
        return self.weight.size + self.bias.size

    @cached_property
    def on_grid(self) -> Float64:
        """The rounded weights with the biases as last column, and a last row for the 1: (outputs + 1, inputs + 1)."""
        outputs, inputs = self.weight.shape
        wide = np.zeros((outputs + 1, inputs + 1))
        wide[:-1, :-1], wide[:-1, -1], wide[-1, -1] = self.weight, self.bias, 1.0
        return _in_steps(wide, _WEIGHT) * (1.0 / _WEIGHT[1])

    @cached_property
    def backward(self) -> Float64:
        """The rounded weights as a matrix with zeros for the biases and in a last row: (outputs + 1, inputs + 1)."""
        weights = self.on_grid.copy()
        weights[:, -1] = weights[-1] = 0.0
        return weights


class Scratch:
    """Memory that is reused in all blocks and rounds. Without it, the C library often freed memory after each step."""

    def __init__(self) -> None:
        self._kept: dict[str, Float64] = {}

    def array(self, name: str, rows: int, columns: int) -> Float64:
        """Return an array (rows, columns) with arbitrary values, in the memory of the last array of the same name."""
        if name not in self._kept or self._kept[name].size < rows * columns:
            self._kept[name] = np.empty(rows * columns)
        return self._kept[name][: rows * columns].reshape(rows, columns)


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """A site's training rows, prepared once for all rounds.

    `inputs` are whole numbers of steps, float64 (rows, inputs + 1), with a last column of 1 for the bias. `outcomes`
    are 0 or 1, float64 (rows,). `patients` are int64 (rows,), equal for rows of one patient; None if each row counts as
    a patient. `scratch` is for the computation of a block.
    """

    inputs: Float64
    outcomes: Float64
    patients: Integers | None
    scratch: Scratch = field(default_factory=Scratch)

    @classmethod
    def of(cls, features: npt.NDArray[np.float32], outcomes: Float64, patients: Integers | None) -> PrivateRows:
        """Prepare the rows for private training from features of shape (rows, inputs), by rounding the features."""
        wide = np.column_stack([features, np.ones(len(features), np.float32)])
        return cls(_in_steps(wide, _INPUT), outcomes, patients)

    def taken(self, kept: npt.NDArray[np.bool_] | Integers) -> PrivateRows:
        """Return the selected rows. `kept` has a bool for each row, or the numbers of the selected rows."""
        patients = None if self.patients is None else self.patients[kept]
        return PrivateRows(self.inputs[kept], self.outcomes[kept], patients, self.scratch)

    @cached_property
    def parts(self) -> tuple[PrivateRows, PrivateRows | None]:
        """Two parts: the rows of patients with few rows, and all other rows. The second part is None if it is empty.

        Each patient's rows are together, and so are patients with the same number of rows.
        """
        if self.patients is None:
            return self, None
        _, places, counts = np.unique(self.patients, return_inverse=True, return_counts=True)
        order = np.lexsort((places, counts[places]))
        has_few = counts[places[order]] <= _FEW_ROWS
        return self.taken(order[has_few]), None if has_few.all() else self.taken(order[~has_few])

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of about `_ROWS_AT_ONCE` rows, ordered as in `parts`. No patient's rows are divided between blocks."""
        rows = len(self.outcomes)
        names = np.arange(rows) if self.patients is None else self.patients
        starts = np.flatnonzero(np.diff(names, prepend=names[:1] - 1))
        counts = np.diff(starts, append=rows)
        firsts = np.unique(np.searchsorted(starts, np.linspace(0, rows, -(-rows // _ROWS_AT_ONCE), endpoint=False)))
        firsts = firsts[firsts < len(starts)].tolist()
        return tuple(
            Block.of(self.inputs, int(starts[first]), counts[first:last]) for first, last in pairwise([*firsts, None])
        )


@dataclass(frozen=True, eq=False)
class Block:
    """A block of consecutive rows that has all rows of each of its patients.

    `rows` is the place of these rows among all rows, and `counts` each patient's number of rows, int64 (patients,).
    `runs` has patients with equal counts: the places of their rows, their own places, and the count. Places start at
    the block's first row and patient. `inputs` are as in `PrivateRows`.
    """

    rows: slice
    counts: Integers
    runs: tuple[tuple[slice, slice, int], ...]
    inputs: Float64

    @classmethod
    def of(cls, inputs: Float64, start: int, counts: Integers) -> Block:
        """Build the block that starts at row `start` of `inputs`. `counts` has each patient's number of rows."""
        changes = np.flatnonzero(np.diff(counts, prepend=0, append=0)).tolist()
        ends = np.append(0, np.cumsum(counts))
        runs = tuple(
            (slice(int(ends[one]), int(ends[other])), slice(one, other), int(counts[one]))
            for one, other in pairwise(changes)
        )
        rows = slice(start, start + int(ends[-1]))
        return cls(rows, counts, runs, inputs[rows])

    @cached_property
    def singles(self) -> int:
        """The number of patients who have only one row. They are the first patients of the block."""
        return int(np.count_nonzero(self.counts == 1))

    @cached_property
    def squares(self) -> Float64:
        """For each row the sum of its squared inputs, float64 of shape (rows,). It is equal in all rounds."""
        return np.asarray(np.vecdot(self.inputs, self.inputs))

    @cached_property
    def pairs(self) -> tuple[Float64, ...]:
        """For each entry of `runs`, the result of `_pairs` for its inputs, equal in all rounds."""
        return tuple(_pairs(_by_patient(self.inputs, mine, each)) for mine, _, each in self.runs)


def clipped_gradients(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, *, shared: int | None = None, room: float = 1.0
) -> Integers:
    """Return the site's sum of clipped gradients, int64 of shape (numbers,): for each layer its weight, then its bias.

    A patient's term of norm 1 has the integer norm PRIVATE_SCALE. `layers` have at most 500 inputs each; the last one
    has one output. `clip` is the largest norm of one patient's gradient, and `room` that of a term, at most 1. Only
    `shared` layers from the input have a gradient, and the others must be fixed; None for all.
    """
    few, others = rows.parts
    total = _sum_of_few_rows(layers, clip, few, shared, room)
    if others is not None:
        total += _sum_of_many_rows(layers, clip, others, shared, room)
    return total


def drawn_rows(rows: int, patients: Integers | None, rate: float, random_bytes: RandomBytes) -> npt.NDArray[np.bool_]:
    """Choose at random the patients of a round, bool of shape (rows,): all rows of a patient take part, or none.

    Source: Abadi et al. 2016, section 3.1 (each patient independently; no batch of a fixed size). A patient takes part
    with the probability `rate`, above 0 and below 1. `random_bytes` are the operating system's outside of tests,
    because nobody else may learn who takes part. `patients` are as in `PrivateRows`.
    """
    names = np.arange(rows) if patients is None else patients
    _, places = np.unique(names, return_inverse=True)
    count = int(places.max(initial=-1)) + 1
    drawn = np.frombuffer(random_bytes(8 * count), "<u8")
    # The rate times 2**64 is rounded down, so the probability is the rate, or smaller by at most 2**-64.
    return np.asarray((drawn < np.uint64(int(rate * 2.0**64)))[places])


def _sum_of_few_rows(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, shared: int | None, room: float
) -> Integers:
    """Return the sum of the clipped gradients of patients with few rows, int64 of shape (numbers,).

    A row's gradient of a layer is each derivative times each input. The derivatives are shortened and rounded to steps
    of 2**-18. Times inputs in steps of 2**-12 they are integers of scale 2**30. So the sum over rows is one matrix
    product, and it is exact: the rows of a patient together are at most 32 times as long as the largest term.
    """
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    for block in rows.blocks:
        passes = _passes(layers, block.inputs, rows.outcomes[block.rows], rows.scratch)[:shared]
        factors = _shortened(layers, passes, clip, block, room)
        for moves, _ in passes:
            moves *= factors
            np.rint(moves, out=moves)
        total += _in_order(layers, [_product(moves, read) for moves, read in passes]).astype(np.int64)
    return total


def _sum_of_many_rows(
    layers: Sequence[Layer], clip: float, rows: PrivateRows, shared: int | None, room: float
) -> Integers:
    """Return the sum of the clipped gradients of patients with many rows, with one exact matrix product per patient."""
    total = np.zeros(sum(layer.number_count for layer in layers[:shared]), np.int64)
    for block in rows.blocks:
        passes = _passes(layers, block.inputs, rows.outcomes[block.rows], rows.scratch)[:shared]
        for mine, _, each in block.runs:
            sums = [_by_patient(moves, mine, each).mT @ _by_patient(read, mine, each) for moves, read in passes]
            total += rounded_sum(_in_order(layers, sums), clip * _INPUT[1] * _DERIVATIVE[1], room)
    return total


def _shortened(
    layers: Sequence[Layer], passes: Sequence[Pass], clip: float, block: Block, room: float = 1.0
) -> Float64:
    """Return factors, float64 (rows, 1), by which each patient's gradient is shortened to a length of at most `room`.

    The product of a row's gradient with itself is that of its derivatives times that of its inputs (Goodfellow 2015).
    Both are exact, because they are sums of whole numbers. Rounding changes each derivative by at most half a step, and
    with it the derivative's part of the term.
    """
    sizes = [block.squares, *(np.vecdot(read, read) for _, read in passes[1:])]
    squares = [_squares_of_rows(moves) * size for (moves, _), size in zip(passes, sizes, strict=True)]
    lost = [layer.bias.size * size for layer, size in zip(layers, sizes, strict=False)]
    both = np.sqrt(np.array([sum(squares), sum(lost)]))
    rows = both.shape[1]
    if len(block.counts) < rows:
        # Lengths are rounded up, because sums of whole numbers do not depend on the order. One row needs no sum.
        np.ceil(both[:, block.singles :], out=both[:, block.singles :])
        both = np.add.reduceat(both, np.cumsum(block.counts) - block.counts, axis=1)
        both[0] = _lengths_of_sums(layers, passes, squares, both[0], block)
    lengths, losses = both
    norms = lengths / (clip * _INPUT[1] * _DERIVATIVE[1])
    largest = room - losses / (2 * PRIVATE_SCALE) - 1.0 / PRIVATE_SCALE
    factors = largest / np.maximum(norms, largest) * (_STEPS_OF_ROWS / _DERIVATIVE[1] / clip)
    return np.asarray(factors if len(factors) == rows else np.repeat(factors, block.counts))[:, None]


def _lengths_of_sums(
    layers: Sequence[Layer], passes: Sequence[Pass], own: Sequence[Float64], together: Float64, block: Block
) -> Float64:
    """Return the length of each patient's summed gradient: (patients,). It is a bit too large if rows nearly cancel.

    `passes` has the derivatives and inputs of the block's rows for each layer, and `own` the product of each row's
    gradient with itself, float64 (rows,). `together` is the sum of the lengths of each patient's rows.
    """
    scale = (_STEPS_OF_LENGTH / np.maximum(together, 1.0))[:, None]
    total = np.zeros(len(together))
    for layer, (moves, read), squares in zip(layers, passes, own, strict=False):
        columns = moves.shape[1] + (0 if layer is layers[0] else read.shape[1])
        written: list[tuple[slice, slice, int]] = []
        for run, (mine, patients, each) in enumerate(block.runs):
            if _are_written(layer, each, columns):
                written.append((mine, patients, each))
            elif each > 1:
                known = block.pairs[run] if layer is layers[0] else _pairs(_by_patient(read, mine, each))
                pairs = _pairs(_by_patient(moves, mine, each)) * known
                total[patients] += _square_of_pairs(pairs, squares[mine].reshape(-1, each), scale[patients])
        if written:  # these patients are the last ones
            total[written[0][1].start :] += _square_of_numbers(layer, moves, read, written, scale)
    found = np.sqrt(np.maximum(total, _LEAST_SQUARE)) / scale[:, 0]
    found[: block.singles] = together[: block.singles]
    return found


def _are_written(layer: Layer, each: int, columns: int) -> bool:
    """Return whether the squared length is computed from the layer's numbers, not from pairs of a patient's rows.

    The squared length of a patient's summed gradient in a layer is the sum of the squares of all numbers of the layer.
    It is also the sum of the products of all pairs of rows. The number of rows and the shape and place of the layer
    decide which sum is computed. Each part is rounded to a whole number, so that their sum is exact in any order.
    If the result is true for a number of rows, it is true for all larger numbers of rows.
    """
    # More than two parts for each number would be too many. The other limit is where both ways took the same time.
    return each * (each + 1) > 4 * layer.number_count or (each - 1) ** 2 * columns > 8 * layer.number_count


def _square_of_numbers(
    layer: Layer, moves: Float64, read: Float64, runs: Sequence[tuple[slice, slice, int]], scale: Float64
) -> Float64:
    """Return for each patient in `runs` the sum of a layer's squared numbers, times `scale` squared: (patients,)."""
    first = runs[0][1].start
    numbers = np.empty((len(scale) - first, layer.bias.size, read.shape[1]))
    for mine, patients, each in runs:
        one, other = _by_patient(moves, mine, each), _by_patient(read, mine, each)
        np.matmul(one[..., : layer.bias.size].mT, other, out=numbers[patients.start - first : patients.stop - first])
    parts = numbers.reshape(len(numbers), -1)
    parts *= scale[first:]
    parts *= parts
    return _sums(np.rint(parts, out=parts))


def _square_of_pairs(pairs: Float64, own: Float64, scale: Float64) -> Float64:
    """Return for each patient the sum of products over all pairs of rows, times `scale` squared: (patients,).

    `pairs` are from `_pairs`, and changed in place. `own` are the products of each row's gradient with itself.
    """
    parts = pairs.reshape(len(own), -1)
    parts *= 2.0 * (scale * scale)
    return _sums(np.rint(own * (scale * scale))) + np.rint(parts, out=parts) @ _each_once(own.shape[1])


@cache
def _each_once(each: int) -> Float64:
    """Return float64 weights for the products of `_pairs`: 1 for an earlier with a later row, otherwise 0."""
    return np.triu(np.ones((each - 1, each - 1))).ravel()


def _squares_of_rows(moves: Float64) -> Float64:
    """Return for each row the sum of its squared derivatives: float64 of shape (rows,)."""
    return np.asarray(moves[:, 0] * moves[:, 0] if moves.shape[1] == 2 else np.vecdot(moves, moves))


def _product(moves: Float64, read: Float64) -> Float64:
    """Return the matrix product of derivatives and inputs over all rows: float64 (max(outputs, 2), inputs + 1)."""
    parts = [slice(first, first + _ROWS_OF_A_PRODUCT) for first in range(0, len(moves), _ROWS_OF_A_PRODUCT)]
    needed = max(2, moves.shape[1] - 1)  # the last column is zeros, and one column alone takes longer than two
    return np.asarray(sum(moves[part, :needed].T @ read[part] for part in parts))


def _pairs(rows: Float64) -> Float64:
    """Return, for each patient, the products of all rows but the last with all rows but the first.

    From float64 of shape (patients, rows, columns) to (patients, rows - 1, rows - 1). The upper triangle has each pair.
    """
    return rows[:, :-1] @ rows[:, 1:].mT


def _sums(parts: Float64) -> Float64:
    """Return the sum of each row of whole numbers, exact in any order: (rows, numbers) to (rows,), float64."""
    return np.asarray(parts @ _ones(parts.shape[1]))


@cache
def _ones(size: int) -> Float64:
    return np.ones(size)


def _by_patient(rows: Float64, mine: slice, each: int) -> Float64:
    """Return rows grouped by patient, float64 (patients, each, columns). Each patient has `each` rows."""
    return rows[mine].reshape(-1, each, rows.shape[1])


def _in_order(layers: Sequence[Layer], products: Sequence[Float64]) -> Float64:
    """Return each layer's weights, then its biases: (..., numbers). Products are (..., outputs or more, inputs + 1)."""
    parts = []
    for layer, product in zip(layers, products, strict=False):
        mine = product[..., : layer.bias.size, :]
        parts += [mine[..., :-1].reshape(*mine.shape[:-2], -1), mine[..., -1]]
    return np.concatenate(parts, axis=-1)


def _passes(layers: Sequence[Layer], inputs: Float64, outcomes: Float64, scratch: Scratch) -> list[Pass]:
    """Compute for each layer its inputs, and the derivatives of each row's cross-entropy by the layer's outputs.

    Inputs have a last column of ones as in `PrivateRows`, and derivatives have a last column of zeros. Both are in
    `scratch`, so the next block replaces them.
    """
    read, rows = [inputs], len(outcomes)
    for place, layer in enumerate(layers[:-1]):
        here = scratch.array(f"read {place}", rows, len(layer.on_grid))
        np.matmul(read[-1], layer.on_grid.T, out=here)
        np.rint(here, out=here)
        read.append(np.clip(here, 0.0, _INPUT[0] * _INPUT[1], out=here))
    last, most = layers[-1], _DERIVATIVE[0] * _DERIVATIVE[1]
    logits = np.clip(read[-1] @ last.on_grid[0] / _INPUT[1], -_FURTHEST_LOGIT, _FURTHEST_LOGIT)
    moves = [np.zeros((rows, 2))]
    moves[0][:, 0] = np.rint(_DERIVATIVE[1] / (1.0 + np.exp(-logits)) - _DERIVATIVE[1] * outcomes)
    for layer, here in zip(layers[:0:-1], read[:0:-1], strict=True):
        back = scratch.array(f"moves {len(moves)}", rows, here.shape[1])
        np.matmul(moves[-1], layer.backward, out=back)
        # The derivative of relu, because `here` has whole numbers of at least 0.
        back *= np.minimum(here, 1.0, out=scratch.array("is positive", rows, here.shape[1]))
        np.rint(back, out=back)
        moves.append(np.clip(back, -most, most, out=back))
    return list(zip(reversed(moves), read, strict=True))


def _in_steps(values: npt.NDArray[Any], grid: tuple[float, int]) -> Float64:
    """Round values to whole numbers of steps of a grid. NaN becomes 0. Infinite values become the largest step."""
    largest, steps = grid
    kept = np.clip(values.astype(np.float64), -largest, largest)
    kept[np.isnan(kept)] = 0.0
    kept *= steps
    return np.rint(kept, out=kept)
