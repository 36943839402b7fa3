"""Counts how many sites refuse the received parameters, from sums over all sites.

A plain count of votes is no protection: behind the masks a hostile site may add any number to a sum, and so cancel
refusals. Here a site that accepts sends zeros. A site that refuses draws a secret number r and sends r, r^2, r^3 ...
modulo a prime. The sums over the sites are the moments of the secrets. The number of refusals is the rank of their
Hankel matrix, whose entry (i, j) is the sum of the powers i + j + 1.

* Without a hostile site the rank is exactly the number of refusals, up to the size of the matrix.
* A hostile site adds a matrix of its own choice, which can raise the rank. It lowers the rank below the number of
  honest refusals only if a determinant of that many rows is 0. The determinant is a polynomial in the secrets. Its part
  of highest degree does not depend on the hostile site, so it is not the zero polynomial. Its degree is at most size^2,
  so it is 0 for at most size^2 / PRIME of the secrets (Schwartz 1980, lemma 1): below 1e-12.

So a hostile site can cause a rollback, but cannot prevent one. The coordinator learns how many sites refuse, not which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# The largest prime below 2^55: the sum of 100 sites' numbers stays below 2^63.
PRIME: Final = (1 << 55) - 55


def numbers_for(refusals: int) -> int:
    """Return how many sums are needed to count this many refusals."""
    return 2 * refusals - 1


def refusal(secret: int, count: int) -> tuple[int, ...]:
    """Return the numbers that a refusing site sends: powers of its secret, each from 1 to PRIME - 1.

    Args:
        secret: a whole number of at least 55 random bits, known only to this site and new in each round.
        count: the result of `numbers_for`.
    """
    base = 1 + secret % (PRIME - 1)
    return tuple(pow(base, power, PRIME) for power in range(1, count + 1))


def count_refusals(sums: Sequence[int]) -> int:
    """Return the number of sites that refused, at most (len(sums) + 1) / 2. The module's docstring explains the method.

    Args:
        sums: over all sites, of the powers 1, 2, 3 and so on; an odd number of them.
    """
    size = (len(sums) + 1) // 2
    return _rank([[sums[row + column] % PRIME for column in range(size)] for row in range(size)])


def _rank(matrix: list[list[int]]) -> int:
    """Return the rank of a square matrix modulo PRIME, by Gaussian elimination. The rows are overwritten."""
    rank = 0
    for column in range(len(matrix)):
        pivot = next((row for row in range(rank, len(matrix)) if matrix[row][column]), None)
        if pivot is None:
            continue
        matrix[rank], matrix[pivot] = matrix[pivot], matrix[rank]
        inverse = pow(matrix[rank][column], -1, PRIME)
        for row in matrix[rank + 1 :]:
            factor = row[column] * inverse
            row[column:] = [
                (own - factor * above) % PRIME for own, above in zip(row[column:], matrix[rank][column:], strict=True)
            ]
        rank += 1
    return rank
