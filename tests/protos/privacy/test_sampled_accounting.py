"""Sums over secret samples of patients: the library's epsilon agrees with closed forms, and fixes the noise."""

from __future__ import annotations

import sys
from functools import cache
from itertools import product
from math import log, sqrt

import numpy as np
import pytest
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from scipy.special import logsumexp
from scipy.stats import norm

from protos.errors import ConfigurationError
from protos.plan.noisy_results import mean_change
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE, ratio_of
from protos.privacy.sampled_accounting import SMALLEST_MULTIPLIER, sampled_epsilon, sampled_multiplier
from tests.for_each import in_turns, some
from tests.protos.privacy.private_plans import private_network_plan

_STEP = 2e-4  # of the grid of privacy losses


def composed_epsilon(
    multiplier: float, rate: float, sums: int, delta: float, *, is_added: bool, step: float = _STEP
) -> float:
    """Epsilon by the distribution of the privacy loss, added up over the sums by Fourier transforms.

    Each loss is split between the two nearest points of the grid so that the expectations of 1 and of exp(-loss) stay
    equal, so the result is slightly above the truth. The losses are weighted by exp(tilt * loss) before the transform
    and back afterwards. So rounding errors are small compared with every delta.

    Sources: Koskela, Jälkö, Honkela 2020; Doroshenko et al. 2022.
    """
    places = np.linspace(-12 * multiplier, 12 * multiplier + 1, 100_001)
    without, one = (norm.pdf(places, mean, multiplier) * (places[1] - places[0]) for mean in (0, 1))
    loss = np.log1p(rate * np.expm1((2 * places - 1) / (2 * multiplier**2)))
    chance, loss = (without, -loss) if is_added else ((1 - rate) * without + rate * one, loss)
    below = np.floor(loss / step).astype(np.int64)
    part = np.expm1(step - (loss - below * step)) / np.expm1(step)  # that the point below gets
    first, size = below.min(), int(np.ptp(below)) + 2
    mass = np.bincount(below - first, chance * part, size) + np.bincount(below - first + 1, chance * (1 - part), size)
    points = (first + np.arange(size)) * step

    def logarithm(tilt: float) -> float:
        return float(logsumexp(tilt * points, b=mass))

    # The tilt of the least Chernoff bound moves the mean of the losses near the epsilon that is sought.
    tilt = min(np.geomspace(1e-2, 1e4, 40), key=lambda tilt: (sums * logarithm(tilt) - log(delta)) / tilt)
    tilted = mass * np.exp(tilt * points - logarithm(tilt))
    mean = float((tilted * points).sum())
    width = sqrt(sums * float((tilted * (points - mean) ** 2).sum()))
    length = 1 << int(max(4 * size, 60 * width / step)).bit_length()
    total = np.maximum(np.fft.irfft(np.fft.rfft(tilted, length) ** sums, length), 0.0)
    losses = (sums * first + np.arange(length)) * step
    losses -= np.round((losses - sums * mean) / (length * step)) * length * step  # the transform is a circle
    low, high = 0.0, 50.0
    for _ in range(50):
        middle = (low + high) / 2
        above = losses > middle
        back = np.exp(np.minimum(sums * logarithm(tilt) - tilt * losses[above], 600.0))
        found = float((total[above] * back * -np.expm1(middle - losses[above])).sum())
        low, high = (middle, high) if found > delta else (low, middle)
    return high


RUNS = [
    (1.0, 0.1, 1),
    (1.5, 0.5, 2),
    (1.0, 0.1, 40),
    (0.8, 0.05, 100),
    (2.0, 0.3, 200),
    (4.0, 0.5, 40),
    (1.1, 0.02, 1000),
]


@cache
def epsilon_at_1e_5(multiplier: float, rate: float, sums: int) -> float:
    """What the house computes, once for all tests that compare it."""
    return sampled_epsilon(multiplier, rate, sums, 1e-5)


@pytest.mark.parametrize(("multiplier", "rate", "sums"), some(RUNS, 3))
def test_epsilon_is_that_of_a_second_computation(multiplier: float, rate: float, sums: int) -> None:
    """A second computation, for a patient who is added and one who is removed, finds the same epsilon.

    With one sum or two, an epsilon that forgets a sum is below it.
    """
    found = epsilon_at_1e_5(multiplier, rate, sums)

    again = max(composed_epsilon(multiplier, rate, sums, 1e-5, is_added=is_added) for is_added in (False, True))

    assert found == pytest.approx(again, rel=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "sums", "rate", "delta"),
    in_turns(
        [(1.0, 1, 0.1), (20.0, 2, 0.5), (0.01, 10, 0.01), (3.0, 1000, 0.01), (20.0, 10_000, 0.01), (8.0, 10_000, 3e-3)],
        [1e-3, 1e-12],
        every=2,
    ),
)
def test_the_noise_of_a_plan_keeps_its_promise_by_a_second_computation(
    epsilon: float, sums: int, rate: float, delta: float
) -> None:
    """Also with the smallest delta and the most sums of a plan, epsilon is at most the plan's."""
    multiplier = sampled_multiplier(epsilon, delta, rate, sums)

    step = max(epsilon, 0.4) / 8000
    again = max(
        composed_epsilon(multiplier, rate, sums, delta, is_added=is_added, step=step) for is_added in (False, True)
    )

    assert 0 < again <= epsilon


