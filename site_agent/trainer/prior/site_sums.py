"""Computes one site's sums for a regression that all sites fit together, or its sums over clipped patients.

The site's own intercept never leaves the site. It is solved there for all received coefficients. H and g are those of
the likelihood with this intercept profiled out (Murphy, van der Vaart 2000). For several classes, a separate regression
distinguishes each class from all others. The rules against a coordinator that chooses coefficients:

* many rows and patients must contribute to H. With coefficients of 0 and n rows, the sum of all weights is
  T = cases * others / n. So (sum w)^2 / sum w^2 >= max(T, min(10, n / 4)), and no weight is above
  sum w / max(.4 T, min(10, n / 10));
* a site with one class only, or without an outcome, contributes zeros.

The private form has one term for each patient (protos/plan/private_prior.py). The rules:

* a patient with many rows has one term: the sum of the rows' terms, shortened to the norm 1;
* each term is rounded to integers by itself, after it was shortened, so that rounding adds nothing to what one patient
  can change;
* a sum beyond the plan's bound is clipped. A refusal would depend on one patient, and no noise would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.numbers.newton_sums import NewtonSums
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.canonical import pack
from protos.plan.private_prior import PrivateSums
from protos.privacy.accounting import PRIVATE_SCALE
from protos.statistics.newton_walk import binomial_intercept, probabilities
from protos.wire.messages import MalformedMessage
from site_agent.trainer.requests import Vector

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_EFFECTIVE: Final = 1.0  # the least effective number of rows, divided by T; honest runs have at least 1.7
_LIGHTEST: Final = 0.4  # sum w / (T max w), at least; honest runs have at least 1.2
_FEWEST: Final = 10.0


class Concentrated(ValueError):
    """Raised if the Hessian H at the received coefficients would depend mainly on a few rows of this site."""


class FinalSums:
    """Refuses sums that differ from those that this site received before: digests, by their number of bytes."""

    def __init__(self, plan: AnnouncingPlan) -> None:
        self._plan, self.known = plan, dict[str, str]()

    def whole(self, round_number: int, received: Vector) -> Vector:
        """Return the sums of all rounds so far, zeros for the others, and remember them. Raise MalformedMessage."""
        plan, received = self._plan, self._plan.whole(round_number, received)
        made = min(round_number - 1, plan.training_rounds)
        size = 16 * plan.place(made, plan.training_rounds).stop if round_number else 0
        raw = received.astype("<f4").tobytes()
        now = {length: sha256(raw[: int(length)]).hexdigest() for length in (*self.known, str(size))}
        if any(now[length] != known for length, known in self.known.items() if int(length) <= size):
            raise MalformedMessage("other sums than were announced before")
        self.known = now | self.known
        return received


def voids(key: bytes, round_number: int, place: int, limits: Iterable[tuple[int, int]]) -> list[int]:
    """Return a secret random integer within each lowest and largest value, always the same one for a key and a place.

    Zeros in the place of one site's numbers would make a sum that of the other sites.
    """
    pairs = [*limits]
    stream = blake3(pack(str(round_number), str(place)), key=key).digest(length=16 * len(pairs))
    draws = (int.from_bytes(stream[at : at + 16], "little") for at in range(0, len(stream), 16))
    return [lowest + draw % (largest - lowest + 1) for draw, (lowest, largest) in zip(draws, pairs, strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Rows:
    """One site's standardised training rows: `design`, float64 (rows, columns), 0 if a value is missing.

    Targets are float64 (rows, outputs): 0 and 1, or, if `is_number`, standardised numbers of a linear regression.
    `patients` are equal for rows of one patient.
    """

    design: Float64
    targets: Float64
    patients: Integers
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
        largest = len(weights) / 4 if rows.is_number else len(weights) * float(targets.var())
        visits = np.bincount(rows.patients)
        require_spread(weights, largest)
        require_spread(np.bincount(rows.patients, weights).astype(np.float64), largest / int(visits.max()))
        centred = rows.design - (weights @ rows.design) / weights.sum()
        found.hessian[output] = centred.T @ (centred * weights[:, None])
        found.gradient[output] = rows.design.T @ (fitted - targets)
    # A matrix product can differ from its transpose in the last bit.
    return NewtonSums(hessian=(found.hessian + found.hessian.transpose(0, 2, 1)) / 2, gradient=found.gradient)


def require_spread(weights: Float64, largest: float) -> None:
    """Raise Concentrated if a few rows or patients have most of the weight. See the module's rules.

    Weights are float64 (rows,), and `largest` is T, their sum with coefficients of 0; of patients with several rows a
    part of it.
    """
    total, rows = float(weights.sum()), len(weights)
    if total <= 0.0:
        raise Concentrated("no row has a weight")
    if total**2 / float(weights @ weights) < max(_EFFECTIVE * largest, min(_FEWEST, rows / 4)):
        raise Concentrated("the weights of few rows are as large as those of all others")
    if float(weights.max()) * max(_LIGHTEST * largest, min(_FEWEST, rows / 10)) > total:
        raise Concentrated("one row has too large a part of all weights")


def profiled_intercept(line: Float64, targets: Float64, *, is_number: bool) -> float:
    """Return the intercept with the largest likelihood for the linear part `line` and targets, both float64 (rows,)."""
    return float((targets - line).mean()) if is_number else binomial_intercept(line, targets)


def _fitted(line: Float64, targets: Float64, *, is_number: bool) -> tuple[Float64, Float64]:
    """Return each row's prediction and each row's weight in the Hessian, two arrays of shape (rows,)."""
    values = profiled_intercept(line, targets, is_number=is_number) + line
    if is_number:
        return values, np.ones_like(values)
    fitted = probabilities(values)
    return fitted, fitted * (1.0 - fitted)


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
    return summed_terms(
        lambda rows: _terms_of(private, site, design[rows], outcomes[rows]),
        len(outcomes),
        len(private.names),
        patients,
        largest=private.bound,
    )


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


def rounded_sum(terms: Float64, unit: float) -> Integers:
    """Round each term to integers, limit its norm, and return the sum of all terms: int64 of shape (numbers,).

    Terms are float64 (patients, numbers), and changed in place. `unit` is the size of the norm 1 in the terms.
    """
    # Rounding moves a term by at most half the root of its length. The 1 allows for float64's own rounding.
    largest = unit * (1.0 - (sqrt(terms.shape[1]) / 2 + 1) / PRIVATE_SCALE)
    norms = np.sqrt((terms * terms).sum(axis=1))
    terms *= (np.minimum(1.0, largest / np.maximum(norms, largest)) * (PRIVATE_SCALE / unit))[:, None]
    np.rint(terms, out=terms)
    return np.asarray(terms.sum(axis=0).astype(np.int64))  # exact: a block's integers are at most 2**30
