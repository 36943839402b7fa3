"""The audits of the promised epsilon in one run detect half of the noise, and raise no alarm for correct noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.privacy import DELTA, private_plan
from benchmarks.private_audit import audited_training, canary_plan, with_a_share_of_the_noise
from benchmarks.private_networks import network_plan_of
from benchmarks.private_prior_audit import audited_prior, canary_rows, wide_content
from protos.plan.plan import plan_from_json


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


@pytest.mark.slow
def test_one_sum_of_the_prior_shows_less_than_epsilon_and_more_than_it_with_half_of_the_noise() -> None:
    """In one sum 12,288 patients drawn by coin show less than epsilon as deployed, and more if noise is halved."""
    content = wide_content(json.loads(private_plan(uci_tables(CONCEPTS.parent), 2.0).canonical))
    plan = plan_from_json(json.dumps(content))

    both = audited_prior([plan, with_a_share_of_the_noise(plan, 0.5)], 48, np.random.default_rng(1).bytes)

    honest, weakened = (one.bound(DELTA) for one in both)
    assert 0.7 < honest < 2.0 < weakened


def test_the_canaries_of_the_prior_are_nearly_orthogonal() -> None:
    """The products of rows are 16 at most, in whichever bases, so products of columns are nearly orthogonal."""
    rows = canary_rows(128)[:: 128 + 5]

    products = np.abs(rows @ rows.T)

    assert set(np.unique(products)) == {0, 16, 256}
    assert (products == 256).sum() == len(rows)
