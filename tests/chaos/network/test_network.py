"""Bad networks: real programs behind a proxy that cuts or falls silent give the same numbers, and end by themselves."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from tests.chaos.network.federation import FAR, Federation, federation
from tests.chaos.network.proxy import Proxy, proxied

CHUNK_BYTES = 4 * CHUNK_PARAMETERS + 8
SLACK_BYTES = 64 << 10  # greetings, certificates, keys and the frames around chunks, for one connection


def through(proxy: Proxy, folder: Path, *, parameters: int, rounds: int) -> AbstractContextManager[Federation]:
    """A federation on loopback whose far site calls the coordinator by a proxy."""

    def port(target: int) -> int:
        proxy.target = target
        return proxy.port

    return federation(folder, parameters=parameters, rounds=rounds, far_port=port)


def _assert_resumed(made: Federation, uploaded: list[int]) -> None:
    parameters = made.setting.parameters
    total = 4 * parameters + 8 * (parameters // CHUNK_PARAMETERS)
    released = made.happened(FAR, "contribution_released")
    first, *resumed = released
    assert first["bytes"] == total
    assert len(resumed) == len(uploaded) - 1
    for facts, earlier in zip(resumed, released, strict=False):
        assert facts["first_chunk"] > earlier["first_chunk"]
        assert facts["bytes"] == total - facts["first_chunk"] * CHUNK_BYTES
    assert 0 < uploaded[-1] - resumed[-1]["bytes"] < SLACK_BYTES


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", [{"cut_after": 2_200_000, "cuts": 2}, {"silent_after": 3_200_000}])
def test_an_upload_that_stops_goes_on_behind_the_last_whole_chunk(how: dict[str, int], tmp_path: Path) -> None:
    """After two cuts of 6 MB, or when a proxy is silent and closes nothing, the missing bytes are sent and counted."""
    with (
        proxied(Proxy(0, **how)) as proxy,
        through(proxy, tmp_path / "f", parameters=12 * CHUNK_PARAMETERS, rounds=1) as made,
    ):
        made.finish(600.0)

        assert (proxy.cuts, proxy.has_fallen_silent) == (0, "silent_after" in how)
        _assert_resumed(made, proxy.uploaded)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_proxy_that_cuts_idle_connections_costs_no_round(tmp_path: Path) -> None:
    """A proxy cuts the connection after five idle seconds while another site is away. The site reconnects each time."""
    with (
        proxied(Proxy(0, idle_seconds=5.0)) as proxy,
        through(proxy, tmp_path / "f", parameters=1000, rounds=30) as made,
    ):
        made.wait_until(lambda: '"round_closed"' in made.log("coordinator"))
        made.processes["site-02"].send_signal(signal.SIGSTOP)  # so that everybody waits
        made.wait_until(lambda: proxy.idle_cuts >= 2)
        made.processes["site-02"].send_signal(signal.SIGCONT)
        made.finish(600.0)

    print(f"\n{proxy.idle_cuts} idle connections cut")
