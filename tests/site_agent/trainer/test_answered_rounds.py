"""A hostile gate gets one answer for each round, whatever it requests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protos.wire.messages import MalformedMessage
from site_agent.trainer.disk import AnsweredRounds
from site_agent.trainer_socket import Train
from tests.federation import masked_plan
from tests.for_each import for_each

PLAN = masked_plan("abc")


@for_each("seed", range(20))
def test_over_any_sequence_the_answers_are_one_for_each_round(tmp_path: Path, seed: int) -> None:
    """Rounds, values and restarts in any order."""
    luck, answered = random.Random(seed), set[tuple[int, bytes]]()
    memory = AnsweredRounds(tmp_path, PLAN)

    for _ in range(200):
        if luck.random() < 0.1:  # another trainer, or the plan is prepared again
            memory = AnsweredRounds(tmp_path, PLAN)
        question = Train(luck.randrange(5), 0, "", -1, luck.randbytes(1))
        try:
            memory.admit(question)
        except MalformedMessage:
            continue
        answered.add((question.round, bytes(question.payload)))

    assert len({number for number, _ in answered}) == len(answered) == 5


def test_the_same_question_is_answered_again_and_other_plans_are_other_memories(tmp_path: Path) -> None:
    """A retransmission costs nothing, and each approved plan has rounds of its own."""
    question = Train(0, 0, "", -1, b"values")
    for _ in range(3):
        AnsweredRounds(tmp_path, PLAN).admit(question)
    AnsweredRounds(tmp_path, masked_plan("abcd")).admit(Train(0, 0, "", -1, b"others"))

    with pytest.raises(MalformedMessage):
        AnsweredRounds(tmp_path, PLAN).admit(Train(0, 0, "", -1, b"others"))
