"""Walks to the largest likelihood by Newton steps, from sums that all sites announced for each position.

Every program computes the same positions from the same sums. The rules:

* a step has at most LARGEST_STEP in any column, and a step that lowers the likelihood is halved (Dennis, Schnabel 1996,
  section 6.3). So the likelihood never falls, and no position is far from where patients are;
* there is an estimate only if the last step is below CONVERGED standard deviations in every column;
* otherwise the columns that keep moving are named. With separation their coefficients would grow without limit.

Columns are standardised, so a step of 1 is one standard deviation of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from protos.plan.analyses import Float64, Unanswerable

CONVERGED: Final = 1e-10  # sums are rounded to 2**-37, so steps of a few 1e-12 are rounding
_ROUNDING: Final = 1e-9  # of a likelihood, as a part of it: it is a sum of numbers rounded to 2**-30 or finer
_SINGULAR: Final = 1e-13  # eigenvalues of a correlation matrix that are 0 to rounding
LARGEST_EFFECT: Final = 8.0  # of a standard deviation: a ratio of 3,000 between ordinary patients is separation
LARGEST_STEP: Final = 2.0
_STILL_MOVING: Final = 0.1  # of the largest step: such columns are named too


@dataclass(frozen=True, kw_only=True, eq=False)
class LikelihoodSums:
    """The log likelihood in nats, its gradient (score), and minus its second derivative (information).

    They are the sums of one site or of several, at common coefficients: float64 (columns,) and (columns, columns).
    """

    log_likelihood: float
    score: Float64 = field(repr=False)
    information: Float64 = field(repr=False)

    @staticmethod
    def length(columns: int) -> int:
        """Return the length of `packed`."""
        return 1 + columns + columns * (columns + 1) // 2

    @property
    def packed(self) -> Float64:
        """Return the log likelihood, the score, and the upper triangle of the information by rows."""
        upper = np.triu_indices(len(self.score))
        return np.concatenate([[self.log_likelihood], self.score, self.information[upper]])

    @classmethod
    def unpacked(cls, values: Float64, columns: int) -> LikelihoodSums:
        """Return the sums that `packed` made a vector of, or the sum of such vectors."""
        information = symmetric(values[1 + columns :], columns)
        return cls(log_likelihood=float(values[0]), score=values[1 : 1 + columns], information=information)

    def penalised(self, at: Float64, ridge: float) -> LikelihoodSums:
        """Return the sums of the likelihood minus ridge / 2 times the squared coefficients `at`."""
        return LikelihoodSums(
            log_likelihood=self.log_likelihood - ridge / 2 * float(at @ at),
            score=self.score - ridge * at,
            information=self.information + ridge * np.eye(len(at)),
        )

    @property
    def step(self) -> Float64:
        """Return the Newton step, float64 (columns,), at most LARGEST_STEP; 0 in directions without information."""
        scale = np.sqrt(np.maximum(np.diagonal(self.information), np.finfo(np.float64).tiny))
        scaled = self.information / np.outer(scale, scale)
        step = np.linalg.lstsq(scaled, self.score / scale, rcond=_SINGULAR)[0] / scale
        return np.asarray(step * min(1.0, LARGEST_STEP / max(1e-300, float(np.abs(step).max()))))

    @property
    def covariance(self) -> Float64:
        """Return the inverse of the information, float64 (columns, columns). Raise LinAlgError if there is none."""
        scale = np.sqrt(np.diagonal(self.information))
        inverse = np.linalg.inv(self.information / np.outer(scale, scale)) / np.outer(scale, scale)
        return np.asarray((inverse + inverse.T) / 2)


def symmetric(upper: Float64, columns: int) -> Float64:
    """Return the symmetric matrix, float64 (columns, columns), with this upper triangle by rows."""
    places = np.triu_indices(columns)
    found = np.zeros((columns, columns))
    found[places] = found.T[places] = upper
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Position:
    """Where a walk stands: the best coefficients with their sums, and the coefficients to compute next."""

    best: Float64
    sums: LikelihoodSums
    following: Float64

    @property
    def moves(self) -> Float64:
        """Return the size of the next step in every column, float64 (columns,)."""
        return np.abs(self.following - self.best)

    @property
    def has_converged(self) -> bool:
        """Return whether the next step changes no coefficient by CONVERGED or more."""
        return bool(self.moves.max() < CONVERGED)

    @property
    def is_separated(self) -> bool:
        """Return whether a coefficient is larger than patients can have."""
        return bool(np.abs(self.best).max() > LARGEST_EFFECT)


def walk(announced: Sequence[Float64], columns: int, ridge: float = 0.0) -> Position:
    """Return the position after the announced sums: the first ones at 0, the others where this function led.

    Args:
        announced: for each position so far the vector `LikelihoodSums.packed` of all sites; without any, the walk
            begins at 0.
    """
    here = Position(
        best=np.zeros(columns), sums=LikelihoodSums.unpacked(np.zeros(LikelihoodSums.length(columns)), columns),
        following=np.zeros(columns),
    )  # fmt: skip
    for number, vector in enumerate(announced):
        sums = LikelihoodSums.unpacked(vector, columns).penalised(here.following, ridge)
        slack = _ROUNDING * (1.0 + abs(here.sums.log_likelihood))
        if number and not sums.log_likelihood >= here.sums.log_likelihood - slack:
            here = Position(best=here.best, sums=here.sums, following=(here.best + here.following) / 2)
        else:
            here = Position(best=here.following, sums=sums, following=here.following + sums.step)
    return here


def require_estimate(position: Position, names: Sequence[str]) -> None:
    """Raise Unanswerable, with the columns' names, if a walk did not reach the largest likelihood."""
    if position.has_converged and not position.is_separated:
        return
    judged = np.abs(position.best) if position.is_separated else position.moves
    growing = [name for name, one in zip(names, judged, strict=True) if one >= _STILL_MOVING * judged.max()]
    raise Unanswerable(
        f"The coefficient of {' and '.join(growing)} keeps growing, because these columns separate the patients with "
        f"the event from the others: join codes of {growing[0]}, remove the term, or plan a ridge."
    )


def own_walk(sums_at: Callable[[Float64], LikelihoodSums], columns: int, most: int = 25) -> Position | None:
    """Return the position at the largest likelihood of one site's own rows. None if there is none."""
    announced: list[Float64] = []
    for _ in range(most):
        here = walk(announced, columns)
        if announced and (here.has_converged or here.is_separated):
            break
        announced.append(sums_at(here.following).packed)
    return None if not here.has_converged or here.is_separated else here
