"""Computes one site's Hessian H and gradient g for a regression that all sites fit together.

The site's own intercept never leaves the site. It is solved there for all received coefficients. H and g are those of
the likelihood with this intercept profiled out (Murphy, van der Vaart 2000). For several classes, a separate regression
distinguishes each class from all others.

The rules against a coordinator that chooses coefficients (attacks: test_profiled_regression.py, test_prior_study.py):

* many rows must contribute to H: (sum w)^2 / sum w^2 >= rows / 4, and no weight above 10 times their mean;
* a site with one class only, or without an outcome, contributes zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.numbers.newton_sums import NewtonSums
from site_agent.trainer.probabilities import probabilities

Float64: TypeAlias = npt.NDArray[np.float64]

# The least effective number of rows, as a fraction of all rows; honest runs have at least .43.
_SMALLEST_SHARE: Final = 0.25
_LARGEST_RATIO: Final = 10.0  # the largest weight divided by the mean weight; honest runs have at most 4.8
_STEPS: Final = 200


class Concentrated(ValueError):
    """Raised if the Hessian H at the received coefficients would depend mainly on a few rows of this site."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Rows:
    """One site's standardised training rows: `design`, float64 (rows, columns), 0 if a value is missing.

    Targets are float64 (rows, outputs): 0 and 1, or, if `is_number`, standardised numbers of a linear regression.
    """

    design: Float64
    targets: Float64
    is_number: bool = False

    @property
    def largest_weight(self) -> float:
        """The largest weight that one row can have in the Hessian H."""
        return 1.0 if self.is_number else 0.25


def own_sums(rows: Rows, coefficients: Float64) -> NewtonSums:
    """Return the Hessian H and the gradient g of a site's rows, for intercepts that maximise the likelihood.

    Coefficients are float64 (outputs, columns). Raise Concentrated if too few rows would determine H.
    """
    outputs, columns = coefficients.shape
    found = NewtonSums.zeros(columns, outputs)
    for output in range(outputs):
        targets, line = rows.targets[:, output], rows.design @ coefficients[output]
        if not len(targets) or targets.min() == targets.max():
            continue  # the intercept would be infinite, and every weight 0
        fitted, weights = _fitted(line, targets, is_number=rows.is_number)
        require_spread(weights)
        centred = rows.design - (weights @ rows.design) / weights.sum()
        found.hessian[output] = centred.T @ (centred * weights[:, None])
        found.gradient[output] = rows.design.T @ (fitted - targets)
    # A matrix product can differ from its transpose in the last bit.
    return NewtonSums(hessian=(found.hessian + found.hessian.transpose(0, 2, 1)) / 2, gradient=found.gradient)


def require_spread(weights: Float64) -> None:
    """Raise Concentrated if a few rows have most of the weight. Weights are float64 (rows,). See the module's rules."""
    total = float(weights.sum())
    if total <= 0.0:
        raise Concentrated("no row has a weight")
    if total**2 / float(weights @ weights) < _SMALLEST_SHARE * len(weights):
        raise Concentrated("the weights of few rows are as large as those of all others")
    if float(weights.max()) * len(weights) > _LARGEST_RATIO * total:
        raise Concentrated("one row has more than ten times the mean weight")


def profiled_intercept(line: Float64, targets: Float64, *, is_number: bool) -> float:
    """Return the intercept with the largest likelihood for the linear part `line` and targets, both float64 (rows,)."""
    if is_number:
        return float((targets - line).mean())
    share = float(targets.mean())
    centre = float(np.log(share / (1.0 - share)))
    low, high = centre - float(line.max()), centre - float(line.min())
    guess = (low + high) / 2
    for _ in range(_STEPS):
        fitted = probabilities("binary", guess + line)
        error, slope = float((fitted - targets).sum()), float((fitted * (1.0 - fitted)).sum())
        low, high = (low, guess) if error > 0 else (guess, high)
        step = guess - error / slope if slope > 0 else low - 1.0
        following = step if low <= step <= high else (low + high) / 2
        if following == guess:
            break
        guess = following
    return guess


def _fitted(line: Float64, targets: Float64, *, is_number: bool) -> tuple[Float64, Float64]:
    """Return each row's prediction and each row's weight in the Hessian, two arrays of shape (rows,)."""
    values = profiled_intercept(line, targets, is_number=is_number) + line
    if is_number:
        return values, np.ones_like(values)
    fitted = probabilities("binary", values)
    return fitted, fitted * (1.0 - fitted)
