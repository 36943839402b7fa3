"""The pace of a running agent, as `site-agent status` shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from protos.wire.messages import Finish, Offer, Stage
from site_agent.site_standing import Standing
from tests.for_each import for_each


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
