"""Sites that persons have taken out of a run, the federation office or their own people: whom it concerns, and what
an operator is told, also of sites that the others have given up. Pure.

A site that the office revokes counts as one that its own people withdrew: nobody waits for its contribution. Whether
the others then go on or wait is the plan's word. Waiting is no mistake: a site that is invited again and still has
the identity key that the plan lists comes back to the same round.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from coordinator.rounds.lateness import MOST_LATE_ATTEMPTS
from coordinator.rounds.phases import (
    Agreeing,
    Collecting,
    Finishing,
    Gathering,
    Interrupted,
    Over,
    Sites,
    State,
    Training,
)
from coordinator.storage.history import History


def yet_to_tell(state: State, listed: Sites, revoked: Collection[str]) -> list[str]:
    """The revoked sites that the round machine still counts on, in order.

    Args:
        state: of the round machine.
        listed: the sites of the plan.
        revoked: the sites that the register says are revoked.
    """
    match state:
        case Gathering(declined=declined):
            counted = listed - declined
        case (
            Agreeing(attempt=attempt)
            | Training(attempt=attempt)
            | Collecting(attempt=attempt)
            | Interrupted(attempt=attempt)
        ):
            counted = (attempt.bound | attempt.entering) - attempt.withdrawn
        case Finishing(attempt=attempt, done=done, gone=gone):
            counted = attempt.bound - done - gone
        case Over():
            counted = frozenset()
    return sorted(counted & set(revoked))


def explained(over: Over, history: History) -> Over:
    """How a run ended, with the reason named where it was for want of a revoked site."""
    revoked = sorted(over.missing & history.revoked)
    if over.is_complete or not revoked:
        return over
    names = ", ".join(revoked)
    way_out = "a new version of the plan, without it or with its new identity key, can begin"
    return replace(over, reason=f"{over.reason}: the federation office revoked {names}; {way_out}")


def told(state: State, history: History, *, clock_seconds: float, now: datetime) -> list[str]:
    """A few sentences on each site that persons have taken out or the others have given up; none on the rest.

    Args:
        state: of the round machine.
        history: what the run's journal says.
        clock_seconds: the machine's monotonic clock.
        now: aware, in UTC, at the same moment.
    """
    ends, taken_out = _ends(state, clock_seconds, now), history.revoked | history.withdrawn
    told_of = [
        _told(site, is_revoked=site in history.revoked, waits=_waits_for(state, site), ends=ends)
        for site in sorted(taken_out)
    ]
    return told_of + [_told_of_giving_up(site) for site in sorted(history.given_up - taken_out)]


def told_of_removal(site: str, *, waits: bool) -> str:
    """A few sentences on a member that is let in no more, because its hospital's own authority was removed."""
    waiting, back = ("The run waits for it", "this") if waits else ("The others go on without it", "a later")
    return (
        f"The hospital's own authority by which {site} was let in has been removed; no certificate of {site} counts."
        f" {waiting}. Have its people run `site-agent renew`, which brings it a certificate of the federation: with"
        f" that it comes back to {back} round."
    )


def _waits_for(state: State, site: str) -> bool:
    match state:
        case Gathering(joined=joined, declined=declined):
            return site not in joined | declined
        case Interrupted(attempt=attempt):
            return site in attempt.bound - attempt.present
        case _:
            return False


def _ends(state: State, clock_seconds: float, now: datetime) -> str:
    if not isinstance(state, Gathering | Interrupted) or math.isinf(state.deadline):
        return "and is paused"
    try:
        return f"until {now + timedelta(seconds=state.deadline - clock_seconds):%Y-%m-%d %H:%M} UTC, and ends then"
    except OverflowError:  # beyond the year 9999
        return "for many years"


def _told_of_giving_up(site: str) -> str:
    return (
        f"{site} was missing in {MOST_LATE_ATTEMPTS} attempts in a row, and the others go on without it. It may be"
        f" connected; nothing is asked of it. Call its people: `site-agent doctor` there says what is wrong. Then start"
        " the coordinator anew: the site comes in again."
    )


def _told(site: str, *, is_revoked: bool, waits: bool, ends: str) -> str:
    what = f"The federation office has revoked {site}" if is_revoked else f"The people of {site} have withdrawn it"
    if not waits:
        return f"{what}. The others go on without it."
    remedy = (
        f"Invite it again with `pki invite {site}`: with the identity key in the plan it comes back to this round."
        if is_revoked
        else "Call them: a new approval there brings it back to this round."
    )
    return (
        f"{what}. The run waits for it {ends}. {remedy} Or end the run with `coordinator stop` and propose a new"
        " version of the plan, without it or with its new identity key."
    )
