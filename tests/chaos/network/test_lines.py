"""Lines as hospitals have them: real programs behind a relay with a rate and a delay, which cuts connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rehearsal.line_relay import Line, relaying
from tests.chaos.network.federation import federation


@pytest.mark.slow
def test_a_line_that_is_cut_often_carries_hardly_more_than_the_bytes_of_a_round(tmp_path: Path) -> None:
    """Parameters, contribution and result go on behind the last whole chunk. A cut loses less than one chunk."""
    parameters, line = 6_000_000, Line(0, megabits=60.0, round_trip_seconds=0.03, cut_bytes=24_000_000)

    def port(target: int) -> int:
        line.target = target
        return line.port

    with (
        relaying([line]),
        federation(tmp_path / "f", parameters=parameters, rounds=1, far_port=port, is_masked=True) as made,
    ):
        made.finish()

        assert len(line.passed) > 2
        assert sum(map(sum, line.passed)) <= 1.05 * 3 * 4 * parameters
        assert '"round_void"' not in made.log("coordinator")
