"""The run as a pure state machine: a state and an event in, the next state and effects out.

It owns no clock, no socket and no number of the model. Time comes in with every event, in seconds
of the caller's monotonic clock; a deadline that has passed is an event like any other.

    Gathering -> Training -> Collecting -> Training ... -> Finishing -> Over
                     ^           |
                     +- Interrupted   a site was lost: the sums are dropped, the same step comes again

Who contributes is fixed before anyone sends (`bound`); it is never "those that happened to arrive".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from protos.messages import SiteReason
from protos.plan import Deadlines

Sites: TypeAlias = frozenset[str]
MOST_ATTEMPTS_AT_CORRUPTION: Final = 3


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the machine needs of the plan. `binds_early`: the offer names the contributors at once."""

    sites: Sites
    quorum: int
    rounds: int
    binds_early: bool
    deadlines: Deadlines


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """Waiting for the listed sites; `declined` said that they will not take part."""

    joined: Sites = frozenset()
    declined: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One attempt at one round, shared by the phases that work on it.

    `present` are the connected sites, bound or entering; `entering` become contributors with the
    next round.
    """

    round: int
    attempt: int
    bound: Sites
    present: Sites
    entering: Sites = frozenset()


@dataclass(frozen=True, kw_only=True)
class Training:
    """Parameters were offered; `ready` sites hold their checked contribution."""

    step: Step
    ready: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Collecting:
    """The contributors are bound; `complete` sites have sent everything."""

    step: Step
    complete: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The attempt is void; the same step is offered again when every bound site is back."""

    step: Step
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Finishing:
    """The last aggregate was sent; `done` sites have taken it in."""

    step: Step
    done: Sites = frozenset()
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Over:
    """The run has ended; `is_complete` says that all rounds were made."""

    is_complete: bool
    reason: str
    missing: Sites = frozenset()


State: TypeAlias = Gathering | Training | Collecting | Interrupted | Finishing | Over


@dataclass(frozen=True)
class Joined:
    """A site agreed to the plan, for the first time or after its stream broke."""

    site: str


@dataclass(frozen=True)
class Left:
    """A site's stream ended."""

    site: str


@dataclass(frozen=True)
class BecameReady:
    """A site holds its contribution for this attempt."""

    site: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Completed:
    """A site's last chunk was added."""

    site: str


@dataclass(frozen=True)
class FoundCorrupted:
    """All contributions arrived and their checks do not add up."""


@dataclass(frozen=True)
class TookResult:
    """A site has taken in the last aggregate."""

    site: str


@dataclass(frozen=True)
class Declined:
    """A site takes no further part."""

    site: str
    reason: SiteReason


@dataclass(frozen=True)
class TimePassed:
    """The clock has moved; deadlines may have passed."""


Event: TypeAlias = Joined | Left | BecameReady | Completed | FoundCorrupted | TookResult | Declined | TimePassed


@dataclass(frozen=True)
class OfferRound:
    """Send the round's parameters to these sites."""

    sites: Sites
    round: int
    attempt: int


@dataclass(frozen=True)
class BindRound:
    """Tell these sites who contributes. `resumes`: behind the chunks that have arrived already."""

    sites: Sites
    contributors: Sites
    round: int
    attempt: int
    resumes: bool


@dataclass(frozen=True)
class CloseRound:
    """Apply the server rule to the complete sum."""

    round: int
    contributors: Sites


@dataclass(frozen=True)
class VoidRound:
    """Drop the sums of this attempt; cut off those that it waited for."""

    round: int
    attempt: int
    missing: Sites


@dataclass(frozen=True)
class SendResult:
    """Send the last aggregate to these sites."""

    sites: Sites


@dataclass(frozen=True)
class EndRun:
    """Write the run's record and tell everyone."""

    over: Over


Effect: TypeAlias = OfferRound | BindRound | CloseRound | VoidRound | SendResult | EndRun
Outcome: TypeAlias = tuple[State, tuple[Effect, ...]]


def begin(terms: Terms, now: float) -> Gathering:
    """The state before anyone has joined."""
    return Gathering(deadline=now + terms.deadlines.join_seconds)


def advance(terms: Terms, state: State, event: Event, now: float) -> Outcome:
    """The next state and what has to be done, in order."""
    match state:
        case Gathering():
            return _gather(terms, state, event, now)
        case Training() | Collecting() | Interrupted():
            return _work(terms, state, event, now)
        case Finishing():
            return _finish(state, event, now)
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
        case Declined(site=site):
            state = replace(state, joined=state.joined - {site}, declined=state.declined | {site})
        case _:
            pass
    able = terms.sites - state.declined
    if len(able) < terms.quorum:
        return _end(is_complete=False, reason="too few sites agree to take part", missing=state.declined)
    if state.joined >= able:
        return _start(terms, state.joined, now)
    if now >= state.deadline:
        if len(state.joined) >= terms.quorum:
            return _start(terms, state.joined, now)
        return _end(is_complete=False, reason="too few sites joined in time", missing=terms.sites - state.joined)
    return state, ()


def _start(terms: Terms, joined: Sites, now: float) -> Outcome:
    return _offer(terms, Step(round=0, attempt=0, bound=joined, present=joined), now)


