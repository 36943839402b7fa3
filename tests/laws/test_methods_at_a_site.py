"""Laws for every method at a site: what it sends, what can be repeated, and what a saved state restores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from protos.plan.ingredients import Method, SensitivePrefix, Together
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.desk.results.network_baselines import train_alone
from site_agent.trainer.disk import SavedStudy
from site_agent.trainer.requests import Answer, Asked
from site_agent.trainer.site_network import Seeds, SiteTraining, begin_training, rows_of
from site_agent.trainer.study import Study
from site_agent.trainer.training.flat_network import State, Vector
from tests.for_each import in_turns, some
from tests.laws.catalogue import NAMES, SITES, catalogue_plan, rows_at
from tests.site_agent.trainer.methods.tiny import Federation, scalars_of

by_method = pytest.mark.parametrize("name", NAMES)
by_second_method = pytest.mark.parametrize("name", some(NAMES, 2))  # continuous integration runs the others


def _federation(plan: Plan) -> Federation:
    return Federation(plan, {site: rows_at(site) for site in SITES})


def _bits(state: State) -> dict[str, bytes]:
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in state.items()}


def _payload(answer: Answer) -> bytes:
    return answer.updates.tobytes() + np.array(answer.scalars, "<i8").tobytes()


def _training(study: Study) -> SiteTraining:
    return study._training


def _private_numbers(study: Study, federation: Federation, number: int) -> set[bytes]:
    """Every float32 in what the site keeps, models, copies, control variates and the optimisers' memory. Public values
    are left out: 0, 1 and the received values."""
    kept = [tensor for tensor in _training(study).local.state().values() if tensor.dtype == torch.float32]
    known = {np.float32(value).tobytes() for value in (0.0, 1.0, -1.0, *federation.down(number).tolist())}
    return {value.tobytes() for tensor in kept for value in tensor.flatten().numpy()} - known


@by_method
def test_no_number_that_a_site_keeps_is_in_an_answer(name: str) -> None:
    """Neither before nor after a round: private layers, personal models, c_i, the share, moments of optimisers."""
    federation = _federation(catalogue_plan(name, checkpoint="latest" if name == "local" else "global"))
    looked_for = 0

    for number in range(federation.plan.rounds):
        stage = federation.asked(number).stage
        before = {site: _private_numbers(study, federation, number) for site, study in federation.studies.items()}
        down = federation.down(number)
        asked = federation.asked(number)
        answers = {site: study.train(asked, down) for site, study in federation.studies.items()}
        for site, answer in answers.items():
            kept = before[site] | _private_numbers(federation.studies[site], federation, number)
            payload = _payload(answer)
            words = {payload[place : place + 4] for place in range(0, len(payload), 4)}
            assert not kept & words
            looked_for += len(kept)
            if stage is not Stage.TRAINING:
                assert answer.updates.size == 0
        federation.close(number, answers)

    assert looked_for > 100


@by_method
def test_a_change_is_the_federated_tensors_minus_what_was_received(name: str) -> None:
    """In the exchange's order and length, to the bit."""
    federation = _federation(catalogue_plan(name))

    for number in range(federation.plan.rounds):
        asked, down = federation.asked(number), federation.down(number)
        answers = {site: study.train(asked, down) for site, study in federation.studies.items()}
        exchange = federation.run.offered(number).exchange
        received = dict(zip([t.name for t in exchange.down], _cut(down, exchange.down), strict=True))
        for site, answer in answers.items():
            values = _training(federation.studies[site]).flat.values()
            scalars = scalars_of(federation, number, answer)
            for tensor, update in zip(exchange.up, _cut(answer.updates, exchange.up), strict=True):
                assert np.array_equal(update, values[tensor.name].ravel() - received[tensor.name])
            for scalar in exchange.scalars:
                assert scalar.name == "rows" or 0 <= scalars[scalar.name] <= scalar.bound
        federation.close(number, answers)


def _cut(vector: Vector, tensors: Any) -> list[Vector]:
    ends = np.cumsum([tensor.number_count for tensor in tensors])
    return np.split(vector[: ends[-1] if len(ends) else 0], ends[:-1]) if len(ends) else []


def _first_training_rounds(federation: Federation, count: int) -> int:
    """Make the probe and this number of training rounds; return the number of the next."""
    following = federation.plan.has_probe + count
    for number in range(following):
        federation.round(number)
    return following


@by_second_method
def test_what_else_trains_in_the_process_changes_no_bit(name: str) -> None:
    """Another federation's rounds, this site's training alone, measuring, and draws from the process's generator."""
    plan = catalogue_plan(name, dropout=0.2)
    quiet, disturbed, other = (
        _federation(plan),
        _federation(plan),
        _federation(catalogue_plan(name, start={"seed": 9}, dropout=0.2)),
    )

    for number in range(plan.has_probe + 2):
        expected = quiet.round(number)
        other.round(number)
        train_alone(disturbed.studies["ahus"])
        torch.rand(7)
        found = disturbed.round(number)
        _training(disturbed.studies["ahus"]).validation_losses()

        assert {site: _payload(answer) for site, answer in found.items()} == {
            site: _payload(answer) for site, answer in expected.items()
        }
    assert disturbed.run.values.tobytes() == quiet.run.values.tobytes()


