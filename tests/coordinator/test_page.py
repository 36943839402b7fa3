"""The status page: its content, its live updates, its isolation, and its look in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.configuration import CoordinatorConfiguration
from coordinator.network.control_socket import status_path
from coordinator.operations.status_page import StatusPage, site_rows
from coordinator.rounds.run import thinned
from coordinator.storage.journal import Journal
from host.local_server import serve_page
from pki.authority import Authority, FederationRecord
from pki.enrolment_decisions import invite_site
from pki.names import Address, federation_name, site_name
from pki.register import Register

CHROMIUM = shutil.which("chromium")
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
SITES = ("northfield", "riverside", "st-mary")
RUN = "heart-v1-0123456789ab"
ALONE = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorConfiguration:
    """A coordinator's places."""
    return configured(tmp_path_factory.mktemp("page"))


def configured(folder: Path) -> CoordinatorConfiguration:
    """A coordinator's places: three invited sites and a run of nine rounds in its journal."""
    record = FederationRecord(
        federation=federation_name("heart-study"),
        coordinator=Address.parse("coordinator.example.org:8443"),
        enrolment=Address.parse("coordinator.example.org:8444"),
        hosts=(),
    )
    now = datetime.now(UTC)
    authority = Authority.create(folder / "authority", record, passphrase="correct horse battery staple", now=now)
    with Register(authority.register_path) as register:
        for name in SITES:
            invite_site(
                authority, register, site_name(name), valid_for=timedelta(hours=1), is_pre_approved=False, now=now
            )
    times = (BEGAN + timedelta(seconds=0.5 * step) for step in range(1000))
    journal = Journal(folder / "state/runs" / RUN / "journal.jsonl", lambda: next(times))
    journal.add("announced", run=RUN, plan="00", software="0.1.0")
    for number in range(9):
        offered = {"attempt": 0, "sites": list(SITES), "was_bound": False, "redraw": 0, "parameters": "00"}
        journal.add("offered", round=number, **offered)
        journal.add("closed", round=number, sites=list(SITES))
    journal.sync()
    journal.close()
    snapshots = folder / "state/runs" / RUN / "snapshots"
    snapshots.mkdir()
    (snapshots / "before-0000000005.safetensors").write_bytes(b"0" * 5552)
    return CoordinatorConfiguration(
        listen="127.0.0.1:8443", authority=str(folder / "authority"), state=str(folder / "state")
    )


@pytest.fixture
def page(configuration: CoordinatorConfiguration) -> StatusPage:
    """The page of that coordinator."""
    return StatusPage(configuration)


def told(asked: int) -> bytes:
    """The status of a running coordinator when it is asked for the n-th time: a further round each time."""
    run = {
        "run": RUN, "study": "<b>heart</b>", "version": 1, "method": "global-layers", "masked": True,
        "phase": "collecting", "rounds": 40, "rounds_made": 8 + asked, "median_round_seconds": 0.5,
        "validation_curve": [[number, 0.7 - 0.05 * number + 0.004 * number**2] for number in range(9)],
    }  # fmt: skip
    sites = {name: {"connected": name != "riverside", "joined": name != "riverside"} for name in SITES}
    return json.dumps({"run": run, "sites": sites, "paused": False}).encode()


@asynccontextmanager
async def running(configuration: CoordinatorConfiguration) -> AsyncIterator[None]:
    """A coordinator that answers on its status socket, as a real one does."""
    asked = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(told(asked))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, status_path(Path(configuration.state))):
        yield
    status_path(Path(configuration.state)).unlink(missing_ok=True)


def ask(path: str = "/", host: str = "localhost:8480", method: str = "GET") -> bytes:
    """A request as a browser sends it."""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_the_page_tells_where_the_federation_stands(page: StatusPage, configuration: CoordinatorConfiguration) -> None:
    """Federation, run, sites, rounds, curve and checkpoints of a running coordinator are on the page."""

    async def main() -> str:
        async with running(configuration):
            return await page.main()

    html = asyncio.run(main())

    for word in ("heart-study", "9 of 40", "masked", *SITES, "invited", "0.50", "before-0000000005.safetensors", RUN):
        assert word in html
    assert html.count("<polyline") == 1
    assert "2 of 3" in html


def test_what_others_have_named_is_text(page: StatusPage, configuration: CoordinatorConfiguration) -> None:
    """Markup in the name of a study arrives as words, not as markup."""

    async def main() -> str:
        async with running(configuration):
            return await page.main()

    html = asyncio.run(main())

    assert "&lt;b&gt;heart&lt;/b&gt;" in html
    assert "<b>" not in html


