"""Computes coefficients and training steps from the noisy sums of differential privacy.

Nothing here decides what a site sends, or how much noise it adds. That is in private_prior.py and private_training.py.
A fit of federated-prior uses the size of the noise: directions in which the noise is larger than the signal are shrunk
towards 0.
"""

from __future__ import annotations

from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.private_prior import PrivateSums
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE

Float64: TypeAlias = npt.NDArray[np.float64]

_FLOOR: Final = 1.4  # of eigenvalues, in deviations of the noise's largest eigenvalue per root of the dimension


def noisy_fit(
    private: PrivateSums, numbers: Float64, ridge: float, *, noise: float | None = None
) -> tuple[Float64, Float64]:
    """Return the regression's slopes with their standard errors, each float64 of shape (1, columns).

    Args:
        numbers: sums of terms, float64 of shape (numbers,).
        ridge: penalty on the squared coefficients.
        noise: the standard deviation of the noise in each number; None for that of the plan.
    """
    noise = private.noise if noise is None else noise
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


def mean_change(training: PrivateTraining, sums: Float64) -> Float64:
    """Return the mean update, float64 of shape (numbers,), that the server rule applies after these sums.

    Args:
        sums: integers over all sites, float64 of shape (numbers,).
    """
    return sums * (-training.learning_rate * training.promise.clip / (training.promise.patients * PRIVATE_SCALE))


def local_change(training: PrivateTraining, sums: Float64) -> Float64:
    """Return the change of a site's parameters by its own noisy sums, float64 of shape (numbers,).

    The mean over all sites is the mean change, because each site has the same part of the declared patients.
    """
    return training.sites * mean_change(training, sums)
