"""Where a run stands that was interrupted: at its result, or waiting until all are back; and from where it goes on."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import structlog

from coordinator.rounds.phases import Attempt, Finishing, Interrupted, WentBack
from coordinator.rounds.run import Run
from coordinator.storage.keeping import Kept


def interrupted_state(run: Run, kept: Kept, now: float) -> Finishing | Interrupted:
    """The state in which a program that starts again takes a run up; nobody is connected.

    Args:
        run: new, its terms as they are now.
        kept: what is on disk; at least one round was offered.
        now: seconds of the caller's monotonic clock.
    """
    number, deadlines = max(kept.history.past), run.plan.deadlines
    past = kept.history.past[number]
    attempt = Attempt(
        round=number, number=past.attempt, bound=past.bound, present=frozenset(), key_session=kept.history.key_session
    )
    if kept.is_at_result():
        made = Attempt(
            round=run.rounds_made, number=0, bound=past.bound, present=frozenset(), key_session=attempt.key_session
        )
        return Finishing(attempt=made, done=frozenset(kept.history.done), deadline=now + deadlines.contribute_seconds)
    deadline = math.inf if run.terms.is_paused else now + deadlines.return_seconds
    return Interrupted(attempt=attempt, deadline=deadline, returns=True)


def go_back(run: Run, kept: Kept, joined: Collection[str]) -> WentBack | None:
    """Go back to the newest round that this program and all its sites have on disk, once they are here; else None.

    Raises:
        UnavailableError: the snapshot cannot be read any more, or the disk takes no decision.
    """
    number = kept.find_return(joined)
    if number is None:
        return None
    past = kept.go_back(number)
    repeated = {later: how for later, how in kept.history.past.items() if later > number}
    run.terms = replace(run.terms, past=repeated)
    structlog.get_logger().warning("run_went_back", run=run.name, round=number)
    return WentBack(number, past)
