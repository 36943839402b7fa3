"""Handles sites that no longer take part in a run, because a person decided this or because they were often missing.

A site that the office revokes is treated like one that its own people withdrew: nobody waits for its contribution. The
plan decides whether the others continue or wait. If they wait, a site that is invited again with the identity key in
the plan returns to the same round.

A connected site can also fail to send what a round needs. Without a limit the others would repeat the round for ever.
The rules:

* each void attempt counts against the missing sites, until they have sent what a round requires. If too few other sites
  were connected to continue, it counts against no site: the coordinator's own connection is the likelier cause;
* after `MOST_LATE_ATTEMPTS` the others continue at once, if plan and quorum let them;
* the site does not enter again, because each further loss would cost budget at the others;
* journal, audit log, record and status report the site;
* if the plan waits for lost sites, nothing changes: a person decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from coordinator.rounds.phases import Attempt, Finishing, Gathering, Interrupted, Over, Sites, State, Terms
from coordinator.storage.history import History

MOST_LATE_ATTEMPTS: Final = 3


def after_missing(terms: Terms, attempt: Attempt, missing: Sites) -> Attempt:
    """Return the attempt without its missing sites. If enough other sites remain, add the missing sites to `late`."""
    late = sorted(missing) if len(attempt.bound - missing) >= terms.quorum else ()
    return replace(attempt, present=attempt.present - missing, late=(*attempt.late, *late))


def after_giving(attempt: Attempt) -> Attempt:
    """Return the attempt with sites removed from `late` that have now sent their complete contribution."""
    return replace(attempt, late=tuple(site for site in attempt.late if site not in attempt.bound))


def is_too_late(attempt: Attempt, site: str) -> bool:
    """Return whether the run no longer waits for a site that was missing too often."""
    return attempt.late.count(site) >= MOST_LATE_ATTEMPTS


def without_late(attempt: Attempt) -> Attempt:
    """Return the attempt without the entering sites for which the run no longer waits."""
    return replace(attempt, entering=frozenset(site for site in attempt.entering if not is_too_late(attempt, site)))


def goes_on_without_late(terms: Terms, attempt: Attempt, missing: Sites) -> bool:
    """Return whether the run continues at once without the sites that were missing in its last attempt."""
    others = attempt.bound - missing
    may = terms.on_lost_site == "continue" and len(others) >= terms.quorum and not terms.is_paused
    return may and others <= attempt.present and all(is_too_late(attempt, site) for site in missing)


def yet_to_tell(state: State, listed: Sites, revoked: Collection[str]) -> list[str]:
    """Return the revoked sites that are still a part of the current run."""
    match state:
        case Gathering(declined=declined):
            counted = listed - declined
        case Finishing(attempt=attempt, done=done, gone=gone):
            counted = attempt.bound - done - gone
        case Over():
            counted = frozenset()
        case _:
            counted = (state.attempt.bound | state.attempt.entering) - state.attempt.withdrawn
    return sorted(counted & set(revoked))


def explained(over: Over, history: History) -> Over:
    """Return how and why a run ended. If a revoked site is the reason, the text names this site."""
    revoked = sorted(over.missing & history.revoked)
    if over.is_complete or not revoked:
        return over
    names = ", ".join(revoked)
    way_out = "the researcher can start a new version of the plan, without this site or with its new identity key"
    return replace(over, reason=f"{over.reason}: the federation office revoked {names}; {way_out}")


def told(state: State, history: History, *, clock_seconds: float, now: datetime) -> list[str]:
    """Return a text about each site that a person removed or for which the run no longer waits.

    Args:
        clock_seconds: the state machine's monotonic clock.
        now: aware, in UTC, at the same moment.
    """
    ends, taken_out = _ends(state, clock_seconds, now), history.revoked | history.withdrawn
    told_of = [
        _told(site, is_revoked=site in history.revoked, waits=_waits_for(state, site), ends=ends)
        for site in sorted(taken_out)
    ]
    return told_of + [_told_of_giving_up(site) for site in sorted(history.given_up - taken_out)]


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
        f"{site} was missing in {MOST_LATE_ATTEMPTS} attempts in a row, and the others continue without it. It may be"
        " connected, but it receives no round. Call the hospital: `site-agent doctor` there shows the cause. Then "
        "restart"
        " the coordinator, and the site takes part again."
    )


def _told(site: str, *, is_revoked: bool, waits: bool, ends: str) -> str:
    what = f"The federation office has revoked {site}" if is_revoked else f"The hospital has withdrawn its site {site}"
    if not waits:
        return f"{what}. The others continue without it."
    remedy = (
        f"Invite the site again with `pki invite {site}`. If it still has the identity key in the plan, it returns "
        "to this round."
        if is_revoked
        else "Call the hospital: after a new approval there, the site returns to this round."
    )
    return (
        f"{what}. The run waits for it {ends}. {remedy} Or end the run with `coordinator stop` and propose a new"
        " version of the plan, without it or with its new identity key."
    )
