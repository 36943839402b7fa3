"""The noise has exactly the declared distribution, with the fast method and with the exact one."""

from __future__ import annotations

import os
from math import erf, exp, sqrt

import numpy as np
import pytest
from scipy.stats import chi2

from protos.privacy import discrete_gaussian as sampler
from protos.privacy.discrete_gaussian import LARGEST_VARIANCE, discrete_gaussian
from tests.for_each import for_each

UNLIKELY = 1e-6  # of a correct sampler; every test below draws from a seed, so it does not change from day to day


def _exact_chances(variance: float, most: int) -> np.ndarray:
    weights = np.array([exp(-x * x / (2 * variance)) for x in range(-4 * most, 4 * most + 1)])
    chances = weights / weights.sum()
    middle = chances[3 * most : 5 * most + 1].copy()
    middle[0] += chances[: 3 * most].sum()
    middle[-1] += chances[5 * most + 1 :].sum()
    return middle


def _misfit(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = chances * counts.sum()
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], max(expected[~large].sum(), 1e-9))
    if wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1]
    return float(chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(observed) - 1))


@pytest.mark.parametrize(
    ("variance", "is_exact"), [*((one, False) for one in (1, 2, 3, 7, 20, 90)), (1, True), (7, True)]
)
@for_each("seed", range(3))
def test_samples_fit_the_exact_chances(
    variance: int, seed: int, is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples lie on the integers as exp(-x^2 / (2 variance)) says, also if floating-point numbers decide nothing."""
    monkeypatch.setattr(sampler, "_TOLERANCE", 2.0 if is_exact else sampler._TOLERANCE)
    most = 3 * int(sqrt(variance)) + 1

    drawn = discrete_gaussian(3_000 if is_exact else 40_000, variance, np.random.default_rng([seed, variance]).bytes)

    counts = np.bincount(np.clip(drawn, -most, most) + most, minlength=2 * most + 1)
    assert _misfit(counts, _exact_chances(variance, most)) > UNLIKELY


@pytest.mark.parametrize(
    ("words", "heads"), [((0, 1 << 63), 22), ((0, 0, 1 << 63), 67), ((1 << 31,), 0), ((1 << 28,), 2)]
)
def test_a_uniform_number_decides_how_many_heads_there_are(words: tuple[int, ...], heads: int) -> None:
    """2**-1 and 2**-4 have floor(-log) heads, and so have 2**-33 and 2**-97, for which further bits are drawn."""
    given = iter(words)

    tossed = sampler._geometric(1, lambda count: next(given).to_bytes(count, "little"))

    assert tossed.tolist() == [heads]
    assert not list(given)


@pytest.mark.parametrize("variance", [1 << 40, 3 * 10**18, 10**24 + 7, LARGEST_VARIANCE])
def test_wide_noise_fits_the_continuous_curve(variance: int) -> None:
    """With a variance of 2**40 or more, cells of a quarter deviation hold what the normal curve says."""
    drawn = discrete_gaussian(40_000, variance, np.random.default_rng(variance % 2**32).bytes)

    edges = np.arange(-3.0, 3.01, 0.25)
    below = np.array([0.0, *((1 + erf(edge / sqrt(2))) / 2 for edge in edges), 1.0])
    counts = np.bincount(np.searchsorted(edges, drawn / sqrt(variance)), minlength=len(edges) + 1)
    assert _misfit(counts, np.diff(below)) > UNLIKELY


def test_the_noise_of_a_large_exchange_comes_from_the_system() -> None:
    """50,000 numbers of system randomness, and no two drawings are equal."""
    first, second = (discrete_gaussian(50_000, 1 << 66, os.urandom) for _ in range(2))

    assert first.shape == (50_000,)
    assert (first != second).sum() > 49_000


@pytest.mark.parametrize("variance", [0, -1, LARGEST_VARIANCE + 1])
def test_no_other_variance_is_drawn(variance: int) -> None:
    """Variances below 1 and above the largest are refused."""
    with pytest.raises(ValueError, match="lies between 1 and 2"):
        discrete_gaussian(1, variance, os.urandom)