def _offer(terms: Terms, step: Step, now: float) -> Outcome:
    deadline = _deadline(terms, step.bound - step.present, now)
    offer = OfferRound(step.bound, step.round, step.attempt)
    if terms.binds_early:
        return Collecting(step=step, deadline=deadline), (offer, _bind(step))
    return Training(step=step, deadline=deadline), (offer,)


def _deadline(terms: Terms, absent: Sites, now: float) -> float:
    deadlines = terms.deadlines
    return now + (
        min(deadlines.grace_seconds, deadlines.contribute_seconds) if absent else deadlines.contribute_seconds
    )


def _bind(step: Step) -> BindRound:
    return BindRound(step.bound, step.bound, step.round, step.attempt, resumes=False)


def _work(terms: Terms, state: Training | Collecting | Interrupted, event: Event, now: float) -> Outcome:
    match event:
        case Joined(site=site):
            return _return(terms, state, site, now)
        case Left(site=site):
            return _lose(terms, state, site, now)
        case Declined(site=site, reason=reason) if site in state.step.bound:
            text = f"{site} takes no further part ({reason.name.lower().replace('_', ' ')})"
            return _end(is_complete=False, reason=text, missing=frozenset({site}))
        case BecameReady(site=site, round=number, attempt=attempt) if isinstance(state, Training):
            if (number, attempt) != (state.step.round, state.step.attempt) or site not in state.step.bound:
                return state, ()
            ready = state.ready | {site}
            if ready < state.step.bound:
                return replace(state, ready=ready), ()
            deadline = now + terms.deadlines.contribute_seconds
            return Collecting(step=state.step, deadline=deadline), (_bind(state.step),)
        case Completed(site=site) if isinstance(state, Collecting):
            return _complete(terms, replace(state, complete=state.complete | {site}), now)
        case FoundCorrupted() if isinstance(state, Collecting):
            step = state.step
            if step.attempt + 1 == MOST_ATTEMPTS_AT_CORRUPTION:
                return _end(is_complete=False, reason="the contributions do not add up", missing=frozenset())
            after, effects = _offer(terms, replace(step, attempt=step.attempt + 1), now)
            return after, (VoidRound(step.round, step.attempt, frozenset()), *effects)
        case _:
            return _check_deadline(terms, state, now)


def _return(terms: Terms, state: Training | Collecting | Interrupted, site: str, now: float) -> Outcome:
    step = replace(state.step, present=state.step.present | {site})
    if site not in step.bound:
        return replace(state, step=replace(step, entering=step.entering | {site})), ()
    offer = OfferRound(frozenset({site}), step.round, step.attempt)
    match state:
        case Interrupted():
            if step.bound <= step.present:
                return _offer(terms, replace(step, attempt=step.attempt + 1), now)
            return replace(state, step=step), ()
        case Training():
            deadline = _deadline(terms, step.bound - step.present, now)
            return replace(state, step=step, ready=state.ready - {site}, deadline=deadline), (offer,)
        case Collecting():
            deadline = _deadline(terms, step.bound - step.present - state.complete, now)
            bind = BindRound(frozenset({site}), step.bound, step.round, step.attempt, resumes=True)
            return replace(state, step=step, deadline=deadline), (offer, bind)


def _lose(terms: Terms, state: Training | Collecting | Interrupted, site: str, now: float) -> Outcome:
    step = replace(state.step, present=state.step.present - {site}, entering=state.step.entering - {site})
    has_sent = isinstance(state, Collecting) and site in state.complete
    if isinstance(state, Interrupted) or site not in step.bound or has_sent:
        return replace(state, step=step), ()
    return replace(state, step=step, deadline=min(state.deadline, now + terms.deadlines.grace_seconds)), ()


def _complete(terms: Terms, state: Collecting, now: float) -> Outcome:
    step = state.step
    if state.complete < step.bound:
        return state, ()
    close = CloseRound(step.round, step.bound)
    following = replace(step, round=step.round + 1, attempt=0, bound=step.bound | step.entering, entering=frozenset())
    if following.round < terms.rounds:
        after, effects = _offer(terms, following, now)
        return after, (close, *effects)
    deadline = now + terms.deadlines.contribute_seconds
    return Finishing(step=following, deadline=deadline), (close, SendResult(following.present))


def _check_deadline(terms: Terms, state: Training | Collecting | Interrupted, now: float) -> Outcome:
    if now < state.deadline:
        return state, ()
    step = state.step
    match state:
        case Interrupted():
            return _end(is_complete=False, reason="a site did not come back in time", missing=step.bound - step.present)
        case Training():
            missing = step.bound - state.ready
        case Collecting():
            missing = step.bound - state.complete
    void = VoidRound(step.round, step.attempt, missing)
    step = replace(step, present=step.present - missing)
    return Interrupted(step=step, deadline=now + terms.deadlines.return_seconds), (void,)


def _finish(state: Finishing, event: Event, now: float) -> Outcome:
    match event:
        case TookResult(site=site):
            state = replace(state, done=state.done | {site})
        case Joined(site=site):
            return state, (SendResult(frozenset({site})),)
        case _:
            pass
    missing = state.step.bound - state.done
    if not missing or now >= state.deadline:
        return _end(is_complete=True, reason="all rounds were made", missing=missing)
    return state, ()


def _end(*, is_complete: bool, reason: str, missing: Sites) -> Outcome:
    over = Over(is_complete=is_complete, reason=reason, missing=missing)
    return over, (EndRun(over),)
