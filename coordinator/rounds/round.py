"""Decides by pure functions what happens in a run: an event and a state give the next state and the actions.

It owns no clock, no socket and no number of the model. A deadline that has passed is an event like any other.

    Gathering -> [Agreeing ->] Training -> Collecting -> Training ... -> Finishing -> Over
                    ^            ^            |
                    +------------+-- Interrupted   a site was lost: the round is repeated, or an earlier one

The set of contributors is fixed before any site sends (`bound`). If the offer already names them (`binds_early`), there
is no phase Training. Under masking they agree on keys first, and after every change of the set.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, assert_never

from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    Attempt,
    BecameReady,
    BindRound,
    CloseRound,
    Collecting,
    Completed,
    Declined,
    Effect,
    EndRun,
    Event,
    Finishing,
    FoundCorrupted,
    Gathering,
    Interrupted,
    Joined,
    Left,
    OfferRound,
    OpenKeySession,
    Outcome,
    Over,
    Past,
    SealKeySession,
    SendResult,
    SendRoster,
    Sites,
    State,
    Terms,
    TookResult,
    Training,
    VoidRound,
    WasPaused,
    WasResumed,
    WasStopped,
    WentBack,
    Working,
)
from coordinator.rounds.taken_out import after_giving, after_missing, goes_on_without_late, without_late
from protos.wire.messages import SiteReason

MOST_ATTEMPTS_AT_CORRUPTION: Final = 3


def begin(terms: Terms, now: float) -> Gathering:
    """Return the state of a run before any site has joined the run."""
    return Gathering(deadline=now + terms.deadlines.join_seconds)


def advance(terms: Terms, state: State, event: Event, now: float) -> Outcome:
    """Return the run's next state and the actions after an event. Events of sites outside the plan change nothing."""
    site = getattr(event, "site", None)
    heard = terms.sites | terms.receivers if isinstance(state, Finishing) else terms.sites
    if site is not None and site not in heard:
        return state, ()
    if isinstance(event, WasStopped) and not isinstance(state, Over):
        return _end(is_complete=False, reason="it was stopped by a person", missing=frozenset(), is_by_person=True)
    match state:
        case Gathering():
            return _gather(terms, state, event, now)
        case Agreeing() | Training() | Collecting() | Interrupted():
            return _work(terms, state, event, now)
        case Finishing():
            return _finish(terms, state, event, now)
        case Over():
            return state, ()
        case _:
            assert_never(state)


def _gather(terms: Terms, state: Gathering, event: Event, now: float) -> Outcome:
    match event:
        case Joined(site=site):
            state = replace(state, joined=state.joined | {site}, declined=state.declined - {site})
        case Left(site=site):
            state = replace(state, joined=state.joined - {site})
        case Declined(site=site, reason=SiteReason.REVOKED) if not _can_begin(terms, state.declined | {site}):
            # Too few sites would remain. The office can invite the site again with the identity key in the plan.
            state = replace(state, joined=state.joined - {site})
        case Declined(site=site):
            state = replace(state, joined=state.joined - {site}, declined=state.declined | {site})
        case _:
            pass
    able = terms.sites - state.declined
    if not _can_begin(terms, state.declined):
        return _end(is_complete=False, reason="too few sites agree to take part", missing=state.declined)
    if state.joined >= able:
        return _start(terms, state.joined, now)
    if now >= state.deadline:
        if len(state.joined) >= terms.quorum:
            return _start(terms, state.joined, now)
        return _end(is_complete=False, reason="too few sites joined in time", missing=terms.sites - state.joined)
    return state, ()


def _can_begin(terms: Terms, declined: Sites) -> bool:
    return len(terms.sites - declined) >= terms.quorum


def _start(terms: Terms, joined: Sites, now: float) -> Outcome:
    attempt = Attempt(
        round=0, number=terms.first_attempt, bound=joined, present=joined, key_session=terms.first_key_session
    )
    return (_waiting(terms, attempt, now), ()) if terms.is_paused else _begin_attempt(terms, attempt, now)


def _begin_attempt(terms: Terms, attempt: Attempt, now: float) -> Outcome:
    """Offer a round. If its contributors have no masking keys in common, they first agree on new keys."""
    if not terms.is_masked or attempt.agreed == attempt.bound:
        return _offer(terms, attempt, now)
    attempt = replace(attempt, key_session=attempt.key_session + 1, agreed=frozenset())
    after = Agreeing(attempt=attempt, deadline=_deadline(terms, attempt, now))
    return after, (OpenKeySession(attempt.bound, attempt.key_session),)


