"""The console's actions and its end: decisions never wait, a form acts once, an unused session ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from host.local_server import browser_host, plain_address
from site_agent.approvals import find_approval
from site_agent.console import console_server
from site_agent.console.console_actions import Done
from site_agent.console.console_links import LINK_SECONDS, Role
from site_agent.state_folders import audit_log_path
from tests.site_agent.console.running_console import (
    SECONDS,
    Running,
    free_port,
    make_hospital,
    running_console,
)

DECISIONS = ("approve", "refuse", "withdraw")


def until(holds: Callable[[], bool]) -> None:
    """Return when something holds, which it does within moments."""
    for _ in range(3_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


@contextmanager
def long_acts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], threading.Event]]:
    """Yield the commands that have begun. All but decisions last until the event is set, and do nothing."""
    run_command, go_on, begun = console_server.run_command, threading.Event(), list[str]()

    async def held(words: Any, folder: Path, patience: float) -> Any:
        begun.append(words[0])
        if words[0] not in DECISIONS:
            await asyncio.to_thread(go_on.wait, 30)
            return Done(status=0, text="", problems="", document=None, facts=None)
        return await run_command(words, folder, patience)

    monkeypatch.setattr(console_server, "run_command", held)
    try:
        yield begun, go_on
    finally:
        go_on.set()


def test_a_decision_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While long acts of every role run, the officer approves, withdraws and refuses at once."""
    plan = make_hospital(tmp_path)
    digest = plan.digest.hex()
    with running_console(tmp_path) as running, ThreadPoolExecutor(3) as threads:
        visitor = running.enter()
        visitor.read_plan(plan)
        with long_acts(monkeypatch) as (begun, go_on):
            long = [threads.submit(visitor.post, {"action": action}) for action in ("examine", "log", "report")]
            until(lambda: len(begun) == 3)
            approved = visitor.act("approve", plan=digest, by="A. Jones", until="")
            withdrawn = visitor.act("withdraw", plan=digest, by="A. Jones")
            refused = visitor.act("refuse", plan=digest, by="A. Jones", because="late")
            still_long = [act.done() for act in long]
            go_on.set()

        assert [act.result().status for act in long] == [303] * 3
    assert still_long == [False] * 3
    assert "A. Jones approved" in approved.body
    assert "A. Jones withdrew" in withdrawn.body
    assert "A. Jones refused" in refused.body


def test_one_role_does_not_wait_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long acts of one role run one after another, and those of different roles side by side."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running, ThreadPoolExecutor(3) as threads:
        visitor = running.enter()
        with long_acts(monkeypatch) as (begun, go_on):
            first = threads.submit(visitor.post, {"action": "report"})
            until(lambda: begun == ["report"])
            second = threads.submit(visitor.post, {"action": "compare"})
            until(lambda: len(running.console._acts) == 2)
            other = threads.submit(visitor.post, {"action": "log"})
            until(lambda: len(begun) == 2)
            side_by_side = list(begun)
            go_on.set()

        assert [act.result().status for act in (first, second, other)] == [303] * 3
    assert side_by_side == ["report", "audit"]
    assert begun == ["report", "audit", "adopt"]


def test_a_form_that_is_sent_again_acts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double click runs one command, and both answers lead to its result; the repeated one names it as such."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running, ThreadPoolExecutor(2) as threads:
        visitor = running.enter()
        form = dict(zip(("form_key", "form"), visitor.new_form(), strict=True))
        form |= {"action": "refuse", "plan": plan.digest.hex(), "by": "A. Jones", "because": "x"}
        body = urlencode(form)

        def send() -> str:
            answer = running.ask(visitor.folder, body, Cookie=visitor.cookie)
            assert answer.status == 303, answer.body
            return answer.fields["location"]

        twice = [threads.submit(send) for _ in range(2)]
        places = sorted({one.result() for one in twice} | {send()}, key=len)
        first, again = (running.ask(place, Cookie=visitor.cookie).body for place in places)

    assert places[1] == f"{places[0]}/again"
    assert audit_log_path(tmp_path / "state").read_text().count("plan_declined") == 1
    assert "You sent this form before, so the action was not repeated." in again
    assert "A. Jones refused" in again
    assert "You sent this form before" not in first


@pytest.mark.parametrize("number", ["", "0", "-1", "99999", "1.0", "１", "9" * 40])
def test_a_form_that_no_page_has_does_nothing(tmp_path: Path, number: str) -> None:
    """A number that this session has given to no form is refused, even with the session's key."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        form = {"action": "refuse", "plan": plan.digest.hex(), "by": "A. Jones", "because": "x", "form": number}

        assert running.enter().post(form).status == 403
    assert not audit_log_path(tmp_path / "state").exists()


def test_what_could_not_begin_may_be_sent_again(tmp_path: Path) -> None:
    """A form that was refused before its command began is not used up."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        visitor = running.enter()
        number = visitor.new_form()[1]
        approval = {"action": "approve", "plan": plan.digest.hex(), "by": "A. Jones", "until": "", "form": number}
        early = visitor.post(approval)
        visitor.read_plan(plan)
        late = visitor.post(approval)

    assert (early.status, late.status) == (409, 303)
    assert not late.fields["location"].endswith("/again")
    assert find_approval(tmp_path / "state", plan) is not None


def ended(running: Running) -> list[str]:
    """Why the console ended."""
    assert running.is_over.wait(30)
    return running.ended


