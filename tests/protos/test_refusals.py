"""The number of refusals is computed from sums, and no site can lower it."""

from __future__ import annotations

import numpy as np
import pytest

from protos.numbers.refusals import PRIME, count_refusals, numbers_for, refusal
from tests.for_each import for_each

SEEDS = range(40)


def summed(secrets: list[int], size: int, extra: list[int] | None = None) -> list[int]:
    """The sums of what sites with these secrets send, and of whatever another one adds; modulo 2^64, as they travel."""
    count = numbers_for(size)
    parts = [refusal(secret, count) for secret in secrets] + [tuple(extra or [0] * count)]
    totals = [sum(numbers) % (1 << 64) for numbers in zip(*parts, strict=True)]
    return [total - (1 << 64) if total >= 1 << 63 else total for total in totals]


def drawn(generator: np.random.Generator, count: int) -> list[int]:
    """So many secrets."""
    return [int(secret) for secret in generator.integers(0, 1 << 56, size=count)]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@for_each("seed", SEEDS)
def test_refusals_are_counted_exactly_up_to_the_number_that_matters(seed: int, size: int) -> None:
    """Sites that accept add zeros, so their number does not matter; beyond the size the count stays the size."""
    generator = np.random.default_rng([seed, size])
    refusing = int(generator.integers(0, 2 * size + 1))

    assert count_refusals(summed(drawn(generator, refusing), size)) == min(refusing, size)


@pytest.mark.parametrize("size", [2, 3, 5])
@for_each("seed", SEEDS)
def test_no_site_can_hide_the_refusals_of_others(seed: int, size: int) -> None:
    """Whatever a site adds without the secrets: numbers of the ring, a count, small numbers, minus its own."""
    generator = np.random.default_rng([seed, size, 1])
    refusing, count = int(generator.integers(1, size + 2)), numbers_for(size)
    own = refusal(drawn(generator, 1)[0], count)
    tries = [
        [int(number) for number in generator.integers(0, PRIME, size=count)],
        [-refusing] + [0] * (count - 1),
        [int(number) for number in generator.integers(-5, 6, size=count)],
        [-number for number in own],
        [-refusing * number for number in own],
        [0] * (count - 1) + [int(generator.integers(0, PRIME))],
    ]

    for extra in tries:
        assert count_refusals(summed(drawn(generator, refusing), size, extra)) >= min(refusing, size)


def test_whoever_knows_the_secrets_could_hide_them() -> None:
    """The secrets are what protects the count: with them it is 0 again."""
    secrets = drawn(np.random.default_rng(3), 2)
    known = [-sum(numbers) for numbers in zip(*(refusal(secret, 5) for secret in secrets), strict=True)]

    assert count_refusals(summed(secrets, 3)) == 2
    assert count_refusals(summed(secrets, 3, known)) == 0


def test_the_sums_of_a_hundred_sites_fit() -> None:
    """The largest numbers of the largest plan stay below 2^63, so that none is taken for a negative one."""
    assert 100 * (PRIME - 1) < 1 << 63
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23))


def test_no_secret_gives_a_number_that_counts_nothing() -> None:
    """Also next to a multiple of the prime, a refusal has powers from 1 to PRIME - 1, so that it is counted."""
    for secret in (0, 1, PRIME - 2, PRIME - 1, PRIME, 2 * PRIME - 2):
        powers = refusal(secret, numbers_for(2))

        assert all(1 <= power < PRIME for power in powers), secret
        assert count_refusals(powers) == 1, secret


def test_secrets_give_every_number_below_the_prime() -> None:
    """The ends of the secrets give the ends of the numbers, 1 and PRIME - 1; then the numbers begin again."""
    assert [refusal(secret, 1) for secret in (0, PRIME - 2, PRIME - 1)] == [(1,), (PRIME - 1,), (1,)]
