"""A whole run at its sites: probe, training, the end, whether early or late, and the resulting model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protos.wire.messages import MalformedMessage
from site_agent.trainer.requests import Asked
from tests.for_each import for_each
from tests.site_agent.trainer.methods.tiny import (
    DEEP,
    HELD_OUT,
    Federation,
    Named,
    check,
    scalars_of,
    schedule,
    tiny_plan,
)


def _loss(values: Named, rows: Any, targets: Any) -> float:
    """Of the tiny MLP, written out."""
    hidden = np.tanh(np.array(rows) @ values["input.layer1.weight"].T + values["input.layer1.bias"])
    logits = (hidden @ values["head.layer2.weight"].T + values["head.layer2.bias"]).ravel()
    return float(np.mean(np.logaddexp(0.0, logits) - np.array(targets) * logits))


def _federate(**changes: Any) -> tuple[Federation, dict[int, dict[str, Named]]]:
    """Run a federation to its end. Return what each site used when it began a round."""
    federation, seen = Federation(tiny_plan(**({"method": "fedper", "outputs": None} | changes))), {}
    for number in range(federation.plan.rounds):
        if number >= federation.run.terms.rounds:
            break
        asked, down = federation.asked(number), federation.down(number)
        answers = {site: study.train(asked, down) for site, study in federation.studies.items()}
        federation.close(number, answers)
        seen[number] = {}
        for site, study in federation.studies.items():
            measured = study.choice.curve[-1:]
            waits = study.choice._waiting
            if measured and measured[0].round == number and waits is not None:
                layout = study._training.flat
                kept = layout.state()
                layout.restore(waits[1])
                seen[number][site] = federation.own(site)
                layout.restore(kept)
    federation.finish()
    return federation, seen


@for_each("seed", range(12))
def test_every_site_ends_with_the_round_that_was_best_over_all(seed: int) -> None:
    """The coordinator's mean of the sites' losses says which; the last aggregate and the one before it included."""
    # Some seeds learn slowly, some overshoot, so that every round is the best of some.
    rate, rounds = {"name": "sgd", "learning_rate": (0.2, 3.0, 10.0)[seed % 3]}, schedule(4, steps=1)
    federation, seen = _federate(start={"seed": seed}, checkpoint="global", schedule=rounds, optimiser=rate)

    curve = dict(federation.run.course.curve)
    best = min(curve, key=lambda number: curve[number])
    assert sorted(curve) == [1, 2, 3, 4]
    for number, loss in curve.items():
        assert loss == pytest.approx(np.mean([_loss(values, *HELD_OUT) for values in seen[number].values()]), abs=1e-6)
    for site, study in federation.studies.items():
        outcome = study.conclude()
        assert outcome.choice["round"] == best == federation.run.course.best_round
        check({name: array.astype(float) for name, array in outcome.values.items()}, seen[best][site], 0.0)


def test_the_scalars_of_a_measured_round_are_the_sites_own_measurement() -> None:
    """Weight and loss of the model as it was received, in training rounds and after the last."""
    federation = Federation(tiny_plan("fedavg", checkpoint="global", schedule=schedule(3, steps=1)))

    for number in range(4):
        values = federation.shared
        asked, down = federation.asked(number), federation.down(number)
        answers = {site: study.train(asked, down) for site, study in federation.studies.items()}
        for answer in answers.values():
            found = scalars_of(federation, number, answer)
            assert number > 0 or found == {}
            if number:
                assert found["validation weight"] == 1
                assert found["validation loss"] / 2**32 == pytest.approx(_loss(values, *HELD_OUT), abs=1e-6)
        federation.close(number, answers)

    again = {site: study.train(asked, down) for site, study in federation.studies.items()}
    assert {site: answer.scalars for site, answer in again.items()} == {s: a.scalars for s, a in answers.items()}


def test_no_probe_once_training_has_begun() -> None:
    """The measurement would be of a trained model, and of this site alone."""
    federation = Federation(tiny_plan("player-fl", architecture=DEEP))
    probe = federation.asked(0)
    federation.round(0)
    federation.round(1)

    for study in federation.studies.values():
        with pytest.raises(MalformedMessage, match="probe after training"):
            study.train(probe, np.empty(0, np.float32))


@pytest.mark.parametrize("changed", [b"\x01", b"\x02", b"\x04"])
def test_chosen_layers_stay_the_chosen_ones(changed: bytes) -> None:
    """Neither more, nor fewer, nor layers without those below them, nor layers that do not exist."""
    federation = Federation(tiny_plan({"name": "player-fl", "threshold": 1e6}, architecture=DEEP))
    for number in range(2):
        federation.round(number)
    study = federation.studies["ahus"]
    before = study._training.flat.state()

    for size in (6, 9, 15):
        values = np.zeros(size, np.float32)
        with pytest.raises(MalformedMessage):
            study.train(Asked(round=2, layers=changed), values)
        with pytest.raises(MalformedMessage):
            study.close(Asked(round=5, stage=None, layers=changed), values)

    after = study._training.flat.state()
    assert all(np.array_equal(after[name].numpy(), before[name].numpy()) for name in before)


def test_the_last_aggregate_is_taken_in_once() -> None:
    """Whether it comes with the validation round, the report, the result, or with all of them."""
    method = {"name": "global-layers", "update_rate": 0.3}
    changes: dict[str, Any] = {"architecture": DEEP, "columns": None, "outputs": None}
    federation = Federation(tiny_plan(method, checkpoint="global", **changes))
    for number in range(4):
        federation.round(number)
    study, last = federation.studies["ahus"], np.array(federation.run.result()[1])
    before = federation.own("ahus")

    for number in (4, 5):
        study.close(Asked(round=number, stage=None), last)

    check(federation.own("ahus"), before, 0.0)
    assert [measured.round for measured in study.choice.curve] == [1, 2, 3]
