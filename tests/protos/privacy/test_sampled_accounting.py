"""Sums over secret samples of patients: the bound of epsilon holds, is not far above the truth, and fixes the noise."""

from __future__ import annotations

from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import norm

from protos.plan.patient_privacy import noise_multiplier, price_in_words
from protos.plan.private_training import PrivateTraining
from protos.privacy.accounting import PRIVATE_SCALE, epsilon_of
from protos.privacy.sampled_accounting import sampled_epsilon, sampled_multiplier
from tests.for_each import in_turns
from tests.protos.privacy.private_plans import private_network_plan, private_plan

_STEP = 2e-4  # of the grid of privacy losses
_PLACES = 1 << 19  # for losses up to 52 in magnitude


def composed_epsilon(multiplier: float, rate: float, sums: int, delta: float, *, is_added: bool) -> float:
    """Epsilon by the distribution of the privacy loss, added up over the sums by Fourier transforms.

    Source: Koskela, Jälkö, Honkela 2020. Losses are rounded up, so the result is slightly above the truth.
    """
    grid = np.linspace(-12 * multiplier, 12 * multiplier + 1, 400_001)
    width = grid[1] - grid[0]
    without, one = norm.pdf(grid, 0, multiplier) * width, norm.pdf(grid, 1, multiplier) * width
    loss = np.log((1 - rate) + rate * np.exp((2 * grid - 1) / (2 * multiplier**2)))
    chance, loss = (without, -loss) if is_added else ((1 - rate) * without + rate * one, loss)
    places = np.ceil(loss / _STEP).astype(np.int64)
    assert np.abs(places).max() < _PLACES // 2
    mass = np.bincount(places % _PLACES, weights=chance, minlength=_PLACES)
    total = np.maximum(np.fft.irfft(np.fft.rfft(mass) ** sums, _PLACES), 0.0)
    losses = np.fft.fftfreq(_PLACES, 1 / (_PLACES * _STEP))
    low, high = 0.0, 50.0
    for _ in range(50):
        middle = (low + high) / 2
        above = losses > middle
        found = float((total[above] * -np.expm1(middle - losses[above])).sum())
        low, high = (middle, high) if found > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("multiplier", "rate", "sums"),
    [
        (1.0, 0.1, 1),
        (1.5, 0.5, 2),
        (1.0, 0.1, 40),
        (0.8, 0.05, 100),
        (2.0, 0.3, 200),
        (4.0, 0.5, 40),
        (1.1, 0.02, 1000),
    ],
)
def test_the_bound_is_above_the_composed_privacy_loss_and_near_it(multiplier: float, rate: float, sums: int) -> None:
    """A second computation, for a patient who is added and one who is removed: never more, and at least 75% of it.

    With one sum or two, a bound that forgets a sum is below it.
    """
    bound = sampled_epsilon(multiplier, rate, sums, 1e-5)

    found = [composed_epsilon(multiplier, rate, sums, 1e-5, is_added=is_added) for is_added in (False, True)]

    # Losses are rounded up by at most one step for each sum.
    assert max(found) - sums * _STEP <= bound
    assert max(found) > 0.75 * bound


def test_the_second_computation_is_right_where_a_closed_form_is_known() -> None:
    """With nearly all patients in each sum it gives the epsilon of one Gaussian."""
    found = composed_epsilon(4.0, 1 - 1e-9, 10, 1e-5, is_added=False)

    assert found == pytest.approx(epsilon_of(sqrt(10) / 4.0, 1e-5), abs=10 * _STEP)


@pytest.mark.parametrize(
    ("epsilon", "sums", "rate"), in_turns(product([0.1, 1.0, 8.0], [1, 40, 1000]), [1e-4, 0.01, 0.1, 0.5, 0.9])
)
def test_the_noise_is_the_least_of_the_grid_and_sampling_never_needs_more(
    epsilon: float, sums: int, rate: float
) -> None:
    """The multiplier meets epsilon, one step less does not, and all patients in all sums would need more noise."""
    multiplier = sampled_multiplier(epsilon, 1e-5, rate, sums)

    assert sampled_epsilon(multiplier, rate, sums, 1e-5) <= epsilon
    assert multiplier == 1 / 256 or sampled_epsilon(multiplier - 1 / 256, rate, sums, 1e-5) > epsilon
    plain = noise_multiplier(private_network_plan({"epsilon": epsilon}, rounds=sums).privacy, sums)  # type: ignore[arg-type]
    assert multiplier <= plain + 1 / 256


def test_more_rounds_rates_or_less_noise_never_cost_less() -> None:
    """The bound grows with the sums and the rate and falls with the noise, and without use it is infinite."""
    assert sampled_epsilon(1.0, 0.1, 40, 1e-5) < sampled_epsilon(1.0, 0.1, 80, 1e-5)
    assert sampled_epsilon(1.0, 0.1, 40, 1e-5) < sampled_epsilon(1.0, 0.2, 40, 1e-5)
    assert sampled_epsilon(1.0, 0.1, 40, 1e-5) > sampled_epsilon(1.1, 0.1, 40, 1e-5)
    assert sampled_multiplier(0.001, 1e-12, 0.9, 10**12) == inf


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
    np.testing.assert_allclose(training.mean_change(sums), training_of(epsilon=epsilon).mean_change(sums) * 4)


def test_the_price_in_words_is_that_of_the_sampled_sums() -> None:
    """What people read has the noise of each number and the probability with which a patient takes part."""
    plan = private_network_plan({"sampling": 0.25}, rounds=40)
    assert plan.privacy is not None

    words = price_in_words(plan.privacy, plan.private_sums)

    assert f"{sampled_multiplier(1.0, 1e-5, 0.25, 40):.3g} times as large" in words
    assert "Each takes part in a round with probability 0.25" in words


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.95, 1.0, float("nan")])
def test_a_rate_without_meaning_is_refused(rate: float) -> None:
    """Nobody, everybody and no number are no samples."""
    with pytest.raises(ValidationError, match="sampling"):
        private_network_plan({"sampling": rate})


def test_samples_go_with_networks_alone() -> None:
    """The federated prior has one sum of all patients."""
    with pytest.raises(ValidationError, match="sampling is only for the gradients of a network"):
        private_plan({"sampling": 0.5})


@pytest.mark.parametrize(("multiplier", "rate", "sums"), [(5.0, None, 40), (2.0, 0.25, 40), (4.0, 0.5, 100)])
def test_epsilon_agrees_with_a_library(multiplier: float, rate: float | None, sums: int) -> None:
    """Without sampling epsilon is that of dp-accounting. With it our bound is above the library's, by at most 15%."""
    library = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: it needs an older attrs")
    event = library.GaussianDpEvent(multiplier)
    accountant = library.pld.PLDAccountant()
    accountant.compose(event if rate is None else library.PoissonSampledDpEvent(rate, event), sums)

    expected = accountant.get_epsilon(1e-5)

    if rate is None:
        assert epsilon_of(sqrt(sums) / multiplier, 1e-5) == pytest.approx(expected, rel=1e-6)
    else:
        assert expected <= sampled_epsilon(multiplier, rate, sums, 1e-5) <= 1.15 * expected