def test_a_console_that_nobody_uses_ends(tmp_path: Path) -> None:
    """After the idle time it ends by itself; strangers who knock do not keep it open."""
    make_hospital(tmp_path)
    with running_console(tmp_path, idle_seconds=900) as running:
        visitor = running.enter()
        running.clock.seconds += 899
        assert visitor.get().status == 200
        running.clock.seconds += 899
        running.ask("/")
        assert running.ended == []
        running.clock.seconds += 2

        assert ended(running) == ["Nobody used it for 15 minutes."]


def test_a_session_that_nobody_uses_ends(tmp_path: Path) -> None:
    """One person's use does not keep another person's session open."""
    make_hospital(tmp_path)
    roles = (frozenset({Role.OFFICER}), frozenset({Role.CLINICIAN}))
    with running_console(tmp_path, roles, idle_seconds=900) as running:
        officer, clinician = running.enter(0), running.enter(1)
        running.clock.seconds += 600
        assert clinician.get().status == 200
        running.clock.seconds += 300

        assert officer.get().status == 403
        assert officer.running.ask(officer.folder, "action=log", Cookie=officer.cookie).status == 403
        assert clinician.get().status == 200
        until(lambda: len(running.said) == 3)
        assert running.ended == []
    expected = "The session of the data protection officer ended. Nobody used it for 15 minutes."
    assert running.said[2] == expected


def test_a_long_act_keeps_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for an act longer than the idle time still reads its result."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running, ThreadPoolExecutor(1) as threads:
        visitor = running.enter()
        with long_acts(monkeypatch) as (begun, go_on):
            waiting = threads.submit(visitor.act, "log")
            until(lambda: len(begun) == 1)
            running.clock.seconds += 5000
            assert running.ask("/").status == 403
            go_on.set()

            assert waiting.result().status == 200
        assert running.ended == []


def test_a_console_that_nobody_enters_ends(tmp_path: Path) -> None:
    """When all links have expired unused, it ends by itself."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        running.clock.seconds += LINK_SECONDS - 1
        assert running.ended == []
        running.clock.seconds += 1

        assert ended(running) == ["Nobody opened its link in time."]


def test_what_waits_when_a_person_leaves_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An act that waits for another one is dropped when its person leaves."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running, ThreadPoolExecutor(2) as threads:
        visitor = running.enter()
        with long_acts(monkeypatch) as (begun, go_on):
            first = threads.submit(visitor.post, {"action": "report"})
            until(lambda: len(begun) == 1)
            late = threads.submit(visitor.post, {"action": "compare"})
            until(lambda: len(running.console._acts) == 2)
            assert visitor.post({"action": "leave"}).status == 200
            go_on.set()

            assert (first.result().status, late.result().status) == (303, 403)
    assert begun == ["report"]


def test_a_person_can_leave(tmp_path: Path) -> None:
    """After leaving, neither cookie nor link opens anything; when everybody has left, the console ends."""
    make_hospital(tmp_path)
    with running_console(tmp_path, (frozenset({Role.OFFICER}), frozenset({Role.CLINICIAN}))) as running:
        first, second = running.enter(0), running.enter(1)

        assert first.post({"action": "leave"}).status == 200
        assert first.get().status == 403
        assert second.get().status == 200
        assert second.post({"action": "leave"}).status == 200
        assert ended(running) == ["All users left it."]


@contextmanager
def command(folder: Path, listen: str) -> Iterator[subprocess.Popen[str]]:
    """`site-agent console` as a process with a temporary folder of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    words = [sys.executable, "-m", "site_agent", "console", "--config", str(folder / "hospital.yaml")]
    process = subprocess.Popen(
        [*words, "--listen", listen], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_console_that_is_stopped_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    """Closing the terminal, stopping the service or Ctrl-C during an act ends the command and removes its folder."""
    make_hospital(tmp_path)
    os.mkfifo(audit_log_path(tmp_path / "state"))  # a log that never ends
    host = f"127.0.0.1:{free_port()}"
    with command(tmp_path, host) as process, ThreadPoolExecutor(1) as threads:
        assert process.stdout is not None
        link = process.stdout.readline().split()[-1].rpartition("/")[2]
        running = Running(Any, host, [link], [], Any)  # type: ignore[arg-type]  # the console is another process
        visitor = running.enter()
        threads.submit(visitor.post, {"action": "log"})
        until(lambda: bool(children(process.pid)) and len(list((tmp_path / "tmp").iterdir())) == 1)
        begun = children(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=SECONDS)

    name = "You stopped it." if number is signal.SIGINT else f"It received {number.name}."
    assert process.returncode == 0, said
    assert f"The console ended. {name}" in said
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [pid for pid in begun if Path(f"/proc/{pid}").exists()] == []


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for place in Path(f"/proc/{pid}/task").glob("*/children") for word in place.read_text().split()]


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    """Three sentences: which address, that nothing was started, and which option corrects it."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running, command(tmp_path, running.host) as process:
        said = " ".join(process.communicate(timeout=SECONDS)[1].split())

    assert process.returncode == 78
    assert said == (
        f"site-agent: The page cannot be served on {running.host}. Another program uses this address. [E004] "
        "Nothing was started. If a study is running, it continues. Choose another port with --listen, such as "
        "127.0.0.1:8500."
    )


@pytest.mark.parametrize(
    ("listen", "address", "host"),
    [
        ("127.0.0.1:08483", "127.0.0.1:8483", "127.0.0.1:8483"),
        ("[::1]:00080", "[::1]:80", "[::1]"),
        ("localhost:80", "localhost:80", "localhost"),
        ("127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080"),
    ],
)
def test_an_address_is_named_as_a_browser_names_it(listen: str, address: str, host: str) -> None:
    """A browser leaves out zeros before the port, and the port 80, so the console does too."""
    assert plain_address(listen) == address
    assert browser_host(address) == host
