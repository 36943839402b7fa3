"""Laws of the round machine for every sequence of events, likely or absurd."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Over,
    SealKeySession,
    SendResult,
    SendRoster,
    State,
    Terms,
    TimePassed,
    TookResult,
    Training,
    VoidRound,
)
from coordinator.rounds.round import advance, begin
from coordinator.rounds.taken_out import is_too_late
from protos.wire.messages import SiteReason
from tests.transcripts.plays import CONTRIBUTE, terms

SITES = ("a", "b", "c", "d")
STRANGER = "mallory"


@dataclass
class Walk:
    """One run, its whole history, and the state that it has come to."""

    rules: Terms
    state: State
    now: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def step(self, event: Event, seconds: float) -> tuple[Effect, ...]:
        """Let an event happen some seconds later."""
        self.now += seconds
        self.state, wanted = advance(self.rules, self.state, event, self.now)
        self.effects += wanted
        self.states.append(self.state)
        return wanted


def walk_of(rules: Terms) -> Walk:
    """A run that has just begun."""
    return Walk(rules, begin(rules, 0.0))


def rules_of(masked: st.SearchStrategy[bool]) -> st.SearchStrategy[Terms]:
    """Drawn terms of a run of four sites."""
    return st.builds(
        lambda quorum, rounds, early, masked, lost: terms(
            sites=frozenset(SITES),
            quorum=quorum,
            rounds=rounds,
            binds_early=early,
            early_seconds=2 * CONTRIBUTE if early and lost == "wait" else None,
            is_masked=masked,
            on_lost_site=lost,
        ),
        st.integers(1, 4),
        st.integers(1, 4),
        st.booleans(),
        masked,
        st.sampled_from(("wait", "continue")),
    )


RULES = rules_of(st.booleans())
_SITE = st.sampled_from((*SITES, STRANGER))
_KEY_SESSION = st.integers(0, 4)
ANY_EVENT: st.SearchStrategy[Event] = st.one_of(
    st.builds(Joined, _SITE, _KEY_SESSION, st.booleans()),
    st.builds(Left, _SITE),
    st.builds(Advertised, _SITE, _KEY_SESSION),
    st.builds(Acknowledged, _SITE, _KEY_SESSION),
    st.builds(BecameReady, _SITE, st.integers(0, 3), st.integers(0, 3)),
    st.builds(Completed, _SITE),
    st.just(FoundCorrupted()),
    st.builds(TookResult, _SITE),
    st.builds(Declined, _SITE, st.sampled_from(SiteReason)),
    st.just(TimePassed()),
)
SECONDS = st.sampled_from((0.0, 1.0, 9.0, 11.0, 51.0, 1001.0))


def sensible(state: State, data: st.DataObject) -> Event:
    """An event that leads on, so that walks reach every phase; a quarter of them are absurd."""
    site = data.draw(st.sampled_from(SITES))
    if data.draw(st.integers(0, 3)) == 0:
        return data.draw(ANY_EVENT)
    match state:
        case Gathering() | Interrupted():
            return Joined(site)
        case Agreeing(attempt=attempt, advertised=advertised):
            return (Acknowledged if advertised == attempt.bound else Advertised)(site, attempt.key_session)
        case Training(attempt=attempt):
            return BecameReady(site, attempt.round, attempt.number)
        case Collecting(attempt=attempt):
            return Completed(site)
        case Finishing():
            return TookResult(site)
        case _:
            return TimePassed()


def attempt_of(state: State) -> Attempt | None:
    """The step that a phase works on."""
    return None if isinstance(state, Gathering | Over) else state.attempt


def named(effect: Effect) -> frozenset[str]:
    """Every site that an effect speaks of."""
    match effect:
        case BindRound(sites=sites, contributors=contributors):
            return sites | contributors
        case CloseRound(contributors=contributors):
            return contributors
        case VoidRound(missing=missing):
            return missing
        case EndRun(over=over):
            return over.missing
        case OpenKeySession() | SendRoster() | SealKeySession() | OfferRound() | SendResult():
            return effect.sites


TAKEN_OUT = (SiteReason.WITHDRAWN, SiteReason.REVOKED)


def withdrawn_by(before: Attempt, event: Event) -> frozenset[str]:
    """The sites that persons, their own or the office, have taken out, once an event has happened."""
    if isinstance(event, Declined) and event.reason in TAKEN_OUT:
        return before.withdrawn | {event.site}
    return before.withdrawn


def check_taken_out(walk: Walk, before: State, event: Event) -> None:
    """Nobody waits for a withdrawn site, and it ends no run that has begun."""
    earlier = attempt_of(before)
    if not (isinstance(event, Declined) and event.reason in TAKEN_OUT) or earlier is None:
        return
    if event.site not in earlier.bound or isinstance(before, Finishing):
        return
    later = attempt_of(walk.state)
    assert later is not None, "somebody's revocation or withdrawal has ended the run"
    if isinstance(before, Collecting) and event.site in before.complete:
        assert walk.state == replace(before, attempt=later)
        return
    assert isinstance(walk.state, Interrupted) or event.site not in later.bound
    others = earlier.bound - withdrawn_by(earlier, event)
    may = walk.rules.on_lost_site == "continue" and len(earlier.bound & (earlier.present - {event.site}))
    is_back = not (isinstance(before, Interrupted) and before.returns)
    if may >= walk.rules.quorum and others <= earlier.present and is_back:
        assert not isinstance(walk.state, Interrupted)


def check(walk: Walk, before: State, event: Event, wanted: tuple[Effect, ...]) -> None:
    """Laws after every single event."""
    check_taken_out(walk, before, event)
    assert all(named(effect) <= walk.rules.sites for effect in wanted)
    earlier, later = attempt_of(before), attempt_of(walk.state)
    if earlier is not None and later is not None:
        assert (later.round, later.number) >= (earlier.round, earlier.number)
        assert later.key_session >= earlier.key_session
        if (later.round, later.number) == (earlier.round, earlier.number):
            assert later.bound == earlier.bound
        elif later.round == earlier.round and later.bound != earlier.bound:
            assert walk.rules.on_lost_site == "continue"
            assert later.bound < earlier.bound
            late = frozenset(site for site in earlier.bound if is_too_late(later, site))
            assert isinstance(before, Interrupted) or earlier.bound - later.bound <= withdrawn_by(earlier, event) | late
        elif later.round != earlier.round:
            # A plan that waits for lost sites keeps the sites with which its run began.
            is_fixed = isinstance(walk.state, Finishing) or walk.rules.on_lost_site == "wait"
            enters = frozenset() if is_fixed else earlier.entering
            gone = (earlier.bound | enters) - later.bound
            assert later.bound == (earlier.bound | enters) - gone
            assert not gone or (walk.rules.on_lost_site == "continue" and gone <= withdrawn_by(earlier, event))
    if later is not None:
        assert later.bound | later.present | later.entering | later.agreed <= walk.rules.sites
        assert not later.entering & later.bound
        assert later.entering <= later.present
        assert not any(is_too_late(later, site) for site in later.entering)
        assert len(later.bound) >= walk.rules.quorum
    if walk.rules.is_masked and isinstance(walk.state, Training | Collecting):
        assert later is not None
        has_sent = walk.state.complete if isinstance(walk.state, Collecting) else frozenset()
        assert later.bound - has_sent <= later.agreed <= later.bound


def check_history(walk: Walk) -> None:
    """Laws of a whole run."""
    ends = [effect for effect in walk.effects if isinstance(effect, EndRun)]
    assert len(ends) == isinstance(walk.state, Over)
    assert not ends or walk.effects[-1] == ends[0]
    closed = [effect.round for effect in walk.effects if isinstance(effect, CloseRound)]
    assert closed == list(range(len(closed)))
    if isinstance(walk.state, Over) and walk.state.is_complete:
        assert len(closed) == walk.rules.rounds
    epochs = [effect.key_session for effect in walk.effects if isinstance(effect, OpenKeySession)]
    assert epochs == list(range(1, len(epochs) + 1))
    bound: tuple[int, int, frozenset[str]] | None = None
    for effect in walk.effects:
        match effect:
            case BindRound(contributors=contributors, round=number, attempt=attempt, resumes=False):
                assert bound is None or (number, attempt) > bound[:2]
                bound = (number, attempt, contributors)
            case BindRound(contributors=contributors, round=number, attempt=attempt):
                assert bound == (number, attempt, contributors)
            case CloseRound(round=number, contributors=contributors):
                assert bound is not None
                assert (number, contributors) == (bound[0], bound[2])
            case _:
                pass


@settings(max_examples=150)
@given(rules=RULES, data=st.data())
def test_no_sequence_of_events_breaks_a_run(rules: Terms, data: st.DataObject) -> None:
    """Whatever happens: rounds only rise, contributors never follow arrival, a run ends once, strangers get nothing."""
    walk = walk_of(rules)

    for _ in range(data.draw(st.integers(1, 60))):
        before = walk.state
        event = sensible(walk.state, data)
        wanted = walk.step(event, data.draw(SECONDS))
        check(walk, before, event, wanted)

    check_history(walk)


@settings(max_examples=100)
@given(rules=RULES, site=st.sampled_from(SITES), data=st.data())
def test_a_revoked_site_is_one_that_was_withdrawn(rules: Terms, site: str, data: st.DataObject) -> None:
    """Once a run has begun it makes no difference whether the office takes a site out or its own people do."""
    walk = walk_of(rules)
    for _ in range(data.draw(st.integers(4, 40))):
        walk.step(sensible(walk.state, data), data.draw(SECONDS))

    revoked, withdrawn = (advance(rules, walk.state, Declined(site, reason), walk.now) for reason in TAKEN_OUT[::-1])

    assert isinstance(walk.state, Gathering) or revoked == withdrawn


@settings(max_examples=100)
@given(rules=RULES, data=st.data())
def test_a_run_that_becomes_shorter_ends_after_the_round_that_was_offered(rules: Terms, data: st.DataObject) -> None:
    """Whenever a closing decides how many rounds there are, so many are made: at least the one already offered."""
    walk = walk_of(rules)

    for _ in range(data.draw(st.integers(1, 80))):
        before = walk.state
        event = sensible(walk.state, data)
        wanted = walk.step(event, data.draw(SECONDS))
        check(walk, before, event, wanted)
        closed = [effect.round for effect in wanted if isinstance(effect, CloseRound)]
        attempt = attempt_of(walk.state)
        if closed and attempt is not None and not isinstance(walk.state, Finishing):
            most = walk.rules.rounds
            walk.rules = replace(walk.rules, rounds=data.draw(st.integers(min(most, closed[0] + 2), most)))

    check_history(walk)


@settings(max_examples=100)
@given(rules=RULES, events=st.lists(st.tuples(ANY_EVENT, SECONDS), max_size=40))
def test_a_stranger_changes_nothing(rules: Terms, events: list[tuple[Event, float]]) -> None:
    """A run with a stranger's messages and the same run without them have the same result."""
    walk, quiet = walk_of(rules), walk_of(rules)

    for event, seconds in events:
        walk.step(event, seconds)
        quiet.step(TimePassed() if getattr(event, "site", "") == STRANGER else event, seconds)
        if getattr(event, "site", "") == STRANGER:
            walk.step(TimePassed(), 0.0)

    assert walk.effects == quiet.effects


