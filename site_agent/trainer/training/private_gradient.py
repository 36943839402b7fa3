"""One site's sum of clipped gradients, one term for each patient; what noise is later added to by the gate.

The rules:

* no patient's term depends on who stands beside it, not even in its last bit. Libraries add up products in an order
  that follows from the number of rows. So inputs, weights, activations and derivatives are rounded to grids on which
  every product and every sum is exact in float64, whatever the order;
* a patient with many rows has one term, the sum over these rows, shortened to the norm 1 in units of the clip;
* a term is finite, whatever the rows and the parameters are.

Layers are linear with relu between them, and the outcome is binary. Source: Abadi et al. 2016, algorithm 1, with one
patient as the unit, without sampling, and with noise that is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.prior.private_terms import summed_terms

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

# Inputs and activations have 18 bits, weights 26 and derivatives 18. So a product has 44 bits, and the sum of 500 of
# them and a bias has fewer than the 53 bits of float64. A product of a derivative and an input has 36 bits, so a
# patient may have 131,072 rows. With more, rounding depends on this patient's rows alone.
_INPUT: Final = (64.0, 1 << 12)  # largest magnitude, steps in 1
_WEIGHT: Final = (64.0, 1 << 20)
_DERIVATIVE: Final = (4.0, 1 << 16)
_FURTHEST_LOGIT: Final = 40.0


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
) -> tuple[int, ...]:
    """Return the site's sum of terms as integers, in the order of the layers, each with its weight, then its bias.

    Args:
        layers: of the shared network, at most 500 inputs each; the last one has one output.
        clip: the largest norm of one patient's gradient.
        features: of shape (rows, inputs).
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None where each row counts as a patient.
    """
    exact = [Layer(_on_grid(layer.weight, _WEIGHT), _on_grid(layer.bias, _WEIGHT)) for layer in layers]
    inputs = _on_grid(np.asarray(features, np.float64), _INPUT)
    numbers = sum(layer.number_count for layer in exact)

    def terms_of(rows: Integers) -> Float64:
        return _gradients(exact, inputs[rows], outcomes[rows], numbers)

    return summed_terms(terms_of, len(outcomes), numbers, patients, unit=clip)


def _gradients(layers: Sequence[Layer], inputs: Float64, outcomes: Float64, numbers: int) -> Float64:
    """The gradient of each row's cross-entropy, float64 of shape (rows, numbers)."""
    read, moved = [inputs], inputs
    for layer in layers[:-1]:
        moved = _on_grid(np.maximum(moved @ layer.weight.T + layer.bias, 0.0), _INPUT)
        read.append(moved)
    logits = np.clip(moved @ layers[-1].weight.T + layers[-1].bias, -_FURTHEST_LOGIT, _FURTHEST_LOGIT)
    derivatives = _on_grid(1.0 / (1.0 + np.exp(-logits)) - outcomes[:, None], _DERIVATIVE)
    found, end = np.empty((len(outcomes), numbers)), numbers
    for layer, own in zip(reversed(layers), reversed(read), strict=True):
        start, bias = end - layer.number_count, end - layer.bias.size
        found[:, bias:end] = derivatives
        # A view, because the last axis is split and stays contiguous.
        weights = found[:, start:bias].reshape(len(own), *layer.weight.shape)
        np.multiply(derivatives[:, :, None], own[:, None, :], out=weights)
        assert np.shares_memory(weights, found)
        end = start
        if end:
            derivatives = _on_grid((derivatives @ layer.weight) * (own > 0.0), _DERIVATIVE)
    return found


def _on_grid(values: Float64, grid: tuple[float, int]) -> Float64:
    """The nearest values of a grid; what is no number becomes 0."""
    largest, steps = grid
    kept = np.clip(np.nan_to_num(values, nan=0.0, posinf=largest, neginf=-largest), -largest, largest)
    return np.asarray(np.rint(kept * steps) / steps)
