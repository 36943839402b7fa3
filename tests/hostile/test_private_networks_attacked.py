"""Attacks on a network in private training: canaries, membership, an imprint. Each succeeds without the noise."""

from __future__ import annotations

import json
from math import erf, sqrt

import numpy as np
import pytest

from benchmarks.private_audit import (
    NEURONS_OF_A_PLAN,
    Audited,
    Noise,
    _probability,
    audited_training,
    canary_plan,
    with_a_share_of_the_noise,
)
from protos.plan.plan import Plan
from protos.privacy.accounting import PRIVATE_SCALE, ratio_of
from protos.privacy.discrete_gaussian import discrete_gaussian
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients
from tests.hostile.imprinting import rows_read
from tests.protos.privacy.private_plans import private_network_plan

DELTA = 1e-5
_NEURONS, _COLUMNS = 400, 6


def plan_of(epsilon: float) -> Plan:
    """A plan for the audit at four sites, with as many canaries as its own network has room for."""
    content = json.loads(private_network_plan().canonical)
    return canary_plan(content, 10, neurons=NEURONS_OF_A_PLAN, epsilon=epsilon, delta=DELTA, clip=1.0)


def attacked(plan: Plan, seed: int, noise: Noise = with_noise) -> Audited:
    """One training with canaries that can be repeated."""
    drawn = np.random.default_rng(seed).bytes
    return audited_training(plan, neurons=NEURONS_OF_A_PLAN, random_bytes=drawn, noise=noise)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_one_run_with_canaries_stays_below_the_claim_and_finds_a_weakened_copy(epsilon: float) -> None:
    """Right guesses never rule the claim out; with a quarter of the noise they do at epsilon 1."""
    plan = plan_of(epsilon)

    bounds = [attacked(plan, seed).bound(DELTA) for seed in range(2)]

    assert max(bounds) <= epsilon
    if epsilon == 1.0:
        assert attacked(with_a_share_of_the_noise(plan, 0.25), 0).bound(DELTA) > epsilon


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_membership_attack_gains_no_more_than_the_noise_allows(epsilon: float) -> None:
    """Whoever reads every sum names members at most 2 F(mu / 2) - 1 more often than others; without noise always."""
    plan = plan_of(epsilon)

    found = attacked(plan, 3)

    most = erf(ratio_of(epsilon, DELTA) / (2 * sqrt(2)))
    assert found.advantage <= most + 4 / sqrt(len(found.scores))
    assert attacked(plan, 3, lambda _plan, numbers, _bytes: list(numbers)).advantage > 0.99


def test_guesses_by_chance_rule_nothing_out() -> None:
    """The probability of right guesses is exact without delta, and half of them tells nothing."""
    assert _probability(100, 10, 10, 0.0, 0.0) == pytest.approx(0.5**10)
    assert _probability(100, 10, 5, 0.0, 0.0) > 0.6
    assert _probability(100, 10, 10, 1.0, 1e-3) > _probability(100, 10, 10, 1.0, 0.0)


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_an_imprint_reads_no_row_from_a_private_sum(epsilon: float) -> None:
    """Imprinted parameters in one round, by one honest share of three: without noise rows are read, with it none."""
    generator = np.random.default_rng(5)
    rows = generator.standard_normal((341, _COLUMNS)).astype(np.float32)
    outcomes = generator.integers(0, 2, 341).astype(np.float64)
    weight = np.tile(np.linspace(0.4, 1.0, _COLUMNS), (_NEURONS, 1))
    layers = [Layer(weight, -np.linspace(-6.0, 6.0, _NEURONS)), Layer(np.full((1, _NEURONS), 0.02), np.zeros(1))]
    training = private_network_plan({"epsilon": epsilon}, rounds=1, hidden=(_NEURONS,)).private_training
    assert training is not None
    sums = np.array(clipped_gradients(layers, 1.0, PrivateRows.of(rows, outcomes, None)))
    noise = discrete_gaussian(len(sums), training.share_variance, generator.bytes)

    exact, private = (rows_read(_inputs(numbers), rows.astype(np.float64)) for numbers in (sums, sums + noise))

    assert exact >= 20
    assert private == 0


def _inputs(numbers: np.ndarray) -> np.ndarray:
    """What an onlooker reads: quotients of the differences of neighbouring neurons' weights and biases."""
    size = _NEURONS * _COLUMNS
    weights = np.diff(numbers[:size].reshape(_NEURONS, _COLUMNS), axis=0) / PRIVATE_SCALE
    biases = np.diff(numbers[size : size + _NEURONS]) / PRIVATE_SCALE
    is_used = np.abs(biases) > 1e-7
    return np.asarray(weights[is_used] / biases[is_used][:, None])
