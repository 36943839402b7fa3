"""A hostile gate gets one answer for each round, whatever it requests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from protos.wire.messages import MalformedMessage
from site_agent.trainer.answered_rounds import AnsweredRounds
from site_agent.trainer_socket import Train
from tests.for_each import for_each
from tests.hostile.masking_federation import masked_plan

PLAN = masked_plan("abc")


@pytest.mark.parametrize("budget", [0, 1, 3])
@for_each("seed", range(20))
def test_over_any_sequence_the_answers_stay_within_rounds_and_budget(tmp_path: Path, seed: int, budget: int) -> None:
    """Rounds, draws, values and restarts in any order: distinct questions are at most the rounds and the budget."""
    luck, answered = random.Random(seed), set[tuple[int, int, bytes]]()
    memory = AnsweredRounds(tmp_path, PLAN, budget=budget)

    for _ in range(200):
        if luck.random() < 0.1:  # another trainer, or the plan is prepared again
            memory = AnsweredRounds(tmp_path, PLAN, budget=budget)
        question = Train(luck.randrange(5), luck.randrange(3), 0, "", -1, luck.randbytes(1))
        try:
            memory.admit(question)
        except MalformedMessage:
            continue
        answered.add((question.round, question.resample, bytes(question.payload)))

    assert len(answered) <= len({number for number, _, _ in answered}) + budget
    assert len(answered) == 5 + budget


def test_the_same_question_is_answered_again_and_other_plans_are_other_memories(tmp_path: Path) -> None:
    """A retransmission costs nothing, and each approved plan has rounds of its own."""
    question = Train(0, 0, 0, "", -1, b"values")
    for _ in range(3):
        AnsweredRounds(tmp_path, PLAN, budget=0).admit(question)
    AnsweredRounds(tmp_path, masked_plan("abcd"), budget=0).admit(Train(0, 0, 0, "", -1, b"others"))

    with pytest.raises(MalformedMessage):
        AnsweredRounds(tmp_path, PLAN, budget=0).admit(Train(0, 0, 0, "", -1, b"others"))
