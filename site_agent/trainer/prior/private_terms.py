"""Computes one site's sums over patients with limited (clipped) influence. The gate process adds noise later.

The mechanism and its bounds are in protos/plan/private_prior.py. The rules:

* a patient with many rows has one term: the sum of the rows' terms, shortened to the norm 1;
* each patient's term is rounded to integers by itself, after it was shortened, so that rounding adds nothing to what
  one patient can change;
* a sum beyond the plan's bound is clipped. A refusal would depend on one patient, and no noise would hide it;
* no number here depends on two patients, except by adding integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_NUMBERS_AT_ONCE: Final = 1 << 21


def clipped_terms(
    private: PrivateSums, site: str, design: Float64, outcomes: Float64, patients: Integers | None
) -> tuple[int, ...]:
    """Return this site's sums over its patients, in the order of `private.names`.

    Args:
        design: standardised columns, float64 of shape (rows, columns), 0 if a value is missing.
        outcomes: 0 or 1, float64 of shape (rows,).
        patients: int64 of shape (rows,), equal for rows of one patient; None if each row counts as a patient.
    """

    def terms_of(rows: Integers) -> Float64:
        return _terms_of(private, site, design[rows], outcomes[rows])

    return summed_terms(terms_of, len(outcomes), len(private.names), patients, largest=private.bound)


def summed_terms(
    terms_of: Callable[[Integers], Float64],
    rows: int,
    numbers: int,
    patients: Integers | None,
    unit: float = 1.0,
    *,
    largest: int,
) -> tuple[int, ...]:
    """Return the sum over patients of their terms. Each term is shortened to the norm 1 and rounded to integers.

    `terms_of` returns a new array with the terms of the rows with these numbers, float64 (rows, numbers). A row's term
    must be the same whatever other rows are requested. `patients` are as in `clipped_terms`. `unit` is the size of the
    norm 1 in the terms. A sum is clipped to `largest`, which never increases the distance between two sums.
    """
    owners = np.arange(rows) if patients is None else patients
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    total = np.zeros(numbers, np.int64)
    for first, last in _blocks(starts, len(order), max(1, _NUMBERS_AT_ONCE // numbers)):
        terms, mine = terms_of(order[first:last]), starts[(starts >= first) & (starts < last)] - first
        if len(mine) < len(terms):
            terms = np.add.reduceat(terms, mine, axis=0)
        total += rounded_sum(terms, unit)
    return tuple(min(largest, max(-largest, int(number))) for number in total)


def _blocks(starts: Integers, rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield each block's first row and end. A block has about `most` rows, and no patient's rows are divided."""
    first = 0
    for start in (*starts[1:].tolist(), rows):
        if start - first >= most or start == rows:
            yield first, start
            first = start


def _terms_of(private: PrivateSums, site: str, design: Float64, outcomes: Float64) -> Float64:
    """Return a term for each row, float64 of shape (rows, numbers). The rows of a patient are not yet added up."""
    intercepts = np.zeros((len(outcomes), len(private.sites)))
    intercepts[:, private.sites.index(site)] = 1.0
    wide = np.concatenate([design, intercepts], axis=1)
    norms = np.sqrt((wide * wide).sum(axis=1))  # at least 1, because of the intercept
    wide *= np.minimum(1.0, private.promise.clip / norms)[:, None]
    one, other = private.pairs
    hessian = wide[:, one] * wide[:, other] / 4
    gradient = wide * (0.5 - outcomes)[:, None]
    return np.asarray(np.concatenate([hessian, gradient], axis=1) / private.units)


def rounded_sum(terms: Float64, unit: float, room: float = 1.0) -> Integers:
    """Round each term to integers, limit its norm, and return the sum of all terms: int64 of shape (numbers,).

    Terms are float64 (patients, numbers), and changed in place. `unit` is the size of the norm 1 in the terms, and
    `room` the largest norm of the integers, as a part of PRIVATE_SCALE.
    """
    # Rounding moves a term by at most half the root of its length. The 1 allows for float64's own rounding.
    largest = unit * (room - (sqrt(terms.shape[1]) / 2 + 1) / PRIVATE_SCALE)
    norms = np.sqrt((terms * terms).sum(axis=1))
    terms *= (np.minimum(1.0, largest / np.maximum(norms, largest)) * (PRIVATE_SCALE / unit))[:, None]
    np.rint(terms, out=terms)
    return np.asarray(terms.sum(axis=0).astype(np.int64))  # exact: a block's integers are at most 2**30
