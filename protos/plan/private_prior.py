"""Fits federated-prior in one round with differential privacy. Each patient adds one clipped term to the noisy sums.

At coefficients 0 each site adds up the gradient and the Hessian of a logistic regression. The regression has the common
columns and one intercept for each site. Every patient's term is scaled to a norm of at most 1. Noise of one standard
deviation for all numbers then hides every patient. The rules:

* columns are standardised by ranges, typical values and spreads that the plan declares, never by patients;
* a row is shortened to the norm `clip`, and a patient's sum of rows to the norm 1. Then each term is rounded to
  integers;
* each site adds its share of noise. The shares of the fewest contributors less the assumed colluders make up all of it;
* the fit uses the size of the noise: directions in which the noise is larger than the signal are shrunk towards 0.

Sources: Böhning and Lindsay 1988 (logistic Hessian at most x x^T / 4, exact at 0); Kairouz, Liu, Steinke 2021 (sums of
discrete Gaussian shares). Profiled intercepts are not used: one row would move the weights of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.concepts import ConceptColumn, declared_standard
from protos.plan.patient_privacy import Privacy
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance

Float64: TypeAlias = npt.NDArray[np.float64]

_FLOOR: Final = 1.4  # of eigenvalues, in deviations of the noise's largest eigenvalue per root of the dimension


@dataclass(frozen=True)
class PrivateSums:
    """The noisy sums that sites send for federated-prior if the plan has differential privacy.

    Attributes:
        sites: the names of the sites, sorted; each has an intercept.
        colluders: the number of sites whose share of the noise does not count.
        largest_rows: the largest number of rows that the plan allows, for the bound of a site's sums.
    """

    columns: tuple[ConceptColumn, ...]
    sites: tuple[str, ...]
    promise: Privacy
    colluders: int
    largest_rows: int

    @cached_property
    def unknowns(self) -> tuple[str, ...]:
        """Return the names of the unknowns: the regression's columns, then one intercept for each site."""
        return (*(column.name for column in self.columns), *(f"site {site}" for site in self.sites))

    @cached_property
    def pairs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the two unknowns of each entry of the Hessian. Pairs of intercepts are left out: no row has two."""
        first, second = np.triu_indices(len(self.unknowns))
        are_kept = (first < len(self.columns)) | (first == second)
        return first[are_kept].astype(np.int64), second[are_kept].astype(np.int64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the numbers that sites send: entries of the Hessian, then the gradient."""
        pairs = zip(*self.pairs, strict=True)
        entries = [f"private hessian: {self.unknowns[one]} x {self.unknowns[other]}" for one, other in pairs]
        return (*entries, *(f"private gradient: {name}" for name in self.unknowns))

    @cached_property
    def units(self) -> Float64:
        """Return the unit of each number in the term that a patient adds, float64 of shape (numbers,).

        With rows of norm at most R, a gradient has norm at most R / 2 and a Hessian at most R^2 / 4 (Frobenius). Each
        of the two has half of the squared norm 1, and an entry off the diagonal counts twice.
        """
        first, second = self.pairs
        radius = self.promise.clip
        hessian = np.where(first == second, radius**2 / 4 * sqrt(2.0), radius**2 / 4)
        return np.concatenate([hessian, np.full(len(self.unknowns), radius / sqrt(2.0))])

    @cached_property
    def share_variance(self) -> int:
        """Return the variance of the noise that one site adds to each integer."""
        return share_variance(self.promise.ratio, len(self.sites) - self.colluders)

    @cached_property
    def standard(self) -> tuple[Float64, Float64]:
        """Return the typical value and the spread that the plan declares for each column's values in 0..1."""
        found = [declared_standard(column) for column in self.columns]
        return np.array([typical for typical, _ in found]), np.array([spread for _, spread in found])

    @property
    def bound(self) -> int:
        """Return the largest magnitude of one integer of one site. A larger sum is clipped before the noise."""
        return self.largest_rows * PRIVATE_SCALE + LARGEST_NOISE

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise in the sum over all sites, for terms of norm 1."""
        return sqrt(len(self.sites) * self.share_variance) / PRIVATE_SCALE

    def fitted(self, numbers: Float64, ridge: float) -> tuple[Float64, Float64]:
        """Return slopes and standard errors from noisy sums, for the noise of this plan. See `fitted_under`."""
        return self.fitted_under(self.noise, numbers, ridge)

    def fitted_under(self, noise: float, numbers: Float64, ridge: float) -> tuple[Float64, Float64]:
        """Return the regression's slopes with their standard errors, each float64 of shape (1, columns).

        Args:
            noise: the standard deviation of the noise in each number.
            numbers: sums of terms, float64 of shape (numbers,).
            ridge: penalty on the squared coefficients.
        """
        first, second = self.pairs
        values, size = numbers * self.units, len(self.unknowns)
        hessian, gradient = np.zeros((size, size)), values[len(first) :]
        hessian[first, second] = values[: len(first)]
        hessian[second, first] = values[: len(first)]
        of_gradient = self.promise.clip / sqrt(2.0) * noise
        of_hessian = self.promise.clip**2 / 4 * sqrt(2.0) * noise
        eigenvalues, vectors = np.linalg.eigh(hessian)
        sure = np.maximum(eigenvalues, _FLOOR * of_hessian * sqrt(size))
        inverse = 1.0 / (sure + ridge * (1.0 + of_gradient**2 / sure))
        slopes = vectors @ (inverse * (vectors.T @ -gradient))
        # The variance of the gradient: the patients' part, which is the Hessian, plus the noise.
        errors = np.sqrt((vectors**2) @ (inverse**2 * (sure + of_gradient**2)))
        places = slice(0, len(self.columns))
        return slopes[None, places].copy(), errors[None, places].copy()
