"""One hostile site of five sends any values. The others refuse the resulting parameters.

Studies, sums, votes and rollbacks are the programs' own; the hostile site's vector is built by no gate. Each attack
succeeds against a named copy that lacks one protection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

import coordinator.rounds.rollbacks
import coordinator.rounds.run
from benchmarks.experiments.data.dealt_rows import dealt_rows
from benchmarks.experiments.hostile_site import Attack, Attacked, attacked
from benchmarks.experiments.plans import experiment_plan
from benchmarks.poisoning import plan_for
from protos.plan.plan import Plan
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.scalars import Measures
from site_agent.trainer.site_training import SiteTraining
from site_agent.trainer.training.batches import Rows

prepare_arithmetic(1)

HOSTILE: Final = "espoo"
BEGINS: Final = 3
ACCEPTANCE: Final = {"rule": "held-out-loss", "quorum": 4, "standard_errors": 1.5, "largest_rise": 0.2}


@cache
def rows() -> Mapping[str, Dataset]:
    """Five sites with 60 validation rows each."""
    return dealt_rows("made-up", 1)


def plan(**changes: Any) -> Plan:
    """FedAvg in seven rounds; sites may refuse."""
    keys: dict[str, Any] = {
        "method": {"name": "fedavg"},
        "architecture": {"name": "dense", "hidden": [16], "activation": "relu"},
        "columns": list(rows()[HOSTILE].columns),
        "outputs": 1,
        "schedule": {"aggregate": "every-epoch", "epochs": 7, "batches_per_epoch": 5},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "weighting": {"name": "equal"},
        "acceptance": ACCEPTANCE,
        # The model of the last round, so that nothing but the rollback keeps a bad one away.
        "checkpoint": "latest",
    }
    return experiment_plan(rows(), 1, **keys | changes)


@contextmanager
def with_votes_ignored() -> Iterator[None]:
    """The coordinator counts refusals and goes on all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator.rounds.run, "is_below_quorum", lambda *_: False)
        patch.setattr(coordinator.rounds.run.Run, "_is_in_range", lambda *_: True)
        yield


@contextmanager
def with_a_plain_count() -> Iterator[None]:
    """A site that accepts sends 1 and not the powers of a secret, so that any site can do so for the others."""
    with pytest.MonkeyPatch.context() as patch:
        honest = Measures.refusals

        def plain(self: Measures, secret: int | None) -> dict[str, int]:
            return dict.fromkeys(honest(self, None), 0) | {"refusal 1": int(secret is None)}

        patch.setattr(Measures, "refusals", plain)
        patch.setattr(coordinator.rounds.rollbacks, "count_refusals", lambda sums: max(0, len(rows()) - sums[0]))
        yield


def succeeds(attack: Attack, *, weakened: bool) -> bool:
    """Whether an attack makes the model that honest sites keep worse than a network that has learned nothing.

    Args:
        attack: what the hostile site does from round `BEGINS` on.
        weakened: against the copy that lacks what this attack meets.
    """
    copy = with_a_plain_count if attack is Attack.HIDE else with_votes_ignored
    with copy() if weakened else nullcontext():
        found = run(attack)
    return bool(np.mean(found.losses) > np.log(2.0))


def run(attack: Attack | None) -> Attacked:
    """A federation of which one site is hostile from round `BEGINS` on."""
    return attacked(plan(), rows(), attack, first=BEGINS, hostile=HOSTILE)


@pytest.mark.parametrize("weakened", [True, False], ids=["weakened", "ours"])
@pytest.mark.parametrize("attack", [Attack.REPLACE, Attack.RING, Attack.HIDE], ids=lambda attack: attack.name)
def test_no_site_owns_the_model(attack: Attack, weakened: bool) -> None:
    """A replaced model ends in every site's hands where votes are ignored or can be taken back, and nowhere else."""
    assert succeeds(attack, weakened=weakened) is weakened


