"""Sites that are there and do not give what a step needs: how often the others begin it again for one of them.

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

from coordinator.rounds.phases import Sites, Step, Terms

MOST_LATE_ATTEMPTS: Final = 3


def after_missing(terms: Terms, step: Step, missing: Sites) -> Step:
    """The step when an attempt was void for these sites."""
    late = sorted(missing) if len(step.bound - missing) >= terms.quorum else ()
    return replace(step, present=step.present - missing, late=(*step.late, *late))


def after_giving(step: Step) -> Step:
    """The step when all its contributors have sent everything."""
    return replace(step, late=tuple(site for site in step.late if site not in step.bound))


def is_too_late(step: Step, site: str) -> bool:
    """Whether nobody waits for a site any more."""
    return step.late.count(site) >= MOST_LATE_ATTEMPTS


def without_late(step: Step) -> Step:
    """The step, with nobody to enter for whom no one waits any more."""
    return replace(step, entering=frozenset(site for site in step.entering if not is_too_late(step, site)))


def goes_on_without_late(terms: Terms, step: Step, missing: Sites) -> bool:
    """Whether the others go on at once without the sites for which the last attempt was void."""
    others = step.bound - missing
    may = terms.on_lost_site == "continue" and len(others) >= terms.quorum and not terms.is_paused
    return may and others <= step.present and all(is_too_late(step, site) for site in missing)