def _offer(terms: Terms, attempt: Attempt, now: float) -> Outcome:
    offer = OfferRound(attempt.bound, attempt.round, attempt.number)
    if terms.binds_early:
        after, effects = _collect(terms, attempt, now, terms.early_seconds)
        return after, (offer, *effects)
    latest = now + terms.deadlines.contribute_seconds
    return Training(attempt=attempt, deadline=_deadline(terms, attempt, now), latest=latest), (offer,)


def _collect(terms: Terms, attempt: Attempt, now: float, longest: float | None = None) -> Outcome:
    """Fix the list of contributors. They have `longest` seconds to contribute, by default `contribute_seconds`."""
    longest = longest or terms.deadlines.contribute_seconds
    bound, deadline = replace(attempt, was_bound=True), _deadline(terms, attempt, now, longest=longest)
    bind = BindRound(attempt.bound, attempt.bound, attempt.round, attempt.number, attempt.resample, resumes=False)
    return Collecting(attempt=bound, deadline=deadline, latest=now + longest), (bind,)


def _deadline(
    terms: Terms, attempt: Attempt, now: float, sent: Sites = frozenset(), longest: float | None = None
) -> float:
    """Return the end of a phase. It is early if a contributor is absent that has not sent everything."""
    grace, longest = terms.deadlines.grace_seconds, longest or terms.deadlines.contribute_seconds
    return now + (longest if attempt.bound <= attempt.present | sent else min(grace, longest))


def _waiting(terms: Terms, attempt: Attempt, now: float, *, returns: bool = False) -> Interrupted:
    """Return the phase in which nothing is offered. While the run is paused, the phase has no end."""
    deadline = math.inf if terms.is_paused else now + terms.deadlines.return_seconds
    return Interrupted(attempt=attempt, deadline=deadline, returns=returns)


def _after(effects: tuple[Effect, ...], outcome: Outcome) -> Outcome:
    """Return an outcome with these effects before its own."""
    state, later = outcome
    return state, (*effects, *later)


def _work(terms: Terms, state: Working, event: Event, now: float) -> Outcome:
    match event:
        case Joined():
            return _return(terms, state, event, now)
        case Left(site=site):
            return _lose(terms, state, site, now)
        case Declined(site=site) if site not in state.attempt.bound:
            return _lose(terms, state, site, now)  # the site would enter with the next round
        case Declined(site=site, reason=SiteReason.WITHDRAWN | SiteReason.REVOKED):
            return _withdraw(terms, state, site, now)
        case Declined(site=site, reason=reason):
            text = f"{site} takes no further part ({reason.name.lower().replace('_', ' ')})"
            return _end(is_complete=False, reason=text, missing=frozenset({site}))
        case Advertised() | Acknowledged() if isinstance(state, Agreeing):
            return _agree(terms, state, event, now)
        case BecameReady() if isinstance(state, Training):
            return _make_ready(terms, state, event, now)
        case Completed(site=site) if isinstance(state, Collecting) and site in state.attempt.bound:
            return _complete(terms, replace(state, complete=state.complete | {site}), now)
        case FoundCorrupted() if isinstance(state, Collecting):
            return _repeat_corrupted(terms, state.attempt, now)
        case WentBack(round=number, past=past) if isinstance(state, Interrupted):
            # A site that reconnected may have lost the keys that all sites had agreed on.
            attempt = replace(state.attempt.at(number, past), agreed=frozenset())
            return _begin_attempt(terms, without_late(attempt), now)
        case WasPaused() if isinstance(state, Interrupted):
            return replace(state, deadline=math.inf), ()
        case WasResumed() if isinstance(state, Interrupted):
            return _go_on(terms, _waiting(terms, state.attempt, now, returns=state.returns), now)
        case _:
            return _check_deadline(terms, state, now)


def _agree(terms: Terms, state: Agreeing, event: Advertised | Acknowledged, now: float) -> Outcome:
    attempt, site = state.attempt, frozenset({event.site})
    if event.key_session != attempt.key_session or not site <= attempt.bound:
        return state, ()
    if isinstance(event, Advertised):
        if site <= state.advertised:
            return state, ()
        state = replace(state, advertised=state.advertised | site)
        return state, (SendRoster(attempt.bound, attempt.key_session),) if state.advertised == attempt.bound else ()
    state = replace(state, acknowledged=state.acknowledged | site)
    if state.acknowledged < attempt.bound:
        return state, ()
    seal = SealKeySession(attempt.bound, attempt.key_session)
    return _after((seal,), _offer(terms, replace(attempt, agreed=attempt.bound), now))


def _make_ready(terms: Terms, state: Training, event: BecameReady, now: float) -> Outcome:
    attempt = state.attempt
    if (event.round, event.attempt) != (attempt.round, attempt.number) or event.site not in attempt.bound:
        return state, ()
    ready = state.ready | {event.site}
    if ready < attempt.bound:
        return replace(state, ready=ready), ()
    return _collect(terms, attempt, now)


