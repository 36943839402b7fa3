"""The audit of the promised epsilon detects noise that is too small, and raises no alarm for correct noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.privacy import CLAIM, DELTA, audit_plan, audited, sums_of
from benchmarks.private_audit import audited_training, canary_plan, with_a_share_of_the_noise
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


@pytest.mark.parametrize("kind", ["shared", "local"])
def test_one_run_shows_less_than_epsilon_and_more_than_it_with_half_of_the_noise(kind: str) -> None:
    """In one training 22,500 patients drawn by coin show less than epsilon as deployed, and more if noise is halved."""
    content = json.loads(network_plan_of(uci_tables(CONCEPTS.parent), 3.0).canonical)
    rounds, steps = (3, 1) if kind == "shared" else (1, 3)
    plan = canary_plan(content, rounds, steps=steps, neurons=50, noise=kind)
    generator = np.random.default_rng(1)

    honest, weakened = (
        audited_training(one, neurons=50, random_bytes=generator.bytes).bound(DELTA)
        for one in (plan, with_a_share_of_the_noise(plan, 0.5))
    )

    assert 1.0 < honest < 3.0 < weakened
