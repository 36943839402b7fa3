"""Sites that are connected and do not send what a round needs: how often the others repeat it for one of them.

An attempt that only such a site kept open is void when its time is over, and the site may come back at once. Without a
limit it could do so for ever, and a run that goes on without lost sites would wait for one that is never quite lost.
The rules:

* each void attempt counts against the sites that were missing, until they have given what a round asked of them; where
  too few others were there to go on, it counts against nobody: that is rather the coordinator's own line;
* after `MOST_LATE_ATTEMPTS` the others go on at once, where plan and quorum let them;
* the site does not enter again, since every further loss would cost the others of the few that their policies allow;
* journal, audit log, record and status say so, since nobody else could tell it from a site that takes part;
* where the plan waits for lost sites, everything stays as it is: a person decides.

The counts are not written down. A coordinator that is started anew begins them at zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordinator.rounds.phases import Attempt, Sites, Terms

MOST_LATE_ATTEMPTS: Final = 3


def after_missing(terms: Terms, attempt: Attempt, missing: Sites) -> Attempt:
    """Return the attempt after it was void because of these sites."""
    late = sorted(missing) if len(attempt.bound - missing) >= terms.quorum else ()
    return replace(attempt, present=attempt.present - missing, late=(*attempt.late, *late))


def after_giving(attempt: Attempt) -> Attempt:
    """Return the attempt after all its contributors sent everything."""
    return replace(attempt, late=tuple(site for site in attempt.late if site not in attempt.bound))


def is_too_late(attempt: Attempt, site: str) -> bool:
    """Whether nobody waits for a site any more."""
    return attempt.late.count(site) >= MOST_LATE_ATTEMPTS


def without_late(attempt: Attempt) -> Attempt:
    """Return the attempt without the entering sites that are no longer waited for."""
    return replace(attempt, entering=frozenset(site for site in attempt.entering if not is_too_late(attempt, site)))


def goes_on_without_late(terms: Terms, attempt: Attempt, missing: Sites) -> bool:
    """Whether the others go on at once without the sites for which the last attempt was void."""
    others = attempt.bound - missing
    may = terms.on_lost_site == "continue" and len(others) >= terms.quorum and not terms.is_paused
    return may and others <= attempt.present and all(is_too_late(attempt, site) for site in missing)