def test_the_page_is_there_while_no_coordinator_runs(page: StatusPage) -> None:
    """Without a running coordinator the page reports it, and shows what the journal tells."""
    html = asyncio.run(page.main())

    assert "not running" in html
    assert "No run is active" in html
    assert html.count("northfield") >= 9


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:8480", "127.0.0.1.evil.example.org", ""])
def test_a_name_that_is_not_this_computers_is_refused(page: StatusPage, host: str) -> None:
    """A request for another host, as a page elsewhere could cause one, gets nothing."""
    answer = asyncio.run(page.respond(ask(host=host)))

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"heart-study" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed_over_it(page: StatusPage, method: str) -> None:
    """Anything but a GET request is refused."""
    assert asyncio.run(page.respond(ask(method=method))).startswith(b"HTTP/1.1 405")


def test_the_page_asks_for_nothing_from_elsewhere(page: StatusPage) -> None:
    """The page contains no address, and its policy allows connections to its own program alone."""
    html = asyncio.run(page.respond(ask())).decode()

    assert re.findall(r"(?:src|href)=\"(?!data:)", html) == []
    assert "http://" not in html.split("\r\n\r\n", 1)[1]
    assert "default-src 'none'; connect-src 'self'" in html


def test_a_site_that_the_run_has_given_up_is_told() -> None:
    """A site that is connected and asked for nothing does not look like one that takes part."""
    sites = {
        name: {"connected": True, "joined": True, "given_up": is_given_up}
        for name, is_given_up in (("a", False), ("b", True))
    }

    rows = site_rows({"sites": sites}, {"a": "active", "b": "active"}, {}, None, datetime.now(UTC))

    assert [row.state for row in rows] == ["active", "active, given up"]


def test_a_long_curve_is_told_in_few_points() -> None:
    """A few hundred of a hundred thousand measurements are reported, the first, the last and the lowest among them."""
    points = [(number, abs(number - 77_777) + 1.0) for number in range(100_000)]

    few = thinned(points)

    assert len(few) <= 201
    assert {few[0], few[-1]} == {points[0], points[-1]}
    assert (77_777, 1.0) in few
    assert thinned(points[:150]) == points[:150]


def in_browser(page: StatusPage, configuration: CoordinatorConfiguration, profile: Path, *words: str) -> str:
    """Chromium's view of the page while a coordinator runs: its document after some seconds of its own time."""

    async def main() -> str:
        async with running(configuration), await serve_page("127.0.0.1:0", page.respond, "coordinator") as server:
            port = server.sockets[0].getsockname()[1]
            command = [str(CHROMIUM), *ALONE, f"--user-data-dir={profile}", *words, f"http://127.0.0.1:{port}/"]
            browser = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            out, _ = await asyncio.wait_for(browser.communicate(), 60)
            return out.decode()

    return asyncio.run(main())


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")


@needs_chromium
def test_the_page_is_live_in_a_browser(
    page: StatusPage, configuration: CoordinatorConfiguration, tmp_path: Path
) -> None:
    """Without reloading, a browser shows a later round than the one that was loaded, and says that it is live."""
    shown = in_browser(page, configuration, tmp_path, "--virtual-time-budget=7000", "--dump-dom")

    rounds = re.search(r"Rounds</dt><dd>(\d+) of 40", shown)
    assert rounds
    assert int(rounds[1]) > 9  # what the first answer said
    assert 'class="good">Live' in shown


@pytest.fixture
def screens() -> dict[str, tuple[str, ...]]:
    """A desk and a telephone, by day and by night."""
    return {"desk": ("--window-size=1100,1500",), "telephone": ("--window-size=500,1900", "--force-dark-mode")}


@needs_chromium
def test_the_page_can_be_pictured(
    page: StatusPage,
    configuration: CoordinatorConfiguration,
    tmp_path: Path,
    screens: dict[str, tuple[str, ...]],
) -> None:
    """A picture of the page is taken on a desk's screen and on a telephone's; people look at it."""
    for name, words in screens.items():
        picture = tmp_path / f"{name}.png"
        in_browser(
            page, configuration, tmp_path / name, *words, "--virtual-time-budget=3000", f"--screenshot={picture}"
        )

        assert picture.read_bytes().startswith(b"\x89PNG")
