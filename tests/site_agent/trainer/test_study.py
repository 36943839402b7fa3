"""A plan at a site: its output, its refusals, and the model that it keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protos.plan.plan import Plan
from protos.wire.messages import MalformedMessage
from site_agent.desk.results.network_baselines import train_alone
from site_agent.trainer.study import Asked, Study
from tests.for_each import for_each
from tests.site_agent.trainer.sites import (
    NAMES,
    at_the_end,
    conclude,
    fingerprint,
    first_values,
    make_plan,
    make_site,
    make_study,
    numbers_of,
    run_rounds,
    update_of,
    values_of,
)

REPOSITORY = Path(__file__).parents[3]
OWN_FAMILIES = (slice(0, 5), slice(5, 12), slice(12, 16))


def _three(folder: Path, plan: Plan) -> list[Study]:
    configs = [make_site(folder / name, name, columns=own) for name, own in zip(NAMES, OWN_FAMILIES, strict=True)]
    return [make_study(config, plan) for config in configs]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@for_each("seed", range(1))
def test_the_same_seed_gives_the_same_bits(tmp_path: Path, seed: int, dropout: float) -> None:
    """Also when one of the two trains alone in between."""
    architecture = make_plan().architecture.model_dump() | {"dropout": dropout}
    plan = make_plan(start={"seed": seed}, architecture=architecture)
    config = make_site(tmp_path)
    outcomes = []

    for is_disturbed in (False, True):
        study = make_study(config, plan)
        shared = first_values(plan, study)
        for number in range(plan.schedule.rounds):
            shared = shared + update_of(study, number, shared)
            if is_disturbed:
                train_alone(study)
        outcomes.append(fingerprint(conclude(study, shared)))

    assert outcomes[0] == outcomes[1]


PROGRAM = """
import sys
from pathlib import Path
from tests.site_agent.trainer.sites import conclude, fingerprint, make_plan, make_study, run_rounds
plan = make_plan(architecture=make_plan().architecture.model_dump() | {"dropout": 0.2})
study = make_study(Path(sys.argv[1]), plan)
print(fingerprint(conclude(study, run_rounds(plan, [study]))))
"""


@pytest.mark.slow  # two trainers' processes also give the same bits, in test_worker.py
def test_two_fresh_processes_give_the_same_bits(tmp_path: Path) -> None:
    """Nothing of a process's own, such as hash seeds, enters the result."""
    config = make_site(tmp_path)
    words = [sys.executable, "-c", PROGRAM, str(config)]

    printed = [subprocess.run(words, capture_output=True, check=True, cwd=REPOSITORY).stdout for _ in range(2)]

    results = {lines.splitlines()[-1] for lines in printed}  # above them is a log, with the time of day
    assert len(results) == 1
    assert len(results.pop()) == 64


def test_sites_differ_in_what_is_theirs_and_start_equal_in_what_is_shared(tmp_path: Path) -> None:
    """The body equals the plan's and the coordinator's to the bit. Each site draws its private layers itself."""
    plan = make_plan()
    one, other = (make_study(make_site(tmp_path / name, name), plan) for name in NAMES[:2])

    first, second = values_of(one), values_of(other)

    federated = {tensor.name for tensor in one.manifest.tensors}
    assert federated == {name for name in first if name.startswith("body.")}
    assert all(np.array_equal(first[name], second[name]) for name in federated)
    assert not np.array_equal(first["head.output.linear.weight"], second["head.output.linear.weight"])
    body = [first[tensor.name].ravel() for tensor in one.manifest.tensors]
    np.testing.assert_array_equal(np.concatenate(body), first_values(plan, one))


@for_each("seed", range(3))
def test_two_sites_meet_at_the_mean(tmp_path: Path, seed: int) -> None:
    """After a round of Global Layers every body is the mean of the bodies, and nothing private moved."""
    plan = make_plan(start={"seed": seed})
    studies = _three(tmp_path, plan)[:2]
    shared = first_values(plan, studies[0])
    updates = [update_of(study, 0, shared) for study in studies]
    before = [values_of(study) for study in studies]

    following = (shared + np.mean(np.float64(updates), axis=0)).astype(np.float32)
    for study in studies:
        study.close(at_the_end(plan), following)

    for study, own in zip(studies, before, strict=True):
        for name, value in values_of(study).items():
            if name.startswith("body."):
                np.testing.assert_allclose(value, (before[0][name] + before[1][name]) / 2, atol=1e-6)
            else:
                np.testing.assert_array_equal(value, own[name])


@for_each("seed", range(5))
def test_a_change_is_the_bodys_in_the_manifests_order(tmp_path: Path, seed: int) -> None:
    """Received plus update is the trained body; of the private tensors nothing is in it."""
    plan = make_plan(start={"seed": seed})
    study = make_study(make_site(tmp_path), plan)
    received = first_values(plan, study)

    update = update_of(study, 0, received)

    values = values_of(study)
    body = [values[tensor.name].ravel() for tensor in study.manifest.tensors]
    np.testing.assert_array_equal(update, np.concatenate(body) - received)
    assert update.size == sum(array.size for name, array in values.items() if name.startswith("body."))


