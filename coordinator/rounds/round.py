"""Decides by pure functions what happens in a run: an event and a state give the next state and the actions.

It owns no clock, no socket and no number of the model. A deadline that has passed is an event like any other.

    Gathering -> [Agreeing ->] Collecting -> Collecting ... -> Finishing -> Over
                    ^              |
                    +- Interrupted   a site was lost: the round is repeated, or an earlier one

The rules:

* every site of the plan contributes to every sum. Under masking the sites agree on keys before the first round, and
  again after each attempt that failed;
* a lost site is waited for, without end. Only all rounds, a person, a site that reports that it can never continue, or
  numbers that do not add up, or a void end a run;
* a site that has sent its whole contribution may be away until the next round needs it;
* time counts against an attempt only while no chunk moves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Agreeing,
    Attempt,
    CloseRound,
    Collecting,
    Completed,
    Declined,
    Effect,
    EndRun,
    Event,
    Finishing,
    FoundWrong,
    Gathering,
    Interrupted,
    Joined,
    Left,
    Moved,
    OfferRound,
    OpenKeySession,
    Outcome,
    Over,
    SealKeySession,
    SendResult,
    SendRoster,
    Sites,
    State,
    Terms,
    TookResult,
    VoidRound,
    WasStopped,
    WentBack,
    Working,
)
from protos.wire.messages import SiteReason

MOST_ATTEMPTS_AT_CORRUPTION: Final = 3
# A person can undo these, so the site is waited for like any lost site.
_CAN_RETURN: Final = frozenset({SiteReason.WITHDRAWN, SiteReason.REVOKED})


def advance(terms: Terms, state: State, event: Event, now: float) -> Outcome:
    """Return the run's next state and the actions after an event. Events of sites outside the plan change nothing."""
    site = getattr(event, "site", None)
    heard = terms.sites | terms.receivers if isinstance(state, Finishing) else terms.sites
    if site is not None and site not in heard:
        return state, ()
    if isinstance(event, WasStopped) and not isinstance(state, Over):
        return _end(Over(is_complete=False, reason="it was stopped by a person", is_by_person=True))
    if isinstance(event, Declined) and not isinstance(state, Finishing | Over):
        if event.reason in _CAN_RETURN:
            event = Left(event.site, is_withdrawn=True)
        else:
            text = f"{event.site} takes no further part ({event.reason.name.lower().replace('_', ' ')})"
            return _end(Over(is_complete=False, reason=text, missing=frozenset({event.site})))
    match state:
        case Gathering():
            return _gather(terms, state, event, now)
        case Agreeing() | Collecting() | Interrupted():
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
            state = replace(state, joined=state.joined | {site})
        case Left(site=site):
            state = replace(state, joined=state.joined - {site})
        case _:
            pass
    if state.joined < terms.sites:
        return state, ()
    attempt = Attempt(round=0, number=terms.first_attempt, present=terms.sites, key_session=terms.first_key_session)
    return _begin_attempt(terms, attempt, now)


def _begin_attempt(terms: Terms, attempt: Attempt, now: float) -> Outcome:
    """Offer a round to all sites. If they have no masking keys in common, they first agree on new keys."""
    if attempt.withdrawn:
        return Interrupted(attempt=attempt), ()
    if terms.is_masked and not attempt.has_keys:
        attempt = replace(attempt, key_session=attempt.key_session + 1)
        after = Agreeing(attempt=attempt, deadline=_deadline(terms, attempt, now, terms.deadlines.contribute_seconds))
        return after, (OpenKeySession(attempt.key_session),)
    deadline = _deadline(terms, attempt, now, terms.seconds)
    offer = OfferRound(terms.sites, attempt.round, attempt.number)
    return Collecting(attempt=attempt, deadline=deadline, latest=now + terms.seconds), (offer,)


