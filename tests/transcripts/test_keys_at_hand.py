"""No site is ever offered a masked round without the keys that it needs, whatever happened before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.rounds.phases import (
    Acknowledged,
    Advertised,
    Collecting,
    Declined,
    Event,
    Interrupted,
    Joined,
    Left,
    OfferRound,
    Past,
    SealKeySession,
    State,
    Terms,
    Training,
    WentBack,
)
from protos.wire.messages import SiteReason
from tests.transcripts.test_any_sequence import SECONDS, SITES, attempt_of, rules_of, sensible, walk_of


def drawn(state: State, data: st.DataObject) -> Event:
    """What leads on; of a run that waits also a site that lost its memory, and then the round that all still have."""
    site = data.draw(st.sampled_from(SITES))
    match state:
        case Interrupted(attempt=attempt, returns=True) if data.draw(st.booleans()):
            past = Past(attempt=attempt.number, bound=attempt.bound, was_bound=True)
            return WentBack(data.draw(st.integers(0, attempt.round)), past)
        case Interrupted() if data.draw(st.booleans()):
            return Joined(site, 0, is_current=False)
        case Training() | Collecting() if data.draw(st.integers(0, 3)) == 0:
            return Declined(site, SiteReason.WITHDRAWN) if data.draw(st.booleans()) else Left(site)
        case _:
            return sensible(state, data)


@settings(max_examples=80)
@given(rules=rules_of(st.just(True)), data=st.data())
def test_who_is_offered_a_masked_round_holds_its_keys(rules: Terms, data: st.DataObject) -> None:
    """A site that returns without keys makes all agree again before a round is offered to it."""
    walk = walk_of(rules)
    events = [*map(Joined, SITES), *(Advertised(site, 1) for site in SITES), *(Acknowledged(site, 1) for site in SITES)]
    for event in events:
        walk.step(event, 0.0)
    holders = frozenset(SITES)

    for _ in range(data.draw(st.integers(1, 60))):
        event, before = drawn(walk.state, data), attempt_of(walk.state)
        if isinstance(event, Joined) and before is not None and event.key_session != before.key_session:
            holders -= {event.site}
        for effect in walk.step(event, data.draw(SECONDS)):
            if isinstance(effect, SealKeySession):
                holders = effect.sites
            if isinstance(effect, OfferRound):
                assert effect.sites <= holders
