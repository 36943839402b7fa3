"""Epsilon and delta of Gaussian noise agree with direct integration and with published values."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from protos.privacy.accounting import delta_of, epsilon_of, ratio_of, together
from tests.for_each import for_each


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_delta_is_what_the_definition_says(epsilon: float, mu: float) -> None:
    """The closed form and the integral of the definition agree."""
    grid = np.linspace(-15.0, 15.0 + mu, 400_001)  # over which the definition of delta is added up
    gap = norm.pdf(grid, mu) - np.exp(epsilon) * norm.pdf(grid)
    delta = float(np.maximum(gap, 0.0).sum() * (grid[1] - grid[0]))
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-4, abs=1e-9)


def test_a_published_value() -> None:
    """With epsilon 1 and delta 1e-5 the noise is 3.7306 times the sensitivity; the classical bound says 4.8448."""
    assert 1 / ratio_of(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-4)
    assert 1 / ratio_of(1.0, 1e-5) < sqrt(2 * np.log(1.25 / 1e-5))


@for_each("seed", range(50))
def test_ratio_and_epsilon_undo_each_other_on_the_safe_side(seed: int) -> None:
    """Noise that is chosen for an epsilon never spends more than that."""
    generator = np.random.default_rng(seed)
    epsilon, delta = float(np.exp(generator.uniform(-4.6, 3.0))), 10 ** generator.uniform(-12, -3)

    ratio = ratio_of(epsilon, delta)

    assert epsilon_of(ratio, delta) <= epsilon
    assert epsilon_of(ratio, delta) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(ratio * 1.001, delta) > epsilon


def test_no_noise_promises_nothing() -> None:
    """A ratio without bound has an infinite epsilon, and no sum has epsilon 0."""
    assert epsilon_of(1000.0, 1e-5) == float("inf")
    assert epsilon_of(together([]), 1e-5) == 0.0


@pytest.mark.parametrize("shares", [1, 2, 3, 19])
@pytest.mark.parametrize("variance", [5, 8, 40])
def test_a_sum_of_discrete_shares_is_as_private_as_a_gaussian_with_four_less_for_each(
    shares: int, variance: int
) -> None:
    """By the definition: the exact chances of the sum and of the sum that one patient has moved, added up. The shares
    are far narrower than any of a plan, so that the rounding would show."""
    span = np.arange(-60 - 10 * variance, 61 + 10 * variance)
    share = np.exp(-(span**2) / (2.0 * variance))
    chances = np.ones(1)
    for _ in range(shares):
        chances = np.convolve(chances, share / share.sum())
    for moved in (1, 2, 5):
        with_patient, without = (np.pad(chances, one) for one in ((moved, 0), (0, moved)))
        for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
            delta = float(np.maximum(with_patient - exp(epsilon) * without, 0.0).sum())
            assert delta <= delta_of(epsilon, moved / sqrt(shares * (variance - 4.0))) + 1e-12
