"""The simulation of a private prior shows what the others' score brings to a small hospital, and what noise takes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coordinator.operations.expected_accuracy import expected_accuracy
from coordinator.operations.made_up_patients import CORRELATION, made_up_patients, ranked
from coordinator.operations.made_up_prior import PATIENTS, MadeUpPrior, made_up_prior, sums_of
from protos.plan.plan import Plan
from protos.privacy.accounting import PRIVATE_SCALE
from site_agent.trainer.prior.private_terms import clipped_terms
from tests.for_each import for_each
from tests.protos.privacy.private_plans import private_network_plan, private_plan
from tests.protos.privacy.test_private_statistics import private_statistics_plan


def wide_plan(epsilon: float, columns: int = 20) -> Plan:
    """A plan with so many columns that a small hospital learns little from its own patients."""
    content = json.loads(private_plan({"epsilon": epsilon, "clip": 4.0}).canonical)
    (number,) = [one for one in content["concepts"] if one["kind"] == "number"][:1]
    content["concepts"] = [number | {"name": f"{number['name']}-{place}"} for place in range(columns)]
    content["method"].pop("concepts", None)
    return Plan.model_validate_json(json.dumps(content))


def test_noise_takes_nothing_at_a_large_epsilon_and_the_whole_gain_at_a_tiny_one() -> None:
    """The score of the others without noise helps a small hospital. The result is repeatable."""
    found = {epsilon: made_up_prior(wide_plan(epsilon)) for epsilon in (0.02, 1.0, 20.0)}
    tiny, one, large = found[0.02], found[1.0], found[20.0]

    assert isinstance(tiny, MadeUpPrior)
    assert isinstance(one, MadeUpPrior)
    assert isinstance(large, MadeUpPrior)
    assert one == made_up_prior(wide_plan(1.0))
    gain = one.without - one.alone
    assert gain > 0.01
    assert tiny.without == large.without == one.without
    assert large.without - large.with_noise < 0.1 * gain
    assert tiny.with_noise - tiny.alone < 0.3 * gain
    assert tiny.with_noise < one.with_noise < large.with_noise + 0.002


def test_its_sums_are_those_of_the_deployed_trainer() -> None:
    """Clip, units and order agree with the trainer's integers to their rounding."""
    prior = wide_plan(1.0, 5).prior
    assert prior is not None
    assert prior.private is not None
    sums = prior.private
    people = made_up_patients(60, len(sums.columns), np.random.default_rng(1))

    exact = clipped_terms(sums, sums.sites[2], people.features, people.outcomes, None)

    np.testing.assert_allclose(sums_of(sums, 2, people) * PRIVATE_SCALE, exact, rtol=1e-6, atol=200)


@for_each("columns", (1, 3, 12))
def test_made_up_columns_have_one_common_factor_and_the_outcome_its_area(columns: int) -> None:
    """Variances are 1, each pair has the assumed correlation, and the best score has an AUROC of about .79."""
    people = made_up_patients(40_000, columns, np.random.default_rng(columns))
    covariance = np.cov(people.features.T).reshape(columns, columns)
    best, *_ = np.linalg.lstsq(people.features, people.outcomes - people.outcomes.mean(), rcond=None)

    np.testing.assert_allclose(covariance, np.where(np.eye(columns) == 1, 1.0, CORRELATION), atol=0.04)
    assert ranked(people.features @ best, people.outcomes) == pytest.approx(0.79, abs=0.015)


def test_each_kind_of_plan_has_its_sentences_and_says_what_is_assumed() -> None:
    """For statistics no patient is made up. A plan that is too large gives the reason."""
    of_prior = " ".join(expected_accuracy(wide_plan(1.0)))
    of_network = " ".join(expected_accuracy(private_network_plan()))
    of_counts = " ".join(expected_accuracy(private_statistics_plan()))
    few = " ".join(expected_accuracy(private_statistics_plan({"epsilon": 0.02})))
    slow = " ".join(expected_accuracy(private_network_plan(rounds=2000)))
    wide = wide_plan(1.0, 300)

    assert f"At 4 made-up hospitals with {PATIENTS} patients each" in of_prior
    assert all("correlation of 0.2 with each other. This is assumed." in text for text in (of_prior, of_network))
    assert "With 1,000 rows, the noise in the mean of age has a standard deviation of 0.34, in its unit." in of_counts
    assert "assumed" not in of_counts
    assert "A mean needs more than" in few
    assert "Nothing was simulated: the plan has 2,000 steps" in slow
    assert made_up_prior(wide) == "a fit of 304 unknowns would take too long"
    assert " ".join(expected_accuracy(wide)) == "Nothing was simulated: a fit of 304 unknowns would take too long."
