"""The pace of a run depends only on undisturbed rounds."""

from __future__ import annotations

from coordinator.rounds.transfers import RoundTimes


def test_a_disturbed_attempt_is_no_measure() -> None:
    """A site is away for an hour in the middle of an attempt; a repeated attempt begins with its own offer."""
    seconds = 1000.0
    times = RoundTimes(lambda: seconds)
    times.offered(0, 0)
    seconds += 20
    assert times.under_way == 20
    times.disturbed()
    seconds += 3600
    times.offered(0, 0)  # again, to the site that came back
    times.closed()
    times.offered(1, 0)
    seconds += 5
    times.offered(1, 1)
    seconds += 7
    times.closed()

    assert times.newest == (7,)
