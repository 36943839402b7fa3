"""Adds up the sums of a regression that all sites fit together. From the total, every site computes the same step.

Each site adds up the Hessian H and the gradient g of its own rows at common coefficients. One Newton step needs only
their sums over the sites. The rules:

* a number is sent as a 64-bit integer of scale 2**36, so sums are exact with and without masks;
* a sum beyond its bound is refused, because a clipped entry could make the Hessian indefinite;
* the coordinator sends sums as whole numbers below 2**16, four for each integer, which float32 represents exactly;
* every program computes the coefficients from these sums itself.

Sources: Newton's method for penalised logistic regression (Hastie, Tibshirani, Friedman 2009, section 4.4.1). Each site
has its own intercept, which the site profiles out. Bounds: with columns of squared sum at most N over all rows,
Cauchy-Schwarz gives |sum H| <= N / 4 for a class and N for a number, and |sum g| <= N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

NEWTON_SCALE: Final = 1 << 36
CONVERGED: Final = 1e-8  # the largest change of a coefficient in the last step, in standardised units
_PARTS: Final = 4  # 16-bit parts of one 64-bit integer
_ROUNDING: Final = 1e-6  # the error of a sum of this many numbers rounded to 2**-37, and of an eigenvalue in float64

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]


class OutOfBound(ValueError):
    """Honest sites cannot have sent these sums."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NewtonSums:
    """The Hessian H and the gradient g of one site or of several, at common coefficients.

    Attributes:
        hessian: float64 of shape (outputs, columns, columns), symmetric.
        gradient: float64 of shape (outputs, columns), of the loss.
    """

    hessian: Float64 = field(repr=False)
    gradient: Float64 = field(repr=False)

    @classmethod
    def zeros(cls, columns: int, outputs: int) -> NewtonSums:
        """Return the sums of a site without a usable row."""
        return cls(hessian=np.zeros((outputs, columns, columns)), gradient=np.zeros((outputs, columns)))

    @classmethod
    def decoded(cls, integers: Sequence[int], columns: int, outputs: int) -> NewtonSums:
        """Decode a vector that `encoded` returned, or a sum of such vectors.

        Args:
            integers: outputs * columns * (columns + 3) / 2 of them, as one site sends in one Newton round.
            outputs: 1, or the number of classes.
        """
        values = np.array(integers, np.int64).astype(np.float64).reshape(outputs, -1) / NEWTON_SCALE
        upper = np.triu_indices(columns)
        hessian = np.zeros((outputs, columns, columns))
        hessian[:, upper[0], upper[1]] = values[:, : len(upper[0])]
        hessian[:, upper[1], upper[0]] = values[:, : len(upper[0])]
        return cls(hessian=hessian, gradient=values[:, len(upper[0]) :].copy())

    def encoded(self) -> tuple[int, ...]:
        """Encode for each output the upper triangle of H by rows, then g, as integers of scale NEWTON_SCALE."""
        upper = np.triu_indices(self.gradient.shape[1])
        values = np.concatenate([self.hessian[:, upper[0], upper[1]], self.gradient], axis=1)
        if not np.isfinite(values).all():
            raise OutOfBound("a number of the regression is not finite")
        return tuple(int(value) for value in np.rint(values.ravel() * NEWTON_SCALE))

    def without(self, own: NewtonSums) -> NewtonSums:
        return NewtonSums(hessian=self.hessian - own.hessian, gradient=self.gradient - own.gradient)

    def require_possible(self, rows: float, largest_weight: float) -> None:
        """Check that honest sites with this number of rows can have sent these sums.

        Args:
            rows: N, at least the squared sum of every standardised column.
            largest_weight: of one row in H: 1/4 for classes, 1 for numbers.

        Raises:
            OutOfBound: an entry is beyond its bound, or H is not positive semidefinite.
        """
        slack = _ROUNDING * (1.0 + rows)
        if np.abs(self.hessian).max(initial=0.0) > rows * largest_weight + slack:
            raise OutOfBound("an entry of the Hessian beyond its bound")
        if np.abs(self.gradient).max(initial=0.0) > rows + slack:
            raise OutOfBound("an entry of the gradient beyond its bound")
        if self.hessian.size and np.linalg.eigvalsh(self.hessian).min() < -slack:
            raise OutOfBound("a Hessian that is not positive semidefinite")

    def next_coefficients(self, before: Float64, ridge: float) -> Float64:
        """Return the coefficients after one Newton step: (H + ridge I) after = H before - g.

        Args:
            before: float64 of shape (outputs, columns), where the sums were computed.
            ridge: the penalty is ridge / 2 times the squared coefficients; above 0, because H can be singular.

        Returns:
            float64 of shape (outputs, columns).
        """
        right = np.einsum("ojk,ok->oj", self.hessian, before) - self.gradient
        return np.asarray(np.linalg.solve(self._penalised(ridge), right[..., None])[..., 0])

    def standard_errors(self, ridge: float) -> Float64:
        """Return the square roots of the diagonal of the inverse of H + ridge I, float64 (outputs, columns).

        If the penalty is read as a normal prior, these are posterior standard deviations. Their intervals include the
        bias of the penalty (Wood 2017, section 6.10).
        """
        return np.asarray(np.sqrt(np.diagonal(np.linalg.inv(self._penalised(ridge)), axis1=1, axis2=2)))

    def _penalised(self, ridge: float) -> Float64:
        return np.asarray(self.hessian + ridge * np.eye(self.gradient.shape[1]))


def has_converged(before: Float64, after: Float64) -> bool:
    """Return whether the last step moved every coefficient by less than CONVERGED."""
    return bool(np.abs(after - before).max(initial=0.0) < CONVERGED)


def announced(integers: Sequence[int]) -> Float32:
    """Encode sums for sending to the sites: float32 of shape (4 * integers,), whole numbers below 2**16."""
    words = np.array(integers, "<i8").view("<u2")
    return words.astype(np.float32)


def read_announced(numbers: Float32) -> tuple[int, ...]:
    """Decode a vector that `announced` encoded. Raises OutOfBound if a number is not whole, or not below 2**16."""
    in_range = (numbers >= 0) & (numbers < 1 << 16)
    if numbers.size % _PARTS or not in_range.all() or (np.rint(numbers) != numbers).any():
        raise OutOfBound("announced sums are whole numbers below 65,536")
    return tuple(int(word) for word in np.ascontiguousarray(numbers.astype("<u2")).view("<i8"))
