"""Solves a site's own intercept for given coefficients. It never leaves the site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from protos.plan.analyses import Float64

_FARTHEST = 30.0  # log odds


def probabilities(line: Float64) -> Float64:
    """Return the logistic function of each number, without overflow; float64 of the same shape."""
    small = np.exp(-np.abs(line))
    return np.where(line >= 0, 1.0, small) / (1.0 + small)


def binomial_intercept(line: Float64, targets: Float64) -> float:
    """Return the intercept with the largest likelihood for the linear part `line` and targets 0 and 1, both (rows,).

    Both targets occur.
    """
    share = float(targets.mean())
    centre = float(np.log(share / (1.0 - share)))
    bounds = centre - float(line.max()), centre - float(line.min())
    return _root(lambda intercept: float((targets - probabilities(intercept + line)).sum()), *bounds)


def firth_intercept(line: Float64, targets: Float64, design: Float64, spread: Float64 | None) -> float:
    """Return the intercept at which the score with Firth's correction is 0, for any targets 0 and 1.

    Args:
        design: standardised columns, float64 (rows, columns).
        spread: the covariance of the coefficients, float64 (columns, columns); None before it is known.
    """

    def score(intercept: float) -> float:
        fitted = probabilities(intercept + line)
        weights = fitted * (1.0 - fitted)
        leverages = weights / weights.sum()
        if spread is not None:
            columns = design - leverages @ design
            leverages = leverages + weights * np.einsum("ij,jk,ik->i", columns, spread, columns)
        return float((targets - fitted + leverages * (0.5 - fitted)).sum())

    return _root(score, -_FARTHEST - float(line.max()), _FARTHEST - float(line.min()))


def _root(score: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling score is 0 between two numbers, by halving."""
    for _ in range(200):  # halvings; neighbouring numbers end it earlier
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if score(middle) > 0 else (low, middle)
    return (low + high) / 2
