"""The first parameters are the plan's to the last bit, whatever the coordinator announces or sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import ConfigurationError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Chunk, Offer
from protos.wire.positions import parameters_digest
from site_agent.trainer_socket import Train
from tests.federation import Vector, clear_plan
from tests.host.starting import random_values, write_starting_file
from tests.hostile.attacks_on_starts import PLAN as KEYS
from tests.hostile.test_lying_coordinator import assert_refused
from tests.rehearsal.study import parameter_chunks
from tests.scripted import Scripted, begun, scripted

PLAN = clear_plan(**KEYS)
RIGHT = manifest_of(PLAN).initial_parameters(PLAN.seed)


def offered(folder: Path, vector: Vector, digest: bytes, plan: Plan = PLAN, **rules: Any) -> Scripted:
    """Offer a site round 0 with these parameters, announced under this digest."""
    first = [Offer(0, 0, digest), *parameter_chunks(vector, 0), Bind(0, 0, ("a", "b", "c"), 0), Chunk]
    return scripted(folder, [*begun(plan), *first], approved=(plan,), **rules)


def with_a_bit_changed(vector: Vector, number: int) -> Vector:
    """The same parameters but for one bit of one."""
    wrong = vector.copy()
    wrong.view(np.uint32)[number] ^= 1
    return wrong


def assert_not_trained(site: Scripted) -> None:
    """The trainer was never asked for a round."""
    assert not [question for question in site.trainer.questions if isinstance(question, Train)]


@pytest.mark.parametrize("number", [0, 279, 280, 319])
@pytest.mark.parametrize("is_announced", [False, True])
def test_one_changed_bit_of_the_first_parameters_is_refused(tmp_path: Path, number: int, *, is_announced: bool) -> None:
    """Wrong values are refused under their own digest and under the right one, before anything is trained."""
    wrong = with_a_bit_changed(RIGHT, number)

    site = offered(tmp_path, wrong, parameters_digest(wrong if is_announced else RIGHT))

    assert_refused(site)
    assert_not_trained(site)


def test_the_first_parameters_of_a_starting_file_are_recomputed(tmp_path: Path) -> None:
    """The gate reads its own copy: the file's values are trained from, and neither the seed's nor other bits are."""
    values = random_values({"input.weight": (40, 7), "input.bias": (40,)})
    named = {"name": "file", "seed": 0, "sha256": write_starting_file(tmp_path / "files", values)}
    plan = clear_plan(**KEYS, start=named)
    right = np.concatenate([array.reshape(-1) for array in values.values()])
    np.testing.assert_array_equal(manifest_of(plan, values).initial_parameters(plan.seed), right)

    def site_with(name: str, vector: Vector, files: Path = tmp_path / "files") -> Scripted:
        rules = {"starting_file": "allow", "starting_files": str(files)}
        return offered(tmp_path / name, vector, parameters_digest(vector), plan, **rules)

    for name, vector in (("bit", with_a_bit_changed(right, 319)), ("seed", RIGHT)):
        assert_refused(site_with(name, vector))
    assert len(site_with("right", right).chunks) == 1
    missing = site_with("missing", right, tmp_path)
    assert isinstance(missing.error, ConfigurationError)
    assert not missing.chunks
    assert_not_trained(missing)