@pytest.mark.parametrize("aggregate", ["every-batch", "every-epoch", "every-round"])
@pytest.mark.parametrize("checkpoint", ["local", "latest"])
def test_alone_is_method_local_to_the_bit(tmp_path: Path, aggregate: str, checkpoint: str) -> None:
    """With every schedule and rule; and for Global Layers the baseline is the very same training."""
    schedule: dict[str, object] = {"aggregate": aggregate, "epochs": 4, "batches_per_epoch": 3}
    schedule |= {"epochs_per_round": 2} if aggregate == "every-round" else {}
    config = make_site(tmp_path)
    alone_plan = make_plan(method={"name": "local"}, schedule=schedule, checkpoint=checkpoint)
    study = make_study(config, alone_plan)
    shared = make_study(config, make_plan(schedule=schedule, checkpoint=checkpoint))

    federated = conclude(study, run_rounds(alone_plan, [study]))
    baselines = [train_alone(study), train_alone(shared)]

    assert study.manifest.tensors == ()
    for alone in baselines:
        assert alone is not None
        assert fingerprint(alone) == fingerprint(federated)


def test_the_choice_is_made_at_borders_of_epochs(tmp_path: Path) -> None:
    """With an aggregation after every batch, as often as there are epochs; the last aggregate included."""
    plan = make_plan(schedule={"aggregate": "every-batch", "epochs": 3, "batches_per_epoch": 4})
    study = make_study(make_site(tmp_path), plan)

    outcome = conclude(study, run_rounds(plan, [study]))

    assert [number for number, _ in outcome.choice["validation_losses"]] == [4, 8, 12]


@pytest.mark.parametrize("checkpoint", ["local", "latest"])
def test_the_rule_decides_which_round_is_kept(tmp_path: Path, checkpoint: str) -> None:
    """`local` keeps the lowest validation loss, `latest` the last aggregate with the site's last layers."""
    plan = make_plan(checkpoint=checkpoint, optimiser={"name": "adamw", "learning_rate": 0.05})
    study = make_study(make_site(tmp_path), plan)

    last = run_rounds(plan, [study])
    outcome = conclude(study, last)

    losses = dict(outcome.choice["validation_losses"])
    assert set(losses) == {1, 2, 3}
    assert outcome.choice["round"] == (3 if checkpoint == "latest" else min(losses, key=lambda number: losses[number]))
    if checkpoint == "latest":
        body = np.concatenate([outcome.values[tensor.name].ravel() for tensor in study.manifest.tensors])
        np.testing.assert_array_equal(body, last)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_late_entrant_starts_from_what_the_others_have(tmp_path: Path, rate: float) -> None:
    """Its first shared values overwrite, later ones mix by the update rate; it is tested as the others."""
    plan = make_plan(
        method={"name": "global-layers", "update_rate": rate}, checkpoint="latest",
        schedule={"aggregate": "every-batch", "epochs": 3, "batches_per_epoch": 4},
    )  # fmt: skip
    study = make_study(make_site(tmp_path), plan)
    received = first_values(plan, study) + np.float32(0.01)

    update = update_of(study, 5, received)
    own = received + update
    following = received - np.float32(0.02)
    update_of(study, 6, following)
    outcome = conclude(study, following)

    assert abs(update).max() < 0.01  # so it did not start from its own first values
    assert own.shape == following.shape
    assert [number for number, _ in outcome.choice["validation_losses"]] == [12]
    if rate == 1.0:
        body = np.concatenate([outcome.values[tensor.name].ravel() for tensor in study.manifest.tensors])
        np.testing.assert_array_equal(body, following)


def test_the_update_rate_weighs_the_shared_value(tmp_path: Path) -> None:
    """From the second round on a site keeps one minus the rate of its own."""
    plan = make_plan(method={"name": "global-layers", "update_rate": 0.25})
    study = make_study(make_site(tmp_path), plan)
    received = first_values(plan, study)
    own = received + update_of(study, 0, received)
    following = received + np.float32(1.0)

    study.close(at_the_end(plan), following)

    mixed = np.concatenate([values_of(study)[tensor.name].ravel() for tensor in study.manifest.tensors])
    np.testing.assert_allclose(mixed, 0.75 * own + 0.25 * following, atol=1e-6)


@pytest.mark.parametrize("asked", [0, 1, 3, 100, -1])
def test_a_round_is_trained_once_and_in_order(tmp_path: Path, asked: int) -> None:
    """A completed round, an earlier one, or one outside the plan is refused, and nothing changes."""
    plan = make_plan()
    study = make_study(make_site(tmp_path), plan)
    received = first_values(plan, study)
    update_of(study, 1, received)
    before = numbers_of(study)

    with pytest.raises(MalformedMessage):
        study.train(Asked(round=asked), received)

    assert numbers_of(study) == before


def test_sites_that_start_by_themselves_meet_in_the_first_mean(tmp_path: Path) -> None:
    """With `start: own` the received first values are not taken in; from the first mean on all sites agree."""
    plan = make_plan(start={"name": "own", "seed": 11})
    studies = [make_study(make_site(tmp_path / name, name), plan) for name in NAMES]
    received = first_values(plan, studies[0])

    updates = [study.train(Asked(round=0), received).updates for study in studies]
    shared = received + np.mean(updates, axis=0)
    again = [study.train(Asked(round=1), shared.astype(np.float32)).updates for study in studies]

    starts_apart = [np.abs(one - updates[0]).max() for one in updates[1:]]
    assert min(starts_apart) > 0.05  # of two random first values, not of one epoch
    assert max(np.abs(update).max() for update in again) < min(starts_apart)
