"""Walks to the largest likelihood by Newton steps, from sums that all sites announced for each position.

Every program computes the same positions from the same sums, for regressions and Cox models alike. The rules:

* a step moves the linear predictor by at most LARGEST_STEP standard deviations, and a step that lowers the likelihood
  is halved (Dennis, Schnabel 1996, section 6.3). So no position is far from where patients are;
* where weights grow exponentially (Cox, Poisson), a step moves no possible patient by more than _REACH. Longer ones
  give few patients all the weight if columns are skewed, and they may not answer. So that too wide ranges do not stop
  the walk, a step may always have _LEAST_STEP standard deviations, and twice as many each time;
* there is an estimate only if the last step is below CONVERGED standard errors in every direction;
* a direction in which little of the first information is left is separation: coefficients would grow without limit. Its
  columns are named, as are those that keep moving.

All three do not depend on how columns are combined, so products and splines need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Final

import numpy as np

from protos.plan.analyses import Float64, Unanswerable
from protos.statistics.design import in_words
from protos.statistics.distributions import root_of

CONVERGED: Final = 1e-9  # standard errors; sums are rounded to 2**-37, so steps of a few 1e-11 are rounding
_ROUNDING: Final = 1e-9  # of a likelihood, as a part of it: it is a sum of numbers rounded to 2**-30 or finer
_SINGULAR: Final = 1e-13  # eigenvalues of a correlation matrix that are 0 to rounding
_LEAST_LEFT: Final = 1e-4  # of the information at the start: an odds ratio of 10,000 between ordinary patients
_NEARLY: Final = 10.0  # times as much is left in a second direction, which grows too
LARGEST_STEP: Final = 2.0
_REACH: Final = 4.0  # of the linear predictor: a weight grows by a factor of 55
_LEAST_STEP: Final = 0.05
_SLOW: Final = 0.3  # a step that is longer than this part of the one before
_FARTHEST: Final = 30.0  # log odds of an own intercept
_STILL_MOVING: Final = 0.1  # of the largest move: such columns are named too


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

    def penalised(self, at: Float64, ridges: Float64) -> LikelihoodSums:
        """Return the sums of the likelihood minus half of each ridge times the squared coefficient of `at`."""
        return LikelihoodSums(
            log_likelihood=self.log_likelihood - float(ridges @ at**2) / 2,
            score=self.score - ridges * at,
            information=self.information + np.diag(ridges),
        )

    def step(self, extents: Float64, number: int) -> Float64:
        """Return a Newton step, float64 (columns,), within the limits; 0 in directions without information.

        `extents` is the largest value of each column, (columns,), 0 without limit; `number` counts the steps before.
        """
        scale = np.sqrt(np.maximum(np.diagonal(self.information), np.finfo(np.float64).tiny))
        scaled = self.information / np.outer(scale, scale)
        step = np.linalg.lstsq(scaled, self.score / scale, rcond=_SINGULAR)[0] / scale
        # The largest entry of the information is that of about all weights and a column with a deviation of 1.
        moved = max(1e-300, self.errors(step) / float(scale.max()))
        farthest = max(1e-300, float(np.abs(step) @ extents))
        shortest = max(_REACH / farthest, 2.0**number * _LEAST_STEP / moved)
        return np.asarray(step * min(1.0, LARGEST_STEP / moved, shortest))

    def errors(self, step: Float64) -> float:
        """Return the size of a step, float64 (columns,), in standard errors."""
        return sqrt(max(0.0, float(step @ self.information @ step)))

    @property
    def covariance(self) -> Float64:
        """Return the inverse of the information, float64 (columns, columns). Raise LinAlgError if there is none."""
        scale = np.sqrt(np.diagonal(self.information))
        inverse = np.linalg.inv(self.information / np.outer(scale, scale)) / np.outer(scale, scale)
        return np.asarray((inverse + inverse.T) / 2)


def symmetric(upper: Float64, columns: int) -> Float64:
    """Return the symmetric matrix, float64 (columns, columns), with this upper triangle by rows."""
    places, found = np.triu_indices(columns), np.zeros((columns, columns))
    found[places] = found.T[places] = upper
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Position:
    """Where a walk stands: the best coefficients with their sums, and the coefficients to compute next.

    `first` is the information at the start, float64 (columns, columns); 0 under a penalty, which separates nothing. If
    the walk `repeats`, the next coefficients are the best ones, for which sites then know the information.
    """

    best: Float64
    sums: LikelihoodSums
    following: Float64
    first: Float64 = field(repr=False)
    repeats: bool = False

    @property
    def has_converged(self) -> bool:
        """Return whether the next step is below CONVERGED standard errors."""
        return not self.repeats and self.sums.errors(self.following - self.best) < CONVERGED

    @property
    def separated(self) -> Float64 | None:
        """Return by column the part in directions with hardly any information left, float64 (columns,), or None."""
        scale = np.sqrt(np.maximum(np.diagonal(self.first), np.finfo(np.float64).tiny))
        values, vectors = np.linalg.eigh(self.first / np.outer(scale, scale))
        if values[0] <= _SINGULAR:
            return None  # a column follows from others, which is another matter
        back = vectors / np.sqrt(values) / scale[:, None]
        left, directions = np.linalg.eigh(back.T @ self.sums.information @ back)
        grown = np.abs(back @ directions[:, left < _NEARLY * _LEAST_LEFT])
        return np.asarray((grown / grown.max(axis=0)).max(axis=1)) if left[0] < _LEAST_LEFT else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """How to walk: from where, the penalty (ridge) of each coefficient, and LikelihoodSums.step's extents: (columns,).

    With `lags` the score depends on the information at the position before (Firth's correction). Then a step is not
    halved but repeated, with the information at its own position, if it is not much shorter than the step before.
    """

    start: Float64
    ridges: Float64
    extents: Float64
    lags: bool = False

    def position(self, announced: Sequence[Float64]) -> Position:
        """Return the position after the announced sums: the first ones at the start, the others where this led.

        `announced` has for each position so far the vector `LikelihoodSums.packed` of all sites.
        """
        columns = len(self.start)
        nothing = LikelihoodSums.unpacked(np.zeros(LikelihoodSums.length(columns)), columns)
        here = Position(best=self.start, sums=nothing, following=self.start, first=np.zeros((columns, columns)))
        steps = 0
        for number, vector in enumerate(announced):
            sums = LikelihoodSums.unpacked(vector, columns).penalised(here.following, self.ridges)
            slack = _ROUNDING * (1.0 + abs(here.sums.log_likelihood))
            if number and not self.lags and not sums.log_likelihood >= here.sums.log_likelihood - slack:
                here = replace(here, following=(here.best + here.following) / 2)
                continue
            before = here.sums.errors(here.following - here.best)
            step, steps = sums.step(self.extents, steps), steps + 1
            if self.lags and number and not here.repeats and sums.errors(step) > _SLOW * before:
                here = replace(here, best=here.following, sums=sums, repeats=True)
                continue
            first = here.first if number or self.ridges.any() or self.lags else sums.information
            here = Position(best=here.following, sums=sums, following=here.following + step, first=first)
        return here


def require_estimate(position: Position, names: Sequence[str], remedy: str | None) -> None:
    """Raise Unanswerable, with the columns' names, if a walk did not reach the largest likelihood.

    `names` are those of the first coefficients. Others, such as an intercept, are never named. `remedy` is what the
    model can have against separation; None if it has that already.
    """
    parts = position.separated
    if position.has_converged and parts is None:
        return
    moves = np.abs(position.following - position.best if parts is None else parts)[: len(names)]
    growing = [name for name, one in zip(names, moves, strict=True) if one >= _STILL_MOVING * moves.max()]
    plan = " or ".join(filter(None, (remedy, None if parts is not None else "more newton_rounds, at most 30")))
    grows = "did not settle, or a hospital has too few rows for it" if parts is None else "keeps growing"
    raise Unanswerable(
        f"The coefficient of {in_words(growing)} {grows}. These columns separate the outcomes, or nearly: join codes, "
        f"narrow the range, or remove the term{plan and ', or plan ' + plan}."
    )


def own_walk(sums_at: Callable[[Float64], LikelihoodSums], design: Float64, most: int = 25) -> Position | None:
    """Return the position at the largest likelihood of one site's own rows (rows, columns). None if there is none."""
    nothing, announced = np.zeros(design.shape[1]), list[Float64]()
    own = Walk(start=nothing, ridges=nothing, extents=np.abs(design).max(axis=0))
    for _ in range(most):
        here = own.position(announced)
        if announced and (here.has_converged or here.separated is not None):
            break
        announced.append(sums_at(here.following).packed)
    return None if not here.has_converged or here.separated is not None else here


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
    return root_of(lambda intercept: float((targets - probabilities(intercept + line)).sum()), *bounds)


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

    return root_of(score, -_FARTHEST - float(line.max()), _FARTHEST - float(line.min()))
