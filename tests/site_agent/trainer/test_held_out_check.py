"""When a site refuses received parameters, it continues as if it had never trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protos.plan.plan import Plan
from protos.plan.schedules import HeldOutLoss
from protos.wire.messages import MalformedMessage, Stage
from site_agent.trainer.held_out_check import is_harmful
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Answer, Asked, Study
from site_agent.trainer.training.bridge import Vector
from tests.for_each import for_each
from tests.laws.catalogue import NAMES, catalogue_plan, rows_at

RULE = HeldOutLoss(rule="held-out-loss", quorum=2, standard_errors=2.0, largest_rise=0.2)
SITES = ("ahus", "berlin", "cluj")
CANNOT = {"local", "fedlama"}
by_method = pytest.mark.parametrize("name", [name for name in NAMES if name not in CANNOT])


def plan_with(name: str, **changes: Any) -> Plan:
    """A plan of the catalogue with three sites, two of which have to accept."""
    sites = [{"name": site, "identity": "-".join(["aaa" + site[0]] * 8)} for site in SITES]
    return catalogue_plan(name, sites=sites, quorum=2, acceptance=RULE.model_dump(), **changes)


def payload(answer: Answer) -> bytes:
    """What leaves the trainer, as bytes."""
    return answer.updates.tobytes() + np.array(answer.scalars, "<i8").tobytes()


def study_for(plan: Plan) -> Study:
    """The study of one site."""
    return Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))


def asked(plan: Plan, number: int, returned_to: int | None = None) -> Asked:
    """A training round, the first after a probe counted as 0, of a method that shares all that it may."""
    first = plan.has_probe
    returned = None if returned_to is None else first + returned_to
    return Asked(round=first + number, layers=b"", returned_to=returned)


def received(study: Study, seed: int, size: float = 0.1) -> Vector:
    """Some shared parameters, with control variates where the method has them."""
    exchange = study.exchange(asked(study.plan, 1))
    return np.random.default_rng(seed).normal(0.0, size, exchange.down_numbers).astype(np.float32)


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 20, 200])
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_noise_alone_is_rarely_refused(rows: int, scale: float) -> None:
    """Of rises without a mean, whatever the number of rows and their spread, fewer than exp(-2): it is about 2%."""
    generator = np.random.default_rng(rows)
    before = torch.zeros(rows)

    refused = sum(
        is_harmful(RULE, before, torch.from_numpy(generator.standard_t(2, size=rows).astype(np.float32)), scale)
        for _ in range(1000)
    )

    assert refused / 1000 < 0.05
    assert refused == 0 or rows >= 4


@for_each("seed", range(20))
def test_a_large_rise_of_many_rows_is_refused_and_a_small_one_is_not(seed: int) -> None:
    """Both have to hold: more than the share of the plan, and beyond noise."""
    generator = np.random.default_rng(seed)
    before = torch.from_numpy(generator.gamma(1.0, 0.5, size=60).astype(np.float32))
    noise = torch.from_numpy(generator.normal(0.0, 0.3, size=60).astype(np.float32))

    assert is_harmful(RULE, before, before + noise + 0.4, 0.7)
    assert not is_harmful(RULE, before, before + 0.05, 0.7)
    assert not is_harmful(RULE, before, before - 0.4, 0.7)
    assert not is_harmful(RULE, before[:1], before[:1] + 50.0, 0.7)


def test_a_few_rows_with_huge_losses_do_not_hide_the_harm_of_many() -> None:
    """Half of the rows rise by the loss of knowing nothing, and one by a thousand times as much."""
    before, after = torch.full((40,), 0.1), torch.full((40,), 0.05)
    after[:20] += 0.8
    after[0] = 700.0

    assert is_harmful(RULE, before, after, 0.7)


def test_outputs_that_are_not_finite_are_refused_unless_they_were_not_before() -> None:
    """Infinity and NaN are harm, but not in comparison with themselves."""
    fine, bad = torch.full((9,), 0.5), torch.full((9,), torch.inf)

    assert is_harmful(RULE, fine, bad, 0.7)
    assert is_harmful(RULE, fine, torch.full((9,), torch.nan), 0.7)
    assert not is_harmful(RULE, bad, bad, 0.7)


@by_method
def test_a_refused_round_leaves_no_trace(name: str) -> None:
    """After the return, what leaves the site is to the bit what leaves a site that never saw the refused parameters."""
    plan = plan_with(name)
    study, twin = study_for(plan), study_for(plan)
    good = received(study, 1)
    for each in (study, twin):
        for number, values in enumerate((received(study, 0), good)):
            each.train(asked(plan, number), values)

    study.train(asked(plan, 2), received(study, 2, size=3.0))
    found = study.train(asked(plan, 3, returned_to=1), good)

    expected = twin.train(asked(plan, 3), good)
    assert payload(found) == payload(expected)


@by_method
def test_a_site_that_restarts_in_between_returns_alike(name: str) -> None:
    """The saved state holds what was accepted and the way back to it."""
    plan = plan_with(name)
    study, restarted = study_for(plan), study_for(plan)
    good = received(study, 1)
    for number, values in enumerate((received(study, 0), good, received(study, 2, size=3.0))):
        study.train(asked(plan, number), values)
    restarted.restore(study.saved())

    found = [payload(each.train(asked(plan, 3, returned_to=1), good)) for each in (study, restarted)]

    assert found[0] == found[1]


def test_a_return_to_other_parameters_is_refused() -> None:
    """A coordinator cannot name a return to bring in parameters that no site has accepted."""
    plan = plan_with("fedavg")
    study = study_for(plan)
    for number in range(3):
        study.train(asked(plan, number), received(study, number))

    with pytest.raises(MalformedMessage, match="accepted last"):
        study.train(asked(plan, 3, returned_to=1), received(study, 7))


def test_a_site_refuses_what_no_rule_makes_of_clipped_changes() -> None:
    """However good the model: the numbers have moved farther than the clipping range."""
    plan = plan_with("fedavg", encoding={"clipping_range": 0.5})
    study = study_for(plan)
    first = received(study, 0)
    study.train(asked(plan, 0), first)
    far = first.copy()
    far[0] += 0.75

    assert not any(study.train(asked(plan, 1), first).scalars)
    assert any(study.train(asked(plan, 2), far).scalars)


def test_a_site_without_anything_to_compare_accepts() -> None:
    """It enters late, or was away for a round, and receives parameters that it would refuse otherwise."""
    plan = plan_with("fedavg")
    entered_late, was_away, present = (study_for(plan) for _ in range(3))
    start, good, bad = received(present, 0), received(present, 1), received(present, 2, size=30.0)
    for study, numbers in ((was_away, (0,)), (present, (0, 1))):
        for number in numbers:
            study.train(asked(plan, number), (start, good)[number])

    found = [any(study.train(asked(plan, 2), bad).scalars) for study in (entered_late, was_away, present)]

    assert found == [False, False, True]


def test_training_rows_are_tested_as_far_as_a_small_site_needs_them() -> None:
    """All validation rows, and as many training rows, or all up to 200."""
    training = study_for(plan_with("fedavg"))._training

    validation, others = training.own_rows

    assert len(validation) == len(training.rows.validation)
    assert len(others) == min(len(training.rows.training), max(200, len(validation)))
    assert len(training.measured()[1]) == len(validation) + len(others)


def test_the_result_is_the_accepted_model_where_the_last_one_was_refused() -> None:
    """A result that names a return takes back what the validation round had brought."""
    plan = plan_with("fedavg", checkpoint="latest")
    study = study_for(plan)
    good, bad = received(study, 1), received(study, 2, size=3.0)
    for number in range(plan.schedule.rounds):
        study.train(asked(plan, number), good)
    last = plan.schedule.rounds

    study.train(Asked(round=last, stage=Stage.VALIDATION), bad)
    for _ in range(2):  # a result may come twice
        study.close(Asked(round=last + 1, stage=None, returned_to=last - 1), good)

    outcome = study.conclude()
    kept = np.concatenate([outcome.values[tensor.name].ravel() for tensor in study.manifest.tensors])
    assert np.array_equal(kept, good)
