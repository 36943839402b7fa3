"""Where a run stands that was interrupted: at its result, or waiting until all are back."""

from __future__ import annotations

import math

from coordinator.keeping import Kept
from coordinator.phases import Finishing, Interrupted, Step
from coordinator.run import Run


def interrupted_state(run: Run, kept: Kept, now: float) -> Finishing | Interrupted:
    """The state in which a program that starts again takes a run up; nobody is connected.

    Args:
        run: new, its terms as they are now.
        kept: what is on disk; at least one round was offered.
        now: seconds of the caller's monotonic clock.
    """
    number, deadlines = max(kept.history.past), run.plan.deadlines
    past = kept.history.past[number]
    step = Step(round=number, attempt=past.attempt, bound=past.bound, present=frozenset(), epoch=kept.history.epoch)
    if kept.is_at_result():
        made = Step(round=run.rounds_made, attempt=0, bound=past.bound, present=frozenset(), epoch=step.epoch)
        return Finishing(step=made, done=frozenset(kept.history.done), deadline=now + deadlines.contribute_seconds)
    deadline = math.inf if run.terms.is_paused else now + deadlines.return_seconds
    return Interrupted(step=step, deadline=deadline, returns=True)