@pytest.mark.parametrize("attack", [Attack.REPLACE, Attack.RING, Attack.HIDE], ids=lambda attack: attack.name)
def test_the_run_returns_within_one_round(attack: Attack) -> None:
    """The sum of the first hostile round is refused in it or in the next, and so is each later one."""
    found = run(attack)

    first, second, *_ = found.rollbacks
    assert first.returned_to == BEGINS
    assert first.round <= BEGINS + 1
    assert second.round <= BEGINS + 3


def validation_rows_alone(training: SiteTraining) -> tuple[Rows, Rows]:
    """What a site would test if it left its training rows out."""
    none = Rows(training.rows.training.features[:0], training.rows.training.targets[:0])
    return training.rows.validation, none


@pytest.mark.parametrize("weakened", [True, False], ids=["weakened", "ours"])
@pytest.mark.parametrize("seed", [3, 5])
def test_tiny_sites_refuse_a_change_that_is_sent_a_hundred_times(
    seed: int, weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites with 68 training rows and 23 validation rows return within a round, and not if they test 23 rows alone."""
    if weakened:
        monkeypatch.setattr(SiteTraining, "own_rows", property(validation_rows_alone))
    sites = dealt_rows("breast-cancer", seed)

    found = attacked(plan_for("fedavg", sites, seed, epochs=6), sites, Attack.SCALE, first=4, hostile=HOSTILE)

    assert any(rollback.round == 5 for rollback in found.rollbacks) is not weakened


@pytest.mark.parametrize("weakened", [True, False], ids=["weakened", "ours"])
@pytest.mark.parametrize("seed", [3, 5])
def test_honest_training_that_overfits_is_not_refused(
    seed: int, weakened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 53 training rows the validation loss rises; sites that test validation rows alone refuse honest changes."""
    if weakened:
        monkeypatch.setattr(SiteTraining, "own_rows", property(validation_rows_alone))
    sites = dealt_rows("diabetes", seed)

    found = attacked(plan_for("global-layers", sites, seed, epochs=12), sites)

    assert bool(found.rollbacks) is weakened


def refuses_for_a_while() -> Attacked:
    """One site fakes refusals of all sites for four rounds of eleven, then stops."""
    schedule = {"aggregate": "every-epoch", "epochs": 11, "batches_per_epoch": 5}
    return attacked(plan(schedule=schedule), rows(), Attack.REFUSE, first=BEGINS, last=BEGINS + 3, hostile=HOSTILE)


def test_a_site_that_refuses_for_a_while_does_not_end_the_training() -> None:
    """The run goes on to its last round and has lost four."""
    found = refuses_for_a_while()

    assert [rollback.round for rollback in found.rollbacks] == [BEGINS, BEGINS + 2]
    assert found.training_rounds is None
    assert abs(np.mean(found.losses) - np.mean(run(None).losses)) < 0.05  # as after the seven rounds that were left


def test_what_a_site_adopts_is_no_worse_than_the_network_that_it_trains_alone() -> None:
    """A slow drift is not refused. It removes the gain from joining, but never changes a bit of the network alone."""
    found = attacked(plan(), rows(), Attack.DRIFT, first=BEGINS, hostile=HOSTILE, trains_alone=True)
    honest = attacked(plan(), rows(), hostile=HOSTILE, trains_alone=True)

    assert found.rollbacks == ()
    assert found.alone == honest.alone
    assert np.mean(found.losses) - np.mean(honest.losses) > 0.1
    assert np.mean(found.adopted) - np.mean(honest.adopted) < 0.05


def test_a_federation_of_honest_sites_is_never_rolled_back() -> None:
    """The same plan, data and seed without an attack."""
    assert run(None).rollbacks == ()


def test_the_same_bits_with_and_without_votes() -> None:
    """If no site refuses, the models are those of the plan without acceptance."""
    with_votes, without = run(None), attacked(plan(acceptance=None), rows(), hostile=HOSTILE)

    assert with_votes.losses == without.losses
