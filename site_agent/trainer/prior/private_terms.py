"""One site's sums of clipped terms, one term for each patient; what noise is later added to by the gate.

The mechanism and its bounds are in protos/plan/private_prior.py. The rules:

* a patient with many rows has one term: the sum of the rows' terms, shortened to the norm 1;
* each patient's term is rounded to integers by itself, after it was shortened, so that rounding adds nothing to what
  one patient can change;
* no number here depends on two patients, except by adding integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.private_prior import PRIVATE_SCALE, PrivateSums

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_NUMBERS_AT_ONCE: Final = 1 << 21


def clipped_terms(
    private: PrivateSums, site: str, design: Float64, outcomes: Float64, patients: Integers | None
) -> tuple[int, ...]:
    """Return the site's sums, in the order of `private.names`.

    Args:
        private: the plan's.
        site: whose rows these are.
        design: standardised columns, float64 of shape (rows, columns), 0 where a value is missing.
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None where each row counts as a patient.
    """
    owners = np.arange(len(outcomes)) if patients is None else patients
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    total = np.zeros(len(private.names), np.int64)
    for first, last in _blocks(starts, len(order), max(1, _NUMBERS_AT_ONCE // len(private.names))):
        rows = order[first:last]
        mine = starts[(starts >= first) & (starts < last)] - first
        terms = np.add.reduceat(_terms_of(private, site, design[rows], outcomes[rows]), mine, axis=0)
        total += _rounded(terms).sum(axis=0)
    return tuple(int(number) for number in total)


def _blocks(starts: Integers, rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Rows from and to, in blocks of about `most` that never divide a patient."""
    first = 0
    for start in (*starts[1:].tolist(), rows):
        if start - first >= most or start == rows:
            yield first, start
            first = start


def _terms_of(private: PrivateSums, site: str, design: Float64, outcomes: Float64) -> Float64:
    """Each row's term before patients are added up, float64 of shape (rows, numbers)."""
    intercepts = np.zeros((len(outcomes), len(private.sites)))
    intercepts[:, private.sites.index(site)] = 1.0
    wide = np.concatenate([design, intercepts], axis=1)
    norms = np.sqrt((wide * wide).sum(axis=1))  # at least 1, because of the intercept
    wide *= np.minimum(1.0, private.promise.clip / norms)[:, None]
    one, other = private.pairs
    hessian = wide[:, one] * wide[:, other] / 4
    gradient = wide * (0.5 - outcomes)[:, None]
    return np.asarray(np.concatenate([hessian, gradient], axis=1) / private.units)


def _rounded(terms: Float64) -> Integers:
    """Terms of norm at most 1 as integers of norm at most PRIVATE_SCALE, int64 of shape (patients, numbers)."""
    # Rounding moves a term by at most half the root of its length. The further 1 is for float64.
    largest = 1.0 - (sqrt(terms.shape[1]) / 2 + 1) / PRIVATE_SCALE
    norms = np.sqrt((terms * terms).sum(axis=1))
    shortened = terms * np.minimum(1.0, largest / np.maximum(norms, largest))[:, None]
    return np.asarray(np.rint(shortened * PRIVATE_SCALE).astype(np.int64))
