"""Lists the noisy sums of federated-prior in one round with differential privacy. Each patient adds one clipped term.

At coefficients 0 each site adds up the gradient and the Hessian of a logistic regression. The regression has the common
columns and one intercept for each site. Every patient's term is scaled to a norm of at most 1. Noise of one standard
deviation for all numbers then hides every patient. The rules:

* columns are standardised by ranges, typical values and spreads that the plan declares, never by patients;
* a row is shortened to the norm `clip`, and a patient's sum of rows to the norm 1. Then each term is rounded to
  integers;
* each site adds its share of noise. The shares of the fewest contributors less the assumed colluders make up all of it.

Sources: Böhning and Lindsay 1988 (logistic Hessian at most x x^T / 4, exact at 0); Kairouz, Liu, Steinke 2021 (sums of
discrete Gaussian shares). Profiled intercepts are not used: one row would move the weights of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.concepts import ConceptColumn
from protos.plan.patient_privacy import Privacy
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, share_variance

Float64: TypeAlias = npt.NDArray[np.float64]


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

    @property
    def bound(self) -> int:
        """Return the largest magnitude of one integer of one site. A larger sum is clipped before the noise."""
        return self.largest_rows * PRIVATE_SCALE + LARGEST_NOISE

    @property
    def noise(self) -> float:
        """Return the standard deviation of the noise in the sum over all sites, for terms of norm 1."""
        return sqrt(len(self.sites) * self.share_variance) / PRIVATE_SCALE
