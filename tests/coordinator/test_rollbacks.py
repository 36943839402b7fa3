"""The coordinator's decisions from refusals: the round of return, the number of rollbacks, and no other effect."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.phases import Gathering
from coordinator.rounds.rollbacks import told_of_rollbacks
from coordinator.rounds.run import Run, new_run, terms_of
from coordinator.storage.snapshots import Snapshot, read_snapshot, write_snapshot
from protos.numbers.refusals import refusal
from protos.plan.exchange import stage_at
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from tests.for_each import for_each
from tests.laws.catalogue import catalogue_plan

SITES = ("ahus", "berlin", "cluj", "delft", "espoo")
ACCEPTANCE = {"rule": "held-out-loss", "quorum": 4, "standard_errors": 2.0, "largest_rise": 0.2}
METHODS = ("fedavg", "fedadam", "scaffold", "player-fl", "global-layers")


def plan_of(name: str, **changes: Any) -> Plan:
    """Five sites of which four have to accept, in four rounds and one that only measures."""
    sites = [{"name": site, "identity": "-".join(["aaa" + site[0]] * 8)} for site in SITES]
    return catalogue_plan(name, **{"sites": sites, "quorum": 4, "acceptance": ACCEPTANCE} | changes)


def begun(plan: Plan) -> Run:
    """A run before its first round."""
    return new_run(plan, terms_of(plan), Gathering(deadline=0.0))


def close(
    run: Run,
    number: int,
    refusing: int = 0,
    *,
    seed: int = 0,
    resample: int = 0,
    ring: bool = False,
    lies: bool = False,
) -> None:
    """One round: five drawn contributions, in an order that follows from the seed; so many sites refuse.

    If `lies`, one site sends drawn numbers in the place of its answer, which count as refusals of all sites.
    """
    exchange = run.offered(number).exchange
    run.begin_sum(number, SITES)
    for place in np.random.default_rng(seed).permutation(len(SITES)):
        generator = np.random.default_rng([number, int(place)])
        buffer = bytearray(exchange.layout.total_bytes)
        body = exchange.layout.body(buffer, 0)
        words, powers = exchange.layout.words(body, 0), iter(refusal(int(generator.integers(1 << 60)), 99))
        refuses = place < refusing
        own = [next(powers) if scalar.name.startswith("refusal ") and refuses else 0 for scalar in exchange.scalars]
        if lies and not place:
            own = [int(generator.integers(1 << 54)) for _ in own]
        words[0], words[1:] = 1, own
        limit = (1 << 31) - 1 if ring and not place else 1 << 20
        exchange.layout.updates(body, 0)[:] = generator.integers(limit - 10, limit, exchange.layout.parameters)
        run.running_sum.add(SITES[place], 0, body)
    assert run.is_consistent
    run.close_round(number, resample=resample)


def bits(run: Run) -> bytes:
    """All that the next round depends on."""
    memory = b"".join(array.tobytes() for _, array in sorted(run.rule_state.items()))
    return run.values.tobytes() + memory


@pytest.mark.parametrize("name", METHODS)
@for_each("order", range(3))
def test_refused_parameters_give_way_to_the_accepted_ones(name: str, order: int) -> None:
    """To the bit, the rule's memory included, whatever the order of arrival; the offer names the round."""
    plan = plan_of(name)
    run, first = begun(plan), plan.has_probe
    for number in range(first + 1):
        close(run, number, seed=order)
    before = bits(run)
    close(run, first + 1, seed=order)

    close(run, first + 2, refusing=2, seed=order)

    assert bits(run) == before
    assert run.offered(first + 3).offer.returned_to == first + 1
    (rollback,) = run.course.rollbacks
    assert (rollback.round, rollback.returned_to, rollback.refusals) == (first + 2, first + 1, 2)


@for_each("refusing", range(6))
def test_the_quorum_decides(refusing: int) -> None:
    """Four of five have to accept."""
    run = begun(plan_of("fedavg"))
    close(run, 0)
    close(run, 1, refusing=refusing)

    assert bool(run.course.rollbacks) is (refusing >= 2)


def in_rounds(rounds: int, patience: int) -> Plan:
    """FedAvg with this number of training rounds."""
    schedule = {"aggregate": "every-steps", "rounds": rounds, "steps_per_round": 4, "batch_rows": 4}
    return plan_of("fedavg", schedule=schedule, acceptance=ACCEPTANCE | {"patience": patience})


