"""Computes coefficients, statistics and training steps from the noisy sums of differential privacy.

Nothing here decides what a site sends, or how much noise it adds. That is in private_prior.py, statistics_plan.py
and private_training.py. The rules:

* a fit of federated-prior uses the size of the noise: directions in which the noise is larger than the signal are
  shrunk towards 0;
* a mean of statistics is computed only if the noisy count is several times as large as its noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.private_prior import PrivateSums
from protos.plan.private_training import PrivateTraining
from protos.plan.statistics_plan import NumericColumn, StatisticsPlan
from protos.privacy.accounting import PRIVATE_SCALE

Float64: TypeAlias = npt.NDArray[np.float64]

_FLOOR: Final = 1.4  # of eigenvalues, in deviations of the noise's largest eigenvalue per root of the dimension
_SURE: Final = 5.0  # a mean needs a count above this many standard deviations of the count's noise


def noisy_fit(private: PrivateSums, numbers: Float64, ridge: float) -> tuple[Float64, Float64]:
    """Return slopes and standard errors from noisy sums, for the noise of this plan. See `noisy_fit_under`."""
    return noisy_fit_under(private, private.noise, numbers, ridge)


def noisy_fit_under(private: PrivateSums, noise: float, numbers: Float64, ridge: float) -> tuple[Float64, Float64]:
    """Return the regression's slopes with their standard errors, each float64 of shape (1, columns).

    Args:
        noise: the standard deviation of the noise in each number.
        numbers: sums of terms, float64 of shape (numbers,).
        ridge: penalty on the squared coefficients.
    """
    first, second = private.pairs
    values, size = numbers * private.units, len(private.unknowns)
    hessian, gradient = np.zeros((size, size)), values[len(first) :]
    hessian[first, second] = values[: len(first)]
    hessian[second, first] = values[: len(first)]
    of_gradient = private.promise.clip / sqrt(2.0) * noise
    of_hessian = private.promise.clip**2 / 4 * sqrt(2.0) * noise
    eigenvalues, vectors = np.linalg.eigh(hessian)
    sure = np.maximum(eigenvalues, _FLOOR * of_hessian * sqrt(size))
    inverse = 1.0 / (sure + ridge * (1.0 + of_gradient**2 / sure))
    slopes = vectors @ (inverse * (vectors.T @ -gradient))
    # The variance of the gradient: the patients' part, which is the Hessian, plus the noise.
    errors = np.sqrt((vectors**2) @ (inverse**2 * (sure + of_gradient**2)))
    places = slice(0, len(private.columns))
    return slopes[None, places].copy(), errors[None, places].copy()


def noise_rows(plan: StatisticsPlan, contributors: int) -> float:
    """Return the standard deviation of the noise in a count of rows that is summed over this many sites."""
    return sqrt(contributors * plan.noise_variance) / PRIVATE_SCALE * plan.unit


def fewest_rows(plan: StatisticsPlan, contributors: int) -> float:
    """Return the smallest noisy row count for which a mean is computed."""
    return _SURE * noise_rows(plan, contributors)


def noisy_statistics(
    plan: StatisticsPlan, sums: Mapping[str, int], contributors: int
) -> dict[str, dict[str, float | int | None]]:
    """Return each cell's noisy number of rows with its noise, and mean and standard deviation of numeric columns.

    Args:
        sums: the sums by their names in the manifest.

    Returns:
        By cell. `noise` is the standard deviation of the noise in `rows`. Moments are None if the noise hides them.
    """
    found = {name: number / PRIVATE_SCALE * plan.unit for name, number in sums.items()}
    noise, told = noise_rows(plan, contributors), dict[str, dict[str, float | int | None]]()
    for column in plan.columns:
        if not isinstance(column, NumericColumn):
            for code in column.codes:
                rows = found[f"count {column.name}={code}"]
                told[f"{column.name}={code}"] = {"rows": max(0, round(rows)), "noise": noise}
            continue
        rows = found[f"count {column.name}"]
        facts: dict[str, float | int | None] = {"mean": None, "deviation": None}
        if rows > fewest_rows(plan, contributors):
            centre, half = (column.low + column.high) / 2, (column.high - column.low) / 2
            mean = min(1.0, max(-1.0, found[f"sum {column.name}"] / rows))
            spread = min(1.0, max(0.0, found[f"squares {column.name}"] / rows - mean * mean))
            facts = {"mean": centre + half * mean, "deviation": half * sqrt(spread)}
        told[column.name] = facts | {"rows": max(0, round(rows)), "noise": noise}
    return told


def mean_change(training: PrivateTraining, sums: Float64) -> Float64:
    """Return the mean update, float64 of shape (numbers,), that the server rule applies after these sums.

    Args:
        sums: integers over all sites, float64 of shape (numbers,).
    """
    taking_part = training.promise.patients * (training.promise.sampling or 1.0)
    return sums * (-training.learning_rate * training.promise.clip / (taking_part * training.scale))


def local_change(training: PrivateTraining, sums: Float64) -> Float64:
    """Return the change of a site's parameters by its own noisy sums, float64 of shape (numbers,).

    The mean over all sites is the mean change, because each site has the same part of the declared patients.
    """
    return training.sites * mean_change(training, sums)
