"""Decides if a run returns to earlier parameters because sites refused the new ones, and describes each rollback.

Sites send their refusals in the sum of the round that they trained from the refused parameters. So one round decides
about the parameters, and its updates are dropped with them. docs/design/acceptance.md has the reasons. The rules:

* the parameters of the first training round are the agreed start and cannot be refused;
* parameters to which the run has just returned cannot be refused. So one hostile site can undo at most every second
  round;
* a resampled round has no refusals; the next measured round decides;
* a sum that is larger than clipped updates can reach is dropped too, and its round is repeated;
* decisions that followed from the dropped parameters are dropped too; only the list of rollbacks grows;
* as many rollbacks in a row to the same parameters as the plan's `patience` end the training. The result is the
  parameters that were accepted last.

All of it follows from plan and sums, so a resumed run decides in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from coordinator.rounds.course import Course, Rollback
from protos.numbers.refusals import count_refusals
from protos.numbers.round_sums import Sums
from protos.plan.manifest import refusal_numbers
from protos.plan.plan import Plan
from protos.plan.server_rules import Float32, Float64
from protos.wire.messages import Stage


@dataclass(frozen=True, kw_only=True)
class RoundState:
    """The state of a run before a round. A run can return to it.

    Attributes:
        round: the number of that round.
        course: the decisions so far.
        values: float32, as in Run.
        rule_state: float64 arrays by name.
    """

    round: int
    course: Course
    values: Float32 = field(repr=False)
    rule_state: Mapping[str, Float64] = field(repr=False)

    def copied(self) -> RoundState:
        """Return a copy of this state of a run, with copies of all its arrays."""
        rule_state = {name: array.copy() for name, array in self.rule_state.items()}
        return replace(self, values=self.values.copy(), rule_state=rule_state)


def refusals_in(plan: Plan, course: Course, round_number: int, sums: Sums, *, resample: int) -> int | None:
    """Return how many sites refused this round's starting parameters, or None if the sums do not show this number.

    Args:
        course: before the round closes. Directly after a rollback no refusal counts.
        round_number: of the round.
        resample: the draw of the step; only the ordinary draw, 0, has refusals.
    """
    names = [f"refusal {power}" for power in range(1, refusal_numbers(plan) + 1)]
    if not names or resample or names[0] not in sums.scalars:
        return None
    if course.returned_to(round_number - 1) is not None:
        return 0
    return count_refusals([sums.scalars[name] for name in names])


def is_below_quorum(plan: Plan, refusals: int, contributors: int) -> bool:
    """Return whether fewer of the `contributors` sites accepted the parameters than the plan requires."""
    return plan.acceptance is not None and contributors - refusals < plan.acceptance.quorum


def roll_back(plan: Plan, accepted: RoundState, course: Course, round_number: int, sums: Sums, refusals: int) -> Course:
    """Return the decisions about the run after a round whose sum is not used.

    Args:
        accepted: the state before the round whose parameters the sites accepted last.
        course: the decisions before the round closed.
        round_number: of the round that closed.
        sums: of the round, dropped.
        refusals: how many sites refused; 0 if the sum itself was out of range.
    """
    here = Rollback(round=round_number, returned_to=accepted.round, refusals=refusals)
    after = replace(accepted.course, rollbacks=(*course.rollbacks, here))
    if sums.exchange.stage is not Stage.TRAINING:  # training has ended for good
        return replace(after, training_rounds=course.training_rounds)
    made = round_number - plan.has_probe + 1
    return replace(after, training_rounds=made) if has_lost_patience(plan, after.rollbacks) else after


def has_lost_patience(plan: Plan, rollbacks: tuple[Rollback, ...]) -> bool:
    """Return whether training ends because the run returned too many times in a row to the same parameters."""
    in_a_row = 1
    for earlier, later in pairwise(rollbacks):
        # The round after the earlier rollback offered the same parameters, and the sites accepted them.
        is_same = later.returned_to in (earlier.returned_to, earlier.round + 1)
        in_a_row = in_a_row + 1 if is_same else 1
    return plan.acceptance is not None and bool(rollbacks) and in_a_row >= plan.acceptance.patience


def told_of_rollbacks(plan: Plan, course: Course) -> list[str]:
    """Return a text for an operator about each return to earlier parameters. Without returns, the text is empty."""
    if not course.rollbacks:
        return []
    last, count = course.rollbacks[-1], len(course.rollbacks)
    why = (
        f"{last.refusals} or more sites refused the shared parameters after round {last.round}"
        if last.refusals
        else f"the sum of round {last.round + 1} was larger than clipped updates can add up to"
    )
    what = f"The run was rolled back {'once' if count == 1 else f'{count} times'}. Last, {why}. "
    what += f"The run returned to the parameters after round {last.returned_to}."
    patience = 0 if plan.acceptance is None else plan.acceptance.patience
    if course.training_rounds is None or not has_lost_patience(plan, course.rollbacks):
        return [
            f"{what} One site may send harmful updates, or refuse without a reason. {patience} rollbacks in a row to"
            " the same parameters end the training."
        ]
    return [
        f"{what} It was the rollback number {patience} in a row to these parameters, so the training has ended with"
        " them. Have each hospital compare the labels, units and software of its site with the others. Then propose a"
        " new version of the plan, if need be without the site that cannot explain its numbers."
    ]
