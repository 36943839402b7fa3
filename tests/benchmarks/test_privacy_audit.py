"""The audit of the promised epsilon detects noise that is too small, and raises no alarm for correct noise."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.privacy import CLAIM, audit_plan, audited, sums_of
from benchmarks.private_audit import audited_local_steps, local_training, with_half_the_noise
from benchmarks.private_networks import network_plan_of
from protos.plan.plan import Plan
from protos.privacy.discrete_gaussian import discrete_gaussian
from tests.for_each import for_each


def shares(plan: Plan, numbers: list[int], weaker: int, generator: np.random.Generator) -> list[int]:
    """One site's numbers with noise of a variance that is smaller by a factor."""
    drawn = discrete_gaussian(len(numbers), sums_of(plan).share_variance // weaker, generator.bytes)
    return [number + one for number, one in zip(numbers, drawn.tolist(), strict=True)]


@for_each("seed", range(1))
def test_the_bound_lies_below_the_claim_and_above_it_with_a_quarter_of_the_noise(seed: int) -> None:
    """With the plan's noise the audited bound is at most epsilon; with a quarter of its deviation it is above."""
    plan, generator = audit_plan(uci_tables(CONCEPTS.parent), CLAIM), np.random.default_rng(seed)

    honest = audited(plan, 20_000, lambda used, numbers: shares(used, numbers, 1, generator))
    weakened = audited(plan, 20_000, lambda used, numbers: shares(used, numbers, 16, generator))

    assert honest < CLAIM < weakened


@for_each("seed", range(1))
def test_the_bound_of_local_noise_lies_below_the_claim_and_above_it_with_half_of_the_noise(seed: int) -> None:
    """Three steps of a site show less than epsilon as deployed, and more than it if the trainer halves its noise."""
    training = local_training(json.loads(network_plan_of(uci_tables(CONCEPTS.parent), CLAIM).canonical), CLAIM)

    honest = audited_local_steps(training, 300, seed)
    weakened = audited_local_steps(with_half_the_noise(training), 300, seed)

    assert honest < CLAIM < weakened
