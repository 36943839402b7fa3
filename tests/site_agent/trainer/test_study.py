"""A plan at a site: its output, its refusals, and the model that it keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protos.wire.messages import MalformedMessage
from site_agent.desk.results.network_baselines import train_alone
from site_agent.trainer.requests import Asked
from tests.for_each import for_each
from tests.site_agent.trainer.sites import (
    NAMES,
    conclude,
    fingerprint,
    first_values,
    make_plan,
    make_site,
    make_study,
    numbers_of,
    update_of,
    values_of,
)

REPOSITORY = Path(__file__).parents[3]


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


@pytest.mark.slow  # two processes
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