def _repeat_corrupted(terms: Terms, attempt: Attempt, now: float) -> Outcome:
    if attempt.corruptions + 1 == MOST_ATTEMPTS_AT_CORRUPTION:
        return _end(is_complete=False, reason="the contributions do not add up", missing=frozenset())
    again = replace(attempt, number=attempt.number + 1, agreed=frozenset(), corruptions=attempt.corruptions + 1)
    return _after((VoidRound(attempt.round, attempt.number, frozenset()),), _begin_attempt(terms, again, now))


def _return(terms: Terms, state: Working, event: Joined, now: float) -> Outcome:
    site = event.site
    attempt = replace(state.attempt, present=state.attempt.present | {site}, withdrawn=state.attempt.withdrawn - {site})
    if site not in attempt.bound:
        return replace(state, attempt=without_late(replace(attempt, entering=attempt.entering | {site}))), ()
    if isinstance(state, Interrupted):
        return _go_on(terms, replace(state, attempt=attempt, returns=state.returns or not event.is_current), now)
    if isinstance(state, Collecting) and site in state.complete:
        # The site has nothing more to send. If the site lost its keys, the next attempt starts with new keys.
        kept = attempt.agreed if event.key_session == attempt.key_session else attempt.agreed - {site}
        return replace(state, attempt=replace(attempt, agreed=kept)), ()
    if (
        not event.is_current
        or isinstance(state, Agreeing)
        or (terms.is_masked and event.key_session != attempt.key_session)
    ):
        return _agree_again(terms, replace(state, attempt=attempt), now, returns=not event.is_current)
    offer = OfferRound(frozenset({site}), attempt.round, attempt.number)
    if isinstance(state, Training):
        deadline = min(state.latest, _deadline(terms, attempt, now))
        return replace(state, attempt=attempt, ready=state.ready - {site}, deadline=deadline), (offer,)
    deadline = min(state.latest, _deadline(terms, attempt, now, state.complete, terms.early_seconds))
    bind = BindRound(frozenset({site}), attempt.bound, attempt.round, attempt.number, attempt.resample, resumes=True)
    return replace(state, attempt=attempt, deadline=deadline), (offer, bind)


def _agree_again(terms: Terms, state: Agreeing | Training | Collecting, now: float, *, returns: bool) -> Outcome:
    """Let all sites agree on new keys, because a site reconnected without its keys or memory."""
    attempt = state.attempt
    void = () if isinstance(state, Agreeing) else (VoidRound(attempt.round, attempt.number, frozenset()),)
    again = replace(attempt, number=attempt.number + len(void), agreed=frozenset())
    if returns or not attempt.bound <= attempt.present:
        return _waiting(terms, again, now, returns=returns), void
    return _after(void, _begin_attempt(terms, again, now))


def _go_on(terms: Terms, state: Interrupted, now: float) -> Outcome:
    """Offer the round again, unless the run is paused, or a site is missing."""
    attempt = state.attempt
    if not terms.is_paused and _goes_on_without(terms, state):
        return _give_up_waiting(terms, state, now)
    if state.returns or terms.is_paused or not attempt.bound <= attempt.present:
        return state, ()
    return _begin_attempt(terms, replace(attempt, number=attempt.number + 1, agreed=frozenset()), now)


def _withdraw(terms: Terms, state: Working, site: str, now: float) -> Outcome:
    """Stop waiting for a site that a person at the site or at the office withdrew, and exclude the site from the run.

    A contribution that the site had sent completely still counts. Otherwise there would be another sum over the same
    training, and the difference of the two sums would be this site's contribution.
    """
    attempt = replace(state.attempt, present=state.attempt.present - {site}, withdrawn=state.attempt.withdrawn | {site})
    if isinstance(state, Collecting) and site in state.complete:
        # The site has sent its whole contribution of this round; the next round is without this site.
        return replace(state, attempt=attempt), ()
    void = (
        (VoidRound(attempt.round, attempt.number, frozenset({site})),)
        if isinstance(state, Training | Collecting)
        else ()
    )
    returns = isinstance(state, Interrupted) and state.returns
    return _after(void, _go_on(terms, _waiting(terms, attempt, now, returns=returns), now))


def _goes_on_without(terms: Terms, state: Interrupted) -> bool:
    """Return whether only withdrawn sites are missing, and plan and quorum let the other sites continue."""
    attempt = state.attempt
    missing = attempt.bound - attempt.present
    may = terms.on_lost_site == "continue" and len(attempt.bound - missing) >= terms.quorum and not state.returns
    return bool(missing) and missing <= attempt.withdrawn and may