def test_the_last_of_the_plans_rollbacks_ends_the_training_with_what_was_accepted() -> None:
    """The round after it only measures, and the result is what the sites accepted; the status says what to do."""
    run = begun(in_rounds(9, patience=2))
    close(run, 0)
    accepted = bits(run)
    close(run, 1)
    close(run, 2, refusing=3)
    close(run, 3)

    close(run, 4, refusing=3)

    assert bits(run) == accepted
    assert run.course.training_rounds == 5
    assert run.offered(5).offer.stage is Stage.VALIDATION
    close(run, 5)
    assert run.result()[1].tobytes() == accepted
    (text,) = told_of_rollbacks(run.plan, run.course)
    assert "rolled back 2 times" in text
    assert "the rollback number 2 in a row" in text
    assert "new version of the plan" in text


def test_refusals_of_different_causes_do_not_end_the_training() -> None:
    """Between two rollbacks other parameters were accepted, so each is the first for its own."""
    run = begun(in_rounds(9, patience=2))
    for number, refusing in enumerate((0, 0, 2, 0, 0, 0, 2, 0, 0)):
        close(run, number, refusing=refusing)

    assert [rollback.round for rollback in run.course.rollbacks] == [2, 6]
    assert run.course.training_rounds is None


@for_each("seed", range(40))
def test_one_site_that_lies_needs_two_rounds_for_each_rollback(seed: int) -> None:
    """In drawn rounds one site fakes refusals; parameters that came again stand, and only patience in a row ends it."""
    generator, rounds = np.random.default_rng(seed), 16
    patience, share = int(generator.integers(2, 5)), float(generator.choice([0.3, 0.7, 1.0]))
    run = begun(in_rounds(rounds, patience))
    expected, in_a_row, ended = [], 0, None
    for number in range(rounds):
        lies, has_returned = bool(generator.random() < share), number - 1 in expected
        if number and lies and not has_returned:
            expected.append(number)
            in_a_row += 1
        elif not has_returned:
            in_a_row = 0
        close(run, number, lies=lies)
        if in_a_row == patience:
            ended = number + 1
            break

    assert [rollback.round for rollback in run.course.rollbacks] == expected
    assert run.course.training_rounds == ended
    assert ended is None or ended >= 2 * patience


def test_a_sum_that_no_clipped_changes_make_is_dropped() -> None:
    """The parameters that it was trained from stay accepted, and come again."""
    run = begun(plan_of("fedavg"))
    close(run, 0)
    before = bits(run)

    close(run, 1, ring=True)

    assert bits(run) == before
    assert run.offered(2).offer.returned_to == 1
    assert run.course.rollbacks[0].refusals == 0


def test_a_round_that_was_drawn_again_decides_nothing() -> None:
    """Its sums carry no answers; the next measured round decides about what came of it."""
    run = begun(plan_of("fedavg"))
    close(run, 0)
    close(run, 1)
    accepted = bits(begun_with(run))

    close(run, 2, resample=3)
    close(run, 3, refusing=2)

    assert bits(run) == accepted
    assert run.course.rollbacks[0].returned_to == 1


def begun_with(run: Run) -> Run:
    """A run with the state to which this one would return."""
    other = begun(run.plan)
    assert run.accepted is not None
    other._become(replace(run.accepted, round=run.rounds_made, course=run.course))
    return other


@pytest.mark.parametrize("name", METHODS)
@for_each("stop", range(1, 5))
def test_a_run_that_is_taken_up_from_disk_returns_alike(name: str, stop: int, tmp_path: Path) -> None:
    """A snapshot before any round holds to what the run may return, so every later bit is the same."""
    plan = plan_of(name)
    straight, resumed = begun(plan), begun(plan)
    pattern = {plan.has_probe + 2: 2}

    for number in count():
        if stage_at(plan, number, straight.course.training_rounds) is None:
            break
        close(straight, number, refusing=pattern.get(number, 0))
        close(resumed, number, refusing=pattern.get(number, 0))
        if number + 1 == stop:
            write_snapshot(tmp_path, snapshot_of(resumed, number + 1))
            resumed = begun(plan)
            resumed.go_back(read_snapshot(tmp_path, number + 1))

    assert bits(straight) == bits(resumed)
    assert straight.course == resumed.course


def snapshot_of(run: Run, number: int) -> Snapshot:
    """The run before a round."""
    return Snapshot(run.before(number), frozenset(SITES), resample=0, accepted=run.accepted)
