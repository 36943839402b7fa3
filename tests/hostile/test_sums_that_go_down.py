"""A coordinator that sends sums in place of parameters: the gate computes these, and compares their digest."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from protos.errors import ProtocolError
from protos.numbers.short_integers import first_exponent, pack_exponents
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Chunk, CoordinatorMessage, Finish, Offer
from protos.wire.positions import parameters_digest
from site_agent.trainer_socket import Train
from tests.federation import clear_plan
from tests.rehearsal.study import parameter_chunks
from tests.scripted import Step, begun, scripted

ALL = ("a", "b", "c")
COUNT = 10
EXPONENT = first_exponent(16, 3, 8.0)
SCALES = pack_exponents((EXPONENT, EXPONENT))
ZEROS = np.zeros(COUNT, np.float32)
SUM = np.arange(-5, 5, dtype=np.int16)
AFTER = (SUM / (3.0 * math.ldexp(1.0, EXPONENT))).astype(np.float32)  # the mean over three sites of equal weight


@pytest.fixture
def plan() -> Plan:
    """Three rounds of ten numbers of 16 bits in the clear."""
    return clear_plan(parameters=COUNT, masking={"required": False, "bits": 16})


def first() -> list[Step]:
    """An honest first round."""
    offer = Offer(0, 0, parameters_digest(ZEROS), scales=SCALES)
    return [offer, *parameter_chunks(ZEROS, 0), Bind(0, 0, ALL, 0), Chunk]


def second(
    result: npt.NDArray[np.float32], sum_: npt.NDArray[np.int16] = SUM, number: int = 1, scales: bytes = SCALES
) -> list[CoordinatorMessage]:
    """A round whose parameters follow from a sum."""
    offer = Offer(number, 0, parameters_digest(result), scales=scales, is_sum=True)
    return [offer, *parameter_chunks(sum_, number), Bind(number, 0, ALL, 0)]


def test_parameters_that_follow_from_a_sum_reach_the_trainer(tmp_path: Path, plan: Plan) -> None:
    """They have the announced digest, and the next round goes on from them."""
    again = (AFTER + AFTER).astype(np.float32)
    script = [*begun(plan), *first(), *second(AFTER), Chunk, *second(again, number=2), Chunk]
    site = scripted(tmp_path, script, approved=(plan,))
    assert site.error is None
    received = [vector.tobytes() for vector in site.trainer.received]
    assert received == [vector.tobytes() for vector in (ZEROS, AFTER, again)]


LIES: dict[str, list[Step]] = {
    "a sum before any parameters": [*second(AFTER, number=0)],
    "a sum that skips a round": [*first(), *second(AFTER, number=2)],
    "a sum from which other parameters follow": [*first(), *second(AFTER + 1)],
    "another sum": [*first(), *second(AFTER, SUM[::-1].copy())],
    "a sum that is too long": [*first(), *second(AFTER, np.append(SUM, SUM))],
    "a sum under the wrong weights": [
        *first(), Offer(1, 0, parameters_digest(AFTER), scales=SCALES, is_sum=True, summed_rows=3),
        *parameter_chunks(SUM, 1),
    ],
    "scales that grow faster than they may": [
        *first(), *second(AFTER, scales=pack_exponents((EXPONENT + 10, EXPONENT + 11))),
    ],
    "scales that are coarser than the first": [
        *first(), *second(AFTER, scales=pack_exponents((EXPONENT, EXPONENT - 1))),
    ],
    "rows of a sum before the first": [
        Offer(0, 0, parameters_digest(ZEROS), scales=SCALES, summed_rows=1), *parameter_chunks(ZEROS, 0),
    ],
    "a result before the last round": [*first(), Finish(1, parameters_digest(AFTER), is_sum=True)],
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_sum_that_no_honest_coordinator_sends_is_refused(tmp_path: Path, plan: Plan, lie: str) -> None:
    """Nothing is trained from it, and nothing leaves after it."""
    site = scripted(tmp_path, [*begun(plan), *LIES[lie]], approved=(plan,))
    assert isinstance(site.error, ProtocolError)
    trained = [question.round for question in site.trainer.questions if isinstance(question, Train)]
    assert trained == [chunk.round for chunk in site.chunks] == ([] if LIES[lie][0] not in first() else [0])
