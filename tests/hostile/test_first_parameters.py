"""The first parameters are the plan's to the last bit, whatever the coordinator announces or sends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos.errors import ConfigurationError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Offer
from protos.wire.positions import parameters_digest
from site_agent.hospital import Hospital
from site_agent.trainer_socket import Train
from tests.host.starting import random_values, write_starting_file
from tests.hostile.attacks_on_starts import PLAN, Vector
from tests.hostile.lies import ALL, assert_refused
from tests.rehearsal.federation import Office
from tests.rehearsal.lying import Evidence, Stream, evidence_of, hospital_for
from tests.rehearsal.study import parameter_chunks, plan_with


def offered(office: Office, folder: Path, vector: Vector, digest: bytes) -> Evidence:
    """Offer a site round 0 with these parameters, announced under this digest."""
    return offered_under(plan_with(office.identities, changes=PLAN), office, folder, vector, digest)


def offered_under(
    plan: Plan, office: Office, folder: Path, vector: Vector, digest: bytes, hospital: Hospital | None = None
) -> Evidence:
    """The same under another plan."""

    async def lie(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(Offer(0, 0, digest), *parameter_chunks(vector, 0), Bind(0, 0, ALL, 0))
        await stream.chunks(1)

    return evidence_of(office, folder, lie, approved=(plan,), hospital=hospital, seconds=1.0)


@pytest.mark.parametrize("number", [0, 279, 280, 319])
def test_one_changed_bit_of_the_first_parameters_is_refused(tmp_path: Path, office: Office, number: int) -> None:
    """Wrong values are refused under their own digest and under the right one, before anything is trained."""
    plan = plan_with(office.identities, changes=PLAN)
    right = manifest_of(plan).initial_parameters(plan.seed)
    wrong = right.copy()
    wrong.view(np.uint32)[number] ^= 1

    announced = offered(office, tmp_path / "announced", wrong, parameters_digest(wrong))
    hidden = offered(office, tmp_path / "hidden", wrong, parameters_digest(right))

    for evidence, reason in ((announced, "first parameters"), (hidden, "not what was announced")):
        assert_refused(evidence)
        assert reason in evidence.events("coordinator_refused")[0]["reason"]
        assert not [question for question in evidence.questions if isinstance(question, Train)]


def test_the_first_parameters_of_a_starting_file_are_recomputed(tmp_path: Path, office: Office) -> None:
    """The gate reads its own copy: the file's values are trained from, and neither the seed's nor other bits are."""
    values = random_values({"input.weight": (40, 7), "input.bias": (40,)})
    named = {"sha256": write_starting_file(tmp_path / "files", values)}
    plan, seeded = (plan_with(office.identities, changes=PLAN | {"starting_file": file}) for file in (named, None))
    right = np.concatenate([array.reshape(-1) for array in values.values()])
    np.testing.assert_array_equal(manifest_of(plan, values).initial_parameters(plan.seed), right)
    wrong = right.copy()
    wrong.view(np.uint32)[319] ^= 1
    allowed = {"starting_files": str(tmp_path / "files")}

    def evidence_for(folder: str, vector: Vector, **changes: str) -> Evidence:
        own = hospital_for(tmp_path / folder, policy={"starting_file": "allow"}).model_copy(update=changes)
        return offered_under(plan, office, tmp_path / folder, vector, parameters_digest(vector), own)

    for folder, vector in (("bit", wrong), ("seed", manifest_of(seeded).initial_parameters(plan.seed))):
        evidence = evidence_for(folder, vector, **allowed)
        assert_refused(evidence)
        assert "first parameters" in evidence.events("coordinator_refused")[0]["reason"]
    assert len(evidence_for("right", right, **allowed).chunks) == 1
    missing = evidence_for("missing", right, starting_files=str(tmp_path))
    assert isinstance(missing.error, ConfigurationError)
    assert not missing.chunks
    assert not [question for question in missing.questions if isinstance(question, Train)]


def test_the_first_parameters_of_the_plan_are_trained_from(tmp_path: Path, office: Office) -> None:
    """An honest coordinator's first round is answered."""
    plan = plan_with(office.identities, changes=PLAN)
    right = manifest_of(plan).initial_parameters(plan.seed)

    evidence = offered(office, tmp_path, right, parameters_digest(right))

    assert len(evidence.chunks) == 1
    assert evidence.is_waiting
