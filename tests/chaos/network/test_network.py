"""Bad networks: real programs on slow, lossy, cut, silent or unplugged lines give the same numbers.

Lines are network namespaces that the test makes (root only), or a proxy on loopback. Every run ends by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from tests.chaos.network.federation import FAR, Federation, federation
from tests.chaos.network.namespaces import AWAY, HUB, Impossible, Line, line
from tests.chaos.network.proxy import Proxy, proxied
from tests.chaos.network.wire import Wire, wired

CHUNK_BYTES = 4 * CHUNK_PARAMETERS + 8
SLACK_BYTES = 64 << 10  # greetings, certificates, keys and the frames around chunks, for one connection


@pytest.fixture
def cable() -> Iterator[Line]:
    """Two namespaces and the line between them."""
    try:
        with line() as made:
            yield made
    except Impossible as lacking:
        pytest.skip(f"no namespaces here: {lacking}")


def over(cable: Line, folder: Path, *, parameters: int, rounds: int) -> AbstractContextManager[Federation]:
    """A federation whose coordinator and near sites are in one namespace, the far one in the other."""
    return federation(
        folder,
        parameters=parameters,
        rounds=rounds,
        host=HUB,
        hub=cable.within(cable.hub),
        far=cable.within(cable.away),
    )


def through(proxy: Proxy, folder: Path, *, parameters: int, rounds: int) -> AbstractContextManager[Federation]:
    """A federation on loopback whose far site calls the coordinator by a proxy."""

    def port(target: int) -> int:
        proxy.target = target
        return proxy.port

    return federation(folder, parameters=parameters, rounds=rounds, far_port=port)


def assert_resumed(made: Federation, uploaded: list[int]) -> None:
    """After a broken line only the missing chunks of the round are sent, by the log and the proxy's count."""
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
def test_an_upload_that_is_cut_goes_on_behind_the_last_whole_chunk(tmp_path: Path) -> None:
    """After two cuts in the middle of 6 MB, the site sends only the missing bytes; they are counted."""
    with (
        proxied(Proxy(0, cut_after=2_200_000, cuts=2)) as proxy,
        through(proxy, tmp_path / "f", parameters=12 * CHUNK_PARAMETERS, rounds=1) as made,
    ):
        made.finish()

        assert proxy.cuts == 0
        assert_resumed(made, proxy.uploaded)


@pytest.mark.slow
def test_loss_and_delay_change_no_bit(tmp_path: Path, cable: Line) -> None:
    """On a line with 20 ms each way that loses every twentieth frame, two rounds end correctly."""
    with (
        wired(cable, delay_seconds=0.02, loss=0.05) as wire,
        over(cable, tmp_path / "f", parameters=20_000, rounds=2) as made,
    ):
        made.finish()

    assert wire.lost > 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("delay_seconds", "loss", "rate"), [(0.1, 0.0, None), (0.1, 0.05, None), (0.0, 0.0, "1mbit")])
def test_a_bad_line_only_takes_longer(
    tmp_path: Path, cable: Line, delay_seconds: float, loss: float, rate: str | None
) -> None:
    """200 ms there and back, 5% loss on top, or one megabit a second: each round is made at the first attempt."""
    with wired(cable, delay_seconds=delay_seconds, loss=loss) as wire:
        if rate:
            _limit(cable, rate)
        with over(cable, tmp_path / "f", parameters=300_000, rounds=2) as made:
            made.finish(1000.0)

            assert "round_void" not in made.log("coordinator")
    print(f"\n{wire.frames} frames, {wire.lost} lost, {wire.uploaded} bytes up for {2 * 1_200_000}")


def _limit(cable: Line, rate: str) -> None:
    try:
        cable.limit_rate(rate)
    except Impossible as lacking:
        pytest.skip(str(lacking))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_cable_that_is_pulled_for_a_minute_costs_nothing(tmp_path: Path, cable: Line) -> None:
    """After the cable was unplugged during an upload, the site reconnects a minute later and sends missing chunks."""
    parameters = 8 * CHUNK_PARAMETERS
    with wired(cable) as wire:
        _limit(cable, "8mbit")
        with over(cable, tmp_path / "f", parameters=parameters, rounds=1) as made:
            made.wait_until(lambda: wire.uploaded > 4 * parameters // 2)
            cable.pull_cable()
            _elapse(made, 60.0)
            cable.plug_in_cable()
            made.finish(600.0)

            assert_went_on(made, wire)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_site_may_get_another_address(tmp_path: Path, cable: Line) -> None:
    """During an upload the provider changes the address: the site connects from the new one and continues."""
    parameters = 8 * CHUNK_PARAMETERS
    with wired(cable) as wire:
        _limit(cable, "8mbit")
        with over(cable, tmp_path / "f", parameters=parameters, rounds=1) as made:
            made.wait_until(lambda: wire.uploaded > 4 * parameters // 2)
            cable.change_address(AWAY, "10.77.0.3")
            made.finish(600.0)

            assert_went_on(made, wire)


def assert_went_on(made: Federation, wire: Wire) -> None:
    """No attempt was void, and less than a model and a half went up for one round that broke half-way."""
    assert "round_void" not in made.log("coordinator")
    assert [facts for facts in made.happened(FAR, "contribution_released") if facts["first_chunk"]]
    model = 4 * made.setting.parameters
    print(f"\n{wire.uploaded} bytes up for a model of {model}")
    assert wire.uploaded < 1.5 * model


def _elapse(made: Federation, seconds: float) -> None:
    """Let time pass, as the world does."""
    with pytest.raises(TimeoutError):
        made.wait_until(lambda: False, seconds)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_connection_that_is_open_on_one_side_only_is_noticed(tmp_path: Path) -> None:
    """A proxy becomes silent during an upload and closes nothing: keepalive ends the connection.

    The rest is sent again.
    """
    with (
        proxied(Proxy(0, silent_after=3_200_000)) as proxy,
        through(proxy, tmp_path / "f", parameters=12 * CHUNK_PARAMETERS, rounds=1) as made,
    ):
        made.finish(600.0)

        assert proxy.has_fallen_silent
        assert_resumed(made, proxy.uploaded)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_proxy_that_cuts_idle_connections_costs_no_round(tmp_path: Path) -> None:
    """A proxy cuts the connection after five idle seconds while another site is away.

    The site reconnects each time.
    """
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
