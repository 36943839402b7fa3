"""Solves a site's own intercept for given coefficients. It never leaves the site."""

from __future__ import annotations

import numpy as np

from protos.plan.analyses import Float64

_STEPS = 200


def probabilities(line: Float64) -> Float64:
    """Return the logistic function of each number, without overflow; float64 of the same shape."""
    small = np.exp(-np.abs(line))
    return np.where(line >= 0, 1.0, small) / (1.0 + small)


def binomial_intercept(line: Float64, targets: Float64) -> float:
    """Return the intercept with the largest likelihood for the linear part `line` and targets 0 and 1, both (rows,).

    Both targets occur. Newton's steps stay within an interval that has the solution.
    """
    share = float(targets.mean())
    centre = float(np.log(share / (1.0 - share)))
    low, high = centre - float(line.max()), centre - float(line.min())
    guess = (low + high) / 2
    for _ in range(_STEPS):
        fitted = probabilities(guess + line)
        error, slope = float((fitted - targets).sum()), float((fitted * (1.0 - fitted)).sum())
        low, high = (low, guess) if error > 0 else (guess, high)
        step = guess - error / slope if slope > 0 else low - 1.0
        following = step if low <= step <= high else (low + high) / 2
        if following == guess:
            break
        guess = following
    return guess