def _restored(plan: Plan, study: Study) -> Study:
    """A fresh study that has of the other one only a state as a file would keep it."""
    saved = study.saved()
    content = save({name: tensor.contiguous() for name, tensor in saved.tensors.items()})
    fresh = Study(plan, rows_at(study.site), seeds=study.seeds)
    fresh.restore(SavedStudy(tensors=load(content), facts=saved.facts))
    return fresh


@pytest.mark.parametrize(("name", "made"), in_turns(NAMES, [1, 2], every=2))
def test_a_saved_state_brings_back_all_that_the_next_steps_depend_on(name: str, made: int) -> None:
    """As bytes of a safetensors file into a fresh study: every later answer and the last model have equal bits."""
    plan = catalogue_plan(name, dropout=0.2, masking={"bits": 16})
    federation, again = _federation(plan), _federation(plan)
    number = _first_training_rounds(federation, made)
    assert _first_training_rounds(again, made) == number
    again.studies = {site: _restored(plan, study) for site, study in again.studies.items()}

    for each in range(number, plan.has_probe + plan.schedule.rounds):
        expected, found = federation.round(each), again.round(each)
        assert [_payload(found[site]) for site in SITES] == [_payload(expected[site]) for site in SITES]
    for each in (federation, again):
        each.finish()

    for site in SITES:
        kept, restored = (each.studies[site] for each in (federation, again))
        assert _bits(_training(kept).local.state()) == _bits(_training(restored).local.state())
        used = [_training(study).local.evaluated().values() for study in (kept, restored)]
        assert all(np.array_equal(used[0][n], used[1][n]) for n in used[0])


def _equals_local_training(method: Method) -> bool:
    """Whether the method says that with one site alone nothing but the procedure's own steps are made."""
    return isinstance(method.procedure, Together) and method.penalty is None and not isinstance(
        method.federated, SensitivePrefix
    )  # fmt: skip


@pytest.mark.parametrize("name", [n for n in NAMES if _equals_local_training(catalogue_plan(n).ingredients)])
def test_one_site_alone_is_local_training_to_the_bit(name: str) -> None:
    """Its own values come back whole, so its rounds are one uninterrupted training, dropout included."""
    plan = catalogue_plan(name, dropout=0.2)
    study = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))
    flat, schedule = _training(study).flat, plan.schedule
    local = begin_training(study.networks, Method(), study.manifest.tensors, rows_of(study.dataset), study.seeds)
    own = study.manifest.initial_parameters(plan.seed)

    for number in range(schedule.rounds):
        study.train(Asked(round=number), own)
        own = flat.federated_values.numpy().copy()
    study.close(Asked(round=plan.rounds, stage=None), own)
    local.local.train_round(schedule.rounds * schedule.steps_per_round, torch.empty(0))

    assert torch.equal(flat.federated.data, local.flat.federated.data)
    assert torch.equal(flat.private.data, local.flat.private.data)
    assert schedule.rounds * schedule.steps_per_round == 16


@by_method
def test_equal_sites_are_one_site(name: str) -> None:
    """If every site has the same rows, seed and start, the mean equals each one's own model. A placebo brings
    nothing."""
    plan = catalogue_plan(name)
    study = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))
    twin = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))
    asked = Asked(round=0, stage=Stage.PROBE if plan.has_probe else Stage.TRAINING)
    down = study.exchange(asked).down_numbers
    values = study.manifest.initial_parameters(plan.seed)
    received = np.concatenate([values, np.zeros(down, np.float32)])[:down]

    answers = [each.train(asked, received) for each in (study, twin)]

    assert _payload(answers[0]) == _payload(answers[1])


@pytest.mark.parametrize("threshold", [1.0001, 1e6], ids=["first-layer", "all-but-the-last"])
def test_a_probe_leaves_no_trace(threshold: float) -> None:
    """A site that was probed, twice even, trains to the bit as one that was not; dropout is drawn as before."""
    plan = catalogue_plan("player-fl", dropout=0.3, method={"name": "player-fl", "threshold": threshold})
    federation, unprobed = _federation(plan), _federation(plan)
    states = [_bits(_training(study).local.state()) for study in federation.studies.values()]

    answers = [
        {site: study.train(federation.asked(0), federation.down(0)) for site, study in federation.studies.items()}
        for _ in range(2)
    ]
    after = [_bits(_training(study).local.state()) for study in federation.studies.values()]
    federation.close(0, answers[0])
    unprobed.run = federation.run

    assert {s: _payload(a) for s, a in answers[0].items()} == {s: _payload(a) for s, a in answers[1].items()}
    assert after == states
    asked, down = federation.asked(1), federation.down(1)
    for site in SITES:
        found, expected = (each.studies[site].train(asked, down) for each in (federation, unprobed))
        assert _payload(found) == _payload(expected)
        used = [_training(each.studies[site]).local.evaluated().values() for each in (federation, unprobed)]
        assert all(np.array_equal(used[0][n], used[1][n]) for n in used[0])
