"""The display of a running agent for a person at a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from protos.wire.messages import Bind, Finish, Offer, Stage
from site_agent.service.status_socket import shown
from site_agent.site_standing import Standing
from tests.for_each import for_each


def in_round(number: int) -> Standing:
    """An agent that sends its contribution of a round of ten."""
    standing = Standing()
    standing.began_run("heart-v1", 10)
    standing.saw(Bind(number, 0, ("a", "b", "c"), 0))
    return standing


def test_a_round_is_shown_as_people_count() -> None:
    """Round 3, counted from 0, is the fourth of ten; without a run nothing is counted."""
    assert shown(in_round(3)) == ("heart-v1: sending", 4, 10)
    assert shown(Standing()) == ("no run: starting", 0, 1)


@for_each("seed", range(30))
def test_a_sites_pace_is_that_of_its_rounds_after_any_interruption(seed: int) -> None:
    """Rounds of a minute, streams that end for hours, repeated attempts, returns: a minute, and an end not passed."""
    generator, now = np.random.default_rng(seed), datetime(2026, 5, 1, tzinfo=UTC)
    standing, number, rounds = Standing(lambda: now), 0, 40
    standing.began_run("heart-v1", rounds)
    standing.connected()
    while number < rounds:
        standing.saw(Offer(number, 0, bytes(32), Stage.TRAINING, (), None))
        match generator.integers(8):
            case 0:  # the stream ends for hours, and the round is offered once more
                standing.parted()
                now += timedelta(minutes=int(generator.integers(5, 2000)))
                standing.connected()
                continue
            case 1:  # the attempt is repeated, or the run goes back
                now += timedelta(minutes=int(generator.integers(5, 200)))
                number = max(0, number - int(generator.integers(0, 3)))
                standing.parted()
                standing.connected()
                continue
        now += timedelta(minutes=1)
        number += 1
        facts = standing.facts()
        if facts["seconds_a_round"] is not None:
            assert facts["seconds_a_round"] == 60
            assert facts["ends"] is None or datetime.fromisoformat(facts["ends"]) >= now
            assert facts["ends"] is None or datetime.fromisoformat(facts["ends"]) <= now + timedelta(minutes=rounds)
    standing.saw(Finish(rounds, bytes(32), (), None))

    assert standing.facts()["ends"] is None
    assert standing.facts()["concluding_since"] == now.isoformat(timespec="seconds")