def _deadline(terms: Terms, attempt: Attempt, now: float, longest: float, sent: Sites = frozenset()) -> float:
    """Return the end of a phase. It is early if a site is absent that has not sent everything."""
    return now + (longest if terms.sites <= attempt.present | sent else min(terms.deadlines.grace_seconds, longest))


def _after(effects: tuple[Effect, ...], outcome: Outcome) -> Outcome:
    state, later = outcome
    return state, (*effects, *later)


def _work(terms: Terms, state: Working, event: Event, now: float) -> Outcome:
    match event:
        case Joined():
            return _return(terms, state, event, now)
        case Left():
            return _lose(terms, state, event, now)
        case Advertised() | Acknowledged() if isinstance(state, Agreeing):
            return _agree(terms, state, event, now)
        case Moved() if isinstance(state, Collecting):
            latest, is_whole = now + terms.seconds, terms.sites <= state.attempt.present | state.complete
            return replace(state, latest=latest, deadline=latest if is_whole else state.deadline), ()
        case Completed(site=site) if isinstance(state, Collecting):
            return _complete(terms, replace(state, complete=state.complete | {site}), now)
        case FoundWrong(is_void=False) if isinstance(state, Collecting):
            return _repeat_corrupted(terms, state.attempt, now)
        case FoundWrong() if isinstance(state, Collecting):
            reason = f"a site could not send its numbers in round {state.attempt.round + 1}"
            return _end(Over(is_complete=False, reason=reason, is_void=True))
        case WentBack(round=number, attempt=last) if isinstance(state, Interrupted):
            # A site that reconnected may have lost the keys that all sites had agreed on.
            again = replace(state.attempt, round=number, number=last + 1, has_keys=False, corruptions=0)
            return _begin_attempt(terms, again, now)
        case _:
            return _check_deadline(terms, state, now)


def _agree(terms: Terms, state: Agreeing, event: Advertised | Acknowledged, now: float) -> Outcome:
    attempt, site = state.attempt, frozenset({event.site})
    if event.key_session != attempt.key_session:
        return state, ()
    if isinstance(event, Advertised):
        if site <= state.advertised:
            return state, ()
        state = replace(state, advertised=state.advertised | site)
        return state, (SendRoster(attempt.key_session),) if state.advertised == terms.sites else ()
    state = replace(state, acknowledged=state.acknowledged | site)
    if state.acknowledged < terms.sites:
        return state, ()
    seal = SealKeySession(attempt.key_session)
    return _after((seal,), _begin_attempt(terms, replace(attempt, has_keys=True), now))


def _repeat_corrupted(terms: Terms, attempt: Attempt, now: float) -> Outcome:
    if attempt.corruptions + 1 == MOST_ATTEMPTS_AT_CORRUPTION:
        return _end(Over(is_complete=False, reason="the contributions do not add up"))
    again = replace(attempt, number=attempt.number + 1, has_keys=False, corruptions=attempt.corruptions + 1)
    return _after((VoidRound(attempt.round, attempt.number, frozenset()),), _begin_attempt(terms, again, now))


def _return(terms: Terms, state: Working, event: Joined, now: float) -> Outcome:
    site, attempt = event.site, state.attempt
    attempt = replace(attempt, present=attempt.present | {site}, withdrawn=attempt.withdrawn - {site})
    if isinstance(state, Interrupted):
        return _go_on(terms, replace(state, attempt=attempt, returns=state.returns or not event.is_current), now)
    is_agreed = event.key_session == attempt.key_session
    if isinstance(state, Collecting) and site in state.complete:
        # The site has nothing more to send. If the site lost its keys, the next attempt starts with new keys.
        return replace(state, attempt=replace(attempt, has_keys=attempt.has_keys and is_agreed)), ()
    if not event.is_current or isinstance(state, Agreeing) or (terms.is_masked and not is_agreed):
        return _agree_again(terms, replace(state, attempt=attempt), now, returns=not event.is_current)
    deadline = min(state.latest, _deadline(terms, attempt, now, terms.seconds, state.complete))
    offer = OfferRound(frozenset({site}), attempt.round, attempt.number, resumes=True)
    return replace(state, attempt=attempt, deadline=deadline), (offer,)