@pytest.mark.parametrize(("multiplier", "rate", "sums"), some([run for run in RUNS if run[2] > 2], 2))
def test_epsilon_is_within_the_limits_of_another_library(multiplier: float, rate: float, sums: int) -> None:
    """The accountant of Gopi, Lee and Wutschitz 2021, which Opacus has too, bounds epsilon from both sides.

    It considers a patient who is removed, and this direction costs more in all of these runs.
    """
    losses = PoissonSubsampledGaussianMechanism(noise_multiplier=multiplier, sampling_probability=rate)
    other = PRVAccountant(prvs=[losses], max_self_compositions=[sums], eps_error=0.01, delta_error=1e-9)

    lowest, _, highest = other.compute_epsilon(delta=1e-5, num_self_compositions=[sums])

    assert lowest <= epsilon_at_1e_5(multiplier, rate, sums) <= highest


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_with_nearly_all_patients_epsilon_is_the_closed_form(epsilon: float, delta: float) -> None:
    """One Gaussian has an exact epsilon. The library is never below it, and above it by less than a hundredth."""
    for sums in (1, 40, 1000):
        multiplier = sqrt(sums) / ratio_of(epsilon, delta)

        found = sampled_epsilon(multiplier, 1 - 1e-9, sums, delta, max(epsilon, 0.2) / 2000)

        assert epsilon <= found <= epsilon * 1.01, sums


@pytest.mark.parametrize(
    ("epsilon", "sums", "rate"), in_turns(product([0.1, 1.0, 8.0], [1, 40, 1000]), [1e-4, 0.01, 0.1, 0.5, 0.9], every=3)
)
def test_the_noise_is_the_least_of_the_grid_and_sampling_never_needs_more(
    epsilon: float, sums: int, rate: float
) -> None:
    """The multiplier meets epsilon, 2% less does not, and all patients in all sums would need more noise."""
    multiplier = sampled_multiplier(epsilon, 1e-5, rate, sums)

    assert sampled_epsilon(multiplier, rate, sums, 1e-5) <= epsilon
    is_least = multiplier <= SMALLEST_MULTIPLIER * 1.001
    assert is_least or sampled_epsilon(multiplier * 0.98, rate, sums, 1e-5) > epsilon
    assert multiplier <= sqrt(sums) / ratio_of(epsilon, 1e-5)


def test_with_very_many_sums_or_little_noise_sampling_is_not_counted() -> None:
    """The noise is that of all patients in all sums, which has a closed form and takes no time."""
    assert sampled_multiplier(1.0, 1e-5, 0.1, 10_001) == sqrt(10_001) / ratio_of(1.0, 1e-5)
    assert sampled_multiplier(20.0, 1e-3, 0.1, 1) == 1 / ratio_of(20.0, 1e-3) < SMALLEST_MULTIPLIER


def test_without_the_library_a_sampled_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install. A plan without sampling does not need the library."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    sampled_multiplier.cache_clear()

    with pytest.raises(ConfigurationError, match=r"constraints\.txt '\.\[sampling\]'"):
        _ = private_network_plan({"sampling": 0.125}, rounds=3).noise_variance
    assert private_network_plan({}, rounds=3).noise_variance > 0


def training_of(**promise: float) -> PrivateTraining:
    """Of a plan with 40 rounds, four sites and these keys of `privacy`."""
    training = private_network_plan(promise, rounds=40).private_training
    assert training is not None
    return training


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_honest_shares_of_a_sampled_round_have_the_noise_of_the_bound(epsilon: float) -> None:
    """Three honest shares less what rounding takes have the multiplier. A step is over those who take part."""
    training = training_of(epsilon=epsilon, sampling=0.25)

    honest = 3 * (training.share_variance - 4)
    sums = np.ones(len(training.names)) * PRIVATE_SCALE

    assert sqrt(honest) / PRIVATE_SCALE >= sampled_multiplier(epsilon, 1e-5, 0.25, 40) * (1 - 1e-12)
    assert training.share_variance < training_of(epsilon=epsilon).share_variance
    np.testing.assert_allclose(mean_change(training, sums), mean_change(training_of(epsilon=epsilon), sums) * 4)
