"""Computes the coordinator's status for operators: the current run, the speed of the run, and each site."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

from coordinator.rounds.phases import Agreeing, Collecting, Finishing, Gathering, Interrupted, Over, Sites, State, Terms
from coordinator.rounds.run import Run
from coordinator.rounds.transfers import Transfers
from coordinator.storage.history import History
from coordinator.storage.run_store import RunStore


@dataclass(frozen=True)
class Around:
    """The facts about sites and clocks that a status report shows.

    Attributes:
        connected: the sites whose streams are open.
        joined: the connected sites that take part.
        contacts: the times of each site's last message, in seconds of the monotonic clock.
        clock_seconds: the same clock now.
        now: aware, in UTC.
        unaware: sites that are not yet informed that all studies are over.
    """

    connected: Collection[str]
    joined: Collection[str]
    contacts: Mapping[str, float]
    clock_seconds: float
    now: datetime
    unaware: list[str]


def status_facts(
    run: Run | None, store: RunStore | None, around: Around, transfers: Transfers
) -> dict[str, Any]:  # Any: every type that JSON has
    """Return the status of a run for operators, as values for JSON."""
    history = store.history if store else History()
    clock_seconds = around.clock_seconds
    ages = {site: round(clock_seconds - at, 1) for site, at in around.contacts.items()}
    return {
        "run": run.facts() if run else None,
        "sites": {
            name: {
                "connected": name in around.connected,
                "joined": name in around.joined,
                "last_contact_seconds": ages.get(name),
                "line": transfers.facts(name),
                "withdrawn": name in history.withdrawn,
                "revoked": name in history.revoked,
            }
            for name in (run.plan.listed_names if run else sorted({*around.connected, *around.unaware}))
        },
        "waits_for": sorted(waited_for(run.state, run.terms)) if run else [],
        "pace": pace_facts(run, around.now) if run else None,
        "concluding": concluding_facts(run.state, run.terms) if run else None,
        "taken_out": told(run.state, run.terms, history) if run else [],
        "yet_to_hear_of_the_end": around.unaware,
        "happened": history.facts() if store else None,
    }


def waited_for(state: State, terms: Terms) -> Sites:
    """Return the sites for which the run waits at this moment: those that are away, or else those that still work."""
    match state:
        case Gathering(joined=joined):
            return terms.sites - joined
        case Agreeing(attempt=attempt, acknowledged=done) | Collecting(attempt=attempt, complete=done):
            return (terms.sites - done - attempt.present) or terms.sites - done
        case Interrupted(attempt=attempt):
            return terms.sites - attempt.present
        case Finishing(done=done, gone=gone):
            return (terms.sites | terms.receivers) - done - gone
        case Over():
            return frozenset()
        case _:
            assert_never(state)


def told(state: State, terms: Terms, history: History) -> list[str]:
    """Return a text about each site that a person at the hospital or at the office has taken out of the run."""
    return [
        _told(site, is_revoked=site in history.revoked, waits=site in waited_for(state, terms))
        for site in sorted(history.revoked | history.withdrawn)
    ]


def _told(site: str, *, is_revoked: bool, waits: bool) -> str:
    what = f"The federation office has revoked {site}" if is_revoked else f"The hospital has withdrawn its site {site}"
    remedy = (
        f"Invite the site again with `pki invite {site}`. If it still has the identity key in the plan, it returns "
        "to this round."
        if is_revoked
        else "Call the hospital: after a new approval there, the site returns to this round."
    )
    waiting = " The run waits for it." if waits else ""
    return (
        f"{what}.{waiting} {remedy} Or end the run with `coordinator stop` and propose a new version of the plan, "
        "without it or with its new identity key."
    )


def concluding_facts(state: State, terms: Terms) -> dict[str, int] | None:
    """Return how many sites have loaded the result, and how many should load it. Return None while rounds remain."""
    if not isinstance(state, Finishing):
        return None
    return {"have_result": len(state.done), "sites": len(terms.sites - state.gone)}


def pace_facts(run: Run, now: datetime) -> dict[str, float | str | None] | None:
    """Return the speed of the newest rounds and the expected end of the run. Return None before the first round.

    No end is reported while the run is interrupted, or while a contributor is missing. For a plan that can
    end early it is the latest possible end.
    """
    if (seconds := run.times.median) is None:
        return None
    left = (run.terms.rounds - run.rounds_made) * seconds
    left = max(0.0, left - min(run.times.under_way, seconds))
    moves = isinstance(run.state, Agreeing | Collecting) and run.terms.sites <= run.state.attempt.present
    try:
        ends = (now + timedelta(seconds=left)).isoformat(timespec="seconds") if moves else None
    except OverflowError:  # beyond the year 9999
        ends = None
    return {"seconds_a_round": round(seconds, 3), "seconds_left": round(left, 1) if moves else None, "ends": ends}