def _agree_again(terms: Terms, state: Agreeing | Collecting, now: float, *, returns: bool) -> Outcome:
    """Let all sites agree on new keys, because a site reconnected without its keys or memory."""
    attempt = state.attempt
    void = () if isinstance(state, Agreeing) else (VoidRound(attempt.round, attempt.number, frozenset()),)
    again = replace(attempt, number=attempt.number + len(void), has_keys=False)
    if returns or not terms.sites <= attempt.present:
        return Interrupted(attempt=again, returns=returns), void
    return _after(void, _begin_attempt(terms, again, now))


def _go_on(terms: Terms, state: Interrupted, now: float) -> Outcome:
    attempt = state.attempt
    if state.returns or not terms.sites <= attempt.present:
        return state, ()
    return _begin_attempt(terms, replace(attempt, number=attempt.number + 1, has_keys=False), now)


def _lose(terms: Terms, state: Working, event: Left, now: float) -> Outcome:
    site, attempt = frozenset({event.site}), state.attempt
    withdrawn = attempt.withdrawn | (site if event.is_withdrawn else frozenset())
    attempt = replace(attempt, present=attempt.present - site, withdrawn=withdrawn)
    if isinstance(state, Interrupted) or (isinstance(state, Collecting) and site <= state.complete):
        return replace(state, attempt=attempt), ()
    if event.is_withdrawn:  # a person took it out, and no grace period brings it back
        return Interrupted(attempt=attempt), (VoidRound(attempt.round, attempt.number, frozenset()),)
    return replace(state, attempt=attempt, deadline=min(state.deadline, now + terms.deadlines.grace_seconds)), ()


def _complete(terms: Terms, state: Collecting, now: float) -> Outcome:
    attempt = state.attempt
    if state.complete < terms.sites:
        return state, ()
    close, number = CloseRound(attempt.round), attempt.round + 1
    again = terms.past.get(number, terms.first_attempt - 1) + 1
    following = replace(attempt, round=number, number=again, corruptions=0)
    if number < terms.rounds:
        return _after((close,), _begin_attempt(terms, following, now))
    deadline = now + terms.result_seconds
    result = SendResult((terms.sites & following.present) | terms.receivers)
    return Finishing(attempt=following, deadline=deadline), (close, result)


def _check_deadline(terms: Terms, state: Working, now: float) -> Outcome:
    if isinstance(state, Interrupted) or now < state.deadline:
        return state, ()
    attempt = state.attempt
    if isinstance(state, Agreeing):
        waited_for = terms.sites - (state.acknowledged if state.advertised == terms.sites else state.advertised)
    else:
        waited_for = terms.sites - state.complete
    # If the grace period expires, the absent sites are disconnected, not the connected sites that still compute.
    missing = (waited_for - attempt.present) or waited_for
    waits = Interrupted(attempt=replace(attempt, present=attempt.present - missing))
    return waits, (VoidRound(attempt.round, attempt.number, missing),)


def _finish(terms: Terms, state: Finishing, event: Event, now: float) -> Outcome:
    match event:
        case TookResult(site=site):
            state = replace(state, done=state.done | {site})
        case Moved():
            return replace(state, deadline=max(state.deadline, now + terms.result_seconds)), ()
        case Joined(site=site):
            return state, (SendResult(frozenset({site})),)
        case Declined(site=site):  # the site will not load the result, so the run does not wait for the site
            state = replace(state, gone=state.gone | {site})
        case _:
            pass
    missing = (terms.sites | terms.receivers) - state.done
    if missing <= state.gone or now >= state.deadline:
        return _end(Over(is_complete=True, reason="all rounds were made", missing=missing))
    return state, ()


def _end(over: Over) -> Outcome:
    return over, (EndRun(over),)