@settings(max_examples=100)
@given(rules=RULES, data=st.data())
def test_every_run_ends_when_nobody_speaks_any_more(rules: Terms, data: st.DataObject) -> None:
    """From any state of a run, once all sites have left, the clock alone brings it to its end."""
    walk = walk_of(rules)
    for _ in range(data.draw(st.integers(0, 40))):
        walk.step(sensible(walk.state, data), data.draw(SECONDS))

    for site in SITES:
        walk.step(Left(site), 0.0)
    for _ in range(4):
        walk.step(TimePassed(), 2000.0)

    assert isinstance(walk.state, Over)
    check_history(walk)


@settings(max_examples=100)
@given(rules=RULES, order=st.permutations(SITES), data=st.data())
def test_the_order_of_answers_leaves_the_run_the_same(rules: Terms, order: list[str], data: st.DataObject) -> None:
    """Sites that answer in another order make the same rounds of the same contributors."""

    def honest(orders: list[list[str]]) -> list[Effect]:
        walk = walk_of(rules)
        while not isinstance(walk.state, Over):
            for site in orders[len(walk.states) % len(orders)]:
                match walk.state:
                    case Gathering():
                        walk.step(Joined(site), 0.0)
                    case Agreeing(attempt=attempt, advertised=advertised):
                        walk.step(
                            (Acknowledged if advertised == attempt.bound else Advertised)(site, attempt.key_session),
                            0.0,
                        )
                    case Training(attempt=attempt):
                        walk.step(BecameReady(site, attempt.round, attempt.number), 0.0)
                    case Collecting():
                        walk.step(Completed(site), 0.0)
                    case _:
                        walk.step(TookResult(site), 0.0)
        return walk.effects

    one = honest([list(SITES)])
    other = honest([order, data.draw(st.permutations(SITES))])

    assert one == other


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_the_walk_reaches_every_phase(masked: bool, early: bool) -> None:
    """An honest run passes through each phase that its terms have, so the laws above speak of them."""
    walk = walk_of(terms(is_masked=masked, binds_early=early, rounds=1))
    for site in "abc":
        walk.step(Joined(site), 0.0)
    for make in (Advertised, Acknowledged) if masked else ():
        for site in "abc":
            walk.step(make(site, 1), 0.0)
    for site in "" if early else "abc":
        walk.step(BecameReady(site, 0, 0), 0.0)
    for make in (Completed, TookResult):
        for site in "abc":
            walk.step(make(site), 0.0)

    phases = {type(state) for state in walk.states}
    assert phases == {Gathering, Collecting, Finishing, Over} | ({Agreeing} if masked else set()) | (
        set() if early else {Training}
    )