def _lose(terms: Terms, state: Working, site: str, now: float) -> Outcome:
    attempt = replace(state.attempt, present=state.attempt.present - {site}, entering=state.attempt.entering - {site})
    has_sent = isinstance(state, Collecting) and site in state.complete
    if isinstance(state, Interrupted) or site not in attempt.bound or has_sent:
        return replace(state, attempt=attempt), ()
    return replace(state, attempt=attempt, deadline=min(state.deadline, now + terms.deadlines.grace_seconds)), ()


def _complete(terms: Terms, state: Collecting, now: float) -> Outcome:
    attempt = state.attempt
    if state.complete < attempt.bound:
        return state, ()
    # With an additional site, the set of contributors is a new set. Sites have a budget for new sets. The budget is 0
    # if the plan waits for missing sites.
    entering = attempt.entering if terms.on_lost_site == "continue" else frozenset()
    close = CloseRound(attempt.round, attempt.bound)
    past = terms.past.get(attempt.round + 1) or Past(attempt=terms.first_attempt - 1, bound=attempt.bound | entering)
    following = without_late(after_giving(attempt).at(attempt.round + 1, past))
    if following.round < terms.rounds:
        if following.withdrawn:
            return _after((close,), _go_on(terms, _waiting(terms, following, now), now))
        if terms.is_paused:  # one attempt number is skipped, because the continued run adds 1
            return _waiting(terms, following, now), (close,)
        return _after((close,), _begin_attempt(terms, following, now))
    # A site that was to enter with the next round does not receive the result, because it was never offered a round.
    made = replace(following, bound=attempt.bound)
    deadline = now + terms.deadlines.contribute_seconds
    result = SendResult((made.bound & made.present) | terms.receivers)
    return Finishing(attempt=made, deadline=deadline), (close, result)


def _check_deadline(terms: Terms, state: Working, now: float) -> Outcome:
    if now < state.deadline:
        return state, ()
    attempt = state.attempt
    match state:
        case Interrupted():
            waited_for = lost = attempt.bound - attempt.present
        case Agreeing():
            waited_for = attempt.bound - (state.acknowledged if state.advertised == attempt.bound else state.advertised)
            lost = attempt.bound - attempt.present
        case Training():
            waited_for = attempt.bound - state.ready
            lost = attempt.bound - attempt.present
        case Collecting():
            waited_for = attempt.bound - state.complete
            lost = waited_for - attempt.present
    if isinstance(state, Interrupted):
        return _give_up_waiting(terms, state, now)
    # If the grace period expires, the absent sites are disconnected, not the connected sites that still compute.
    missing = lost or waited_for
    waits = _waiting(terms, after_missing(terms, attempt, missing), now)
    goes_on = goes_on_without_late(terms, waits.attempt, missing)
    void = VoidRound(attempt.round, attempt.number, missing, given_up=missing if goes_on else frozenset())
    return _after((void,), _give_up_waiting(terms, waits, now) if goes_on else (waits, ()))


def _give_up_waiting(terms: Terms, state: Interrupted, now: float) -> Outcome:
    """Continue without the missing sites if plan and quorum allow it. Otherwise end the run.

    A run that must first return to an earlier round cannot continue, because the repeated rounds need all their sites.
    """
    attempt = state.attempt
    remaining, missing = attempt.bound & attempt.present, attempt.bound - attempt.present
    if terms.on_lost_site == "continue" and len(remaining) >= terms.quorum and not state.returns:
        number = attempt.number + 1
        resample = number if attempt.was_bound else attempt.resample
        again = replace(attempt, number=number, bound=remaining, agreed=frozenset(), resample=resample)
        return _begin_attempt(terms, again, now)
    # If all sites of this round are connected, a site of an earlier round is missing.
    absent = missing or terms.sites - attempt.present
    return _end(is_complete=False, reason="a site did not come back in time", missing=absent)


def _finish(terms: Terms, state: Finishing, event: Event, now: float) -> Outcome:
    match event:
        case TookResult(site=site):
            state = replace(state, done=state.done | {site})
        case Joined(site=site) if site in state.attempt.bound | terms.receivers:
            return state, (SendResult(frozenset({site})),)
        case Declined(site=site):  # the site will not load the result, so the run does not wait for the site
            state = replace(state, gone=state.gone | {site})
        case _:
            pass
    missing = (state.attempt.bound | terms.receivers) - state.done
    if missing <= state.gone or now >= state.deadline:
        return _end(is_complete=True, reason="all rounds were made", missing=missing)
    return state, ()


def _end(*, is_complete: bool, reason: str, missing: Sites, is_by_person: bool = False) -> Outcome:
    over = Over(is_complete=is_complete, reason=reason, missing=missing, is_by_person=is_by_person)
    return over, (EndRun(over),)
