"""Laws of the round machine for every sequence of events, likely or absurd."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.rounds import phases
from coordinator.rounds.round import advance
from protos.wire.messages import SiteReason
from tests.transcripts.plays import terms

SITES, STRANGER = ("a", "b", "c", "d"), "mallory"


@dataclass
class Walk:
    """One run, its whole history, and the state that it has come to."""

    rules: phases.Terms
    state: phases.State = field(default_factory=phases.Gathering)
    now: float = 0.0
    effects: list[phases.Effect] = field(default_factory=list)

    def step(self, event: phases.Event, seconds: float = 0.0) -> tuple[phases.Effect, ...]:
        """Let an event happen some seconds later."""
        self.now += seconds
        self.state, wanted = advance(self.rules, self.state, event, self.now)
        self.effects += wanted
        return wanted


RULES = st.builds(
    lambda rounds, masked: terms(sites=frozenset(SITES), rounds=rounds, is_masked=masked),
    st.integers(1, 4),
    st.booleans(),
)
_SITE = st.sampled_from((*SITES, STRANGER))
_KEY_SESSION = st.integers(0, 4)
ANY_EVENT: st.SearchStrategy[phases.Event] = st.one_of(
    st.builds(phases.Joined, _SITE, _KEY_SESSION, st.booleans()),
    st.builds(phases.Left, _SITE),
    st.builds(phases.Advertised, _SITE, _KEY_SESSION),
    st.builds(phases.Acknowledged, _SITE, _KEY_SESSION),
    st.builds(phases.Completed, _SITE),
    st.builds(phases.Moved, _SITE),
    st.just(phases.FoundWrong()),
    st.builds(phases.TookResult, _SITE),
    st.builds(
        phases.Declined, _SITE, st.sampled_from((SiteReason.WITHDRAWN, SiteReason.REVOKED, SiteReason.MASKING_REFUSED))
    ),
    st.just(phases.TimePassed()),
)
SECONDS = st.sampled_from((0.0, 1.0, 9.0, 11.0, 51.0, 1001.0))


def _leading_on(state: phases.State, site: str) -> phases.Event:
    match state:
        case phases.Gathering() | phases.Interrupted():
            return phases.Joined(site)
        case phases.Agreeing(attempt=attempt, advertised=advertised):
            return (phases.Acknowledged if advertised == frozenset(SITES) else phases.Advertised)(
                site, attempt.key_session
            )
        case phases.Collecting():
            return phases.Completed(site)
        case _:
            return phases.TookResult(site)


def drawn(state: phases.State, data: st.DataObject) -> phases.Event:
    """An event that leads on, so that walks reach every phase; a quarter of them are absurd."""
    is_absurd = data.draw(st.integers(0, 3)) == 0
    return data.draw(ANY_EVENT) if is_absurd else _leading_on(state, data.draw(st.sampled_from(SITES)))


def _attempt_of(state: phases.State) -> phases.Attempt | None:
    return None if isinstance(state, phases.Gathering | phases.Over) else state.attempt


def check(walk: Walk, before: phases.State, wanted: tuple[phases.Effect, ...]) -> None:
    """Laws after every single event."""
    earlier, later = _attempt_of(before), _attempt_of(walk.state)
    for effect in wanted:
        match effect:
            case phases.OfferRound(sites=sites) | phases.SendResult(sites=sites) | phases.VoidRound(missing=sites):
                assert sites <= walk.rules.sites
            case _:
                pass
    if earlier is not None and later is not None:
        assert (later.round, later.number, later.key_session) >= (earlier.round, earlier.number, earlier.key_session)
    if isinstance(walk.state, phases.Collecting) and walk.rules.is_masked and not walk.state.complete:
        assert walk.state.attempt.has_keys
    if any(isinstance(effect, phases.OfferRound) and not effect.resumes for effect in wanted):
        assert isinstance(walk.state, phases.Collecting)


def _check_history(walk: Walk) -> None:
    ends = [effect for effect in walk.effects if isinstance(effect, phases.EndRun)]
    assert len(ends) == isinstance(walk.state, phases.Over)
    assert not ends or walk.effects[-1] == ends[0]
    closed = [effect.round for effect in walk.effects if isinstance(effect, phases.CloseRound)]
    assert closed == list(range(len(closed)))
    sessions = [effect.key_session for effect in walk.effects if isinstance(effect, phases.OpenKeySession)]
    assert sessions == list(range(1, len(sessions) + 1))
    offered: tuple[int, int] = (-1, -1)
    for effect in walk.effects:
        match effect:
            case phases.OfferRound(round=number, attempt=attempt, resumes=False, sites=sites):
                assert (number, attempt) > offered
                assert sites == walk.rules.sites
                offered = (number, attempt)
            case phases.OfferRound(round=number, attempt=attempt):
                assert (number, attempt) == offered
            case phases.CloseRound(round=number):
                assert number == offered[0]
            case _:
                pass


@settings(max_examples=200)
@given(rules=RULES, data=st.data())
def test_no_sequence_of_events_breaks_a_run(rules: phases.Terms, data: st.DataObject) -> None:
    """Rounds only rise, every sum is over all sites, a run ends once, strangers get nothing."""
    walk = Walk(rules)

    for _ in range(data.draw(st.integers(1, 60))):
        before = walk.state
        wanted = walk.step(drawn(walk.state, data), data.draw(SECONDS))
        check(walk, before, wanted)
        closed = [effect.round for effect in wanted if isinstance(effect, phases.CloseRound)]
        if closed and isinstance(
            walk.state, phases.Collecting | phases.Agreeing
        ):  # a closing decides how many rounds there are
            most = walk.rules.rounds
            walk.rules = replace(walk.rules, rounds=data.draw(st.integers(min(most, closed[0] + 2), most)))

    _check_history(walk)


@settings(max_examples=100)
@given(rules=RULES, data=st.data())
def test_only_a_site_that_can_never_go_on_a_wrong_sum_or_a_person_ends_a_run(
    rules: phases.Terms, data: st.DataObject
) -> None:
    """Sites may leave, be withdrawn, be silent and lose their keys, as long as they like."""
    walk = Walk(rules)
    for _ in range(data.draw(st.integers(0, 40))):
        event = drawn(walk.state, data)
        is_final = isinstance(event, phases.Declined) and event.reason is SiteReason.MASKING_REFUSED
        if not is_final and not isinstance(event, phases.FoundWrong) and getattr(event, "is_current", True):
            walk.step(event, data.draw(SECONDS))
    assert not isinstance(walk.state, phases.Over) or walk.state.is_complete

    for _ in range(40):
        walk.step(phases.TimePassed(), 2000.0)
        for site in SITES:
            if not isinstance(walk.state, phases.Over | phases.Finishing):
                walk.step(phases.Left(site))
                walk.step(phases.Joined(site))
        for _ in range(3):
            for site in SITES:
                walk.step(_leading_on(walk.state, site))

    assert isinstance(walk.state, phases.Over)
    assert walk.state.is_complete
    _check_history(walk)


@settings(max_examples=100)
@given(rules=RULES, events=st.lists(st.tuples(ANY_EVENT, SECONDS), max_size=40))
def test_a_stranger_changes_nothing(rules: phases.Terms, events: list[tuple[phases.Event, float]]) -> None:
    """A run with a stranger's messages and the same run without them have the same result."""
    walk, quiet = Walk(rules), Walk(rules)

    for event, seconds in events:
        is_strange = getattr(event, "site", "") == STRANGER
        walk.step(event, seconds)
        if is_strange:
            walk.step(phases.TimePassed())
        quiet.step(phases.TimePassed() if is_strange else event, seconds)

    assert walk.effects == quiet.effects


@settings(max_examples=100)
@given(rules=RULES, order=st.permutations(SITES))
def test_the_order_of_answers_leaves_the_run_the_same(rules: phases.Terms, order: list[str]) -> None:
    """Sites that answer in another order make the same rounds."""

    def honest(names: list[str]) -> list[phases.Effect]:
        walk = Walk(rules)
        while not isinstance(walk.state, phases.Over):
            for site in names:
                walk.step(_leading_on(walk.state, site))
        return walk.effects

    assert honest(list(SITES)) == honest(order)


@given(rules=RULES, data=st.data())
def test_a_person_ends_a_run_in_every_state(rules: phases.Terms, data: st.DataObject) -> None:
    """At once and for good."""
    walk = Walk(rules)
    for _ in range(data.draw(st.integers(0, 30))):
        walk.step(drawn(walk.state, data), data.draw(SECONDS))

    walk.step(phases.WasStopped())

    assert isinstance(walk.state, phases.Over)
    _check_history(walk)
