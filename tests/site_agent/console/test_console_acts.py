"""What people do on a console is what the commands do: the same checks, the same record, the same files."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from protos.plan.plan import Plan
from site_agent.approvals import approval_path, find_approval, why_not
from site_agent.console import console_server
from site_agent.console.console_actions import ACTS
from site_agent.console.console_links import LINK_SECONDS, Role
from site_agent.site_cli import cli
from site_agent.state_folders import audit_log_path, gate_folder
from tests.pki.whole_site import SiteKeys
from tests.site_agent.console.running_console import Visitor, announce, make_hospital, running_console


def events(folder: Path) -> list[dict[str, Any]]:
    """The records of the audit log."""
    lines = audit_log_path(folder / "state").read_text().splitlines()
    return [json.loads(line)["facts"] for line in lines]


def may_train(folder: Path, plan: Plan) -> bool:
    """Whether the plan is approved here."""
    return why_not(find_approval(folder / "state", plan), approvers=1, now=datetime.now(UTC)) is None


def test_every_act_is_a_command_with_its_own_options(tmp_path: Path) -> None:
    """Each act names a command of site-agent, and all that it adds are options of that command."""
    for name, act in ACTS.items():
        typed = dict.fromkeys((*act.needs, *act.may_have), "x")
        words = act.command(tmp_path / "hospital.yaml", tmp_path, typed)
        command: click.Command = cli
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        options = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]

        assert [option for option in options if option not in known] == [], name


def test_a_plan_is_read_approved_withdrawn_and_refused(tmp_path: Path) -> None:
    """The officer's acts leave the commands' own files and records, under the name that was typed."""
    plan = make_hospital(tmp_path)
    digest = plan.digest.hex()
    with running_console(tmp_path, (frozenset({Role.OFFICER}),)) as running:
        officer = running.enter()

        assert "nobody here has approved it" in officer.get().body
        early = officer.post({"action": "approve", "plan": digest, "by": "A. Jones", "until": ""})
        assert (early.status, may_train(tmp_path, plan)) == (409, False)
        assert "what would leave a" in officer.read_plan(plan).body
        refused = officer.act("refuse", plan=digest, by="A. Jones", because="too many rounds")
        assert "A. Jones refused study version 1" in refused.body
        approved = officer.act("approve", plan=digest, by="A. Jones", until="2099-01-31")
        assert "A. Jones approved study version 1" in approved.body
        assert may_train(tmp_path, plan)
        assert "Approved by A. Jones: it may train." in officer.get().body
        again = officer.act("refuse", plan=digest, by="B. Lee", because="late")
        assert "Not done (exit status 2)" in again.body
        withdrawn = officer.act("withdraw", plan=digest, by="B. Lee")
        assert "B. Lee withdrew a from study version 1" in withdrawn.body
        assert not may_train(tmp_path, plan)
        log = officer.act("log").body

    assert "B. Lee withdrew this site from study version 1." in log
    assert [(facts["event"], facts["by"], facts["plan"]) for facts in events(tmp_path)] == [
        ("plan_declined", "A. Jones", digest),
        ("plan_approved", "A. Jones", digest),
        ("plan_withdrawn", "B. Lee", digest),
    ]
    assert events(tmp_path)[0]["reason"] == "too many rounds"
    assert events(tmp_path)[1]["until"] == "2099-02-01T00:00:00+00:00"


def test_what_is_approved_is_what_was_read(tmp_path: Path) -> None:
    """If a program puts another plan into the file after the review, the plan that was read is approved."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        officer = running.enter()
        officer.read_plan(plan)
        changed = plan.model_copy(update={"seed": plan.seed + 1})
        (gate_folder(tmp_path / "state") / "plans" / f"{plan.digest.hex()}.json").write_bytes(changed.canonical)

        officer.act("approve", plan=plan.digest.hex(), by="A. Jones")
        other = officer.post({"action": "approve", "plan": changed.digest.hex(), "by": "A. Jones"})

    assert may_train(tmp_path, plan)
    assert other.status == 409
    assert not approval_path(tmp_path / "state", changed).exists()


def test_what_the_policy_refuses_is_refused_on_the_page(tmp_path: Path) -> None:
    """A plan against the policy has no form for approval, and a form that is sent anyway is refused by the command."""
    make_hospital(tmp_path)
    long = announce(tmp_path, SiteKeys.load(tmp_path / "state" / "gate"), version=2, rounds=20)
    with running_console(tmp_path) as running:
        officer = running.enter()
        page = officer.act("review", plan=long.digest.hex()).body
        officer.read_plan(long)
        answer = officer.act("approve", plan=long.digest.hex(), by="A. Jones")

    assert "policy refuses the plan" in page
    assert 'value="approve"' not in page
    assert "Not done (exit status 77)" in answer.body
    assert [facts["event"] for facts in events(tmp_path)] == ["approval_refused"]


@pytest.mark.parametrize("name", ["--until=2000-01-01", "-h", "$(id) `id`; rm", "<script>x</script>", "'\" --yes"])
def test_a_name_is_a_name_whatever_is_typed(tmp_path: Path, name: str) -> None:
    """What is typed becomes no option, no command and no markup: the log has it letter by letter."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        officer = running.enter()
        page = officer.act("refuse", plan=plan.digest.hex(), by=name, because=name)

    assert [(facts["by"], facts["reason"]) for facts in events(tmp_path)] == [(name, name)]
    assert "<script>" not in page.body


@pytest.mark.parametrize("name", ["", " "])
def test_a_decision_needs_a_name(tmp_path: Path, name: str) -> None:
    """The command's own check of the name holds on the page."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        page = running.enter().act("refuse", plan=plan.digest.hex(), by=name, because="x")

    assert "--by is empty" in page.body
    assert not audit_log_path(tmp_path / "state").exists()


def test_a_name_that_was_given_at_the_start_cannot_be_changed(tmp_path: Path) -> None:
    """With --by the page has no field for a name, and a name that is sent anyway is not used."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path, by="A. Jones") as running:
        officer = running.enter()
        page = officer.act("review", plan=plan.digest.hex()).body
        officer.act("refuse", plan=plan.digest.hex(), by="Mallory", because="x")

    assert 'name="by"' not in page
    assert "In the name of A. Jones" in page
    assert [facts["by"] for facts in events(tmp_path)] == ["A. Jones"]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """Pages that are loaded again, however often, run no command."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        visitor = running.enter()
        visitor.act("refuse", plan=plan.digest.hex(), by="A. Jones", because="x")
        statuses = [visitor.get(path).status for path in ("", "page/1", "page/1", "", "document/1", "page/2")]

    assert statuses == [200, 200, 200, 200, 404, 404]
    assert len(events(tmp_path)) == 1


def ended(visitor: Visitor) -> list[str]:
    """Why the console ended."""
    assert visitor.running.is_over.wait(30)
    return visitor.running.ended


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

        assert ended(visitor) == ["Nobody used it for 15 minutes."]


def test_a_console_that_nobody_enters_ends(tmp_path: Path) -> None:
    """When all links have expired unused, it ends by itself."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        running.clock.seconds += LINK_SECONDS - 1
        assert running.ended == []
        running.clock.seconds += 1

        assert running.is_over.wait(30)
        assert running.ended == ["Nobody opened its link in time."]


def test_what_was_asked_before_leaving_is_not_done_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An act that waits for another one is dropped when its person leaves."""
    plan = make_hospital(tmp_path)
    run_command, go_on = console_server.run_command, threading.Event()

    async def held(words: Any, folder: Path) -> Any:
        await asyncio.to_thread(go_on.wait, 30)
        return await run_command(words, folder)

    with running_console(tmp_path) as running, ThreadPoolExecutor(2) as threads:
        visitor = running.enter()
        assert visitor.read_plan(plan).status == 200
        monkeypatch.setattr(console_server, "run_command", held)
        first = threads.submit(visitor.post, {"action": "log"})
        until(lambda: running.console._busy.locked())
        approval = {"action": "approve", "plan": plan.digest.hex(), "by": "A. Jones", "until": ""}
        late = threads.submit(visitor.post, approval)
        until(lambda: bool(running.console._busy._waiters))
        assert visitor.post({"action": "leave"}).status == 200
        go_on.set()

        assert (first.result().status, late.result().status) == (303, 403)
    assert find_approval(tmp_path / "state", plan) is None


def until(holds: Callable[[], bool]) -> None:
    """Return when something holds, which it does within moments."""
    for _ in range(3_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_a_person_can_leave(tmp_path: Path) -> None:
    """After leaving, neither cookie nor link opens anything; when everybody has left, the console ends."""
    make_hospital(tmp_path)
    with running_console(tmp_path, (frozenset({Role.OFFICER}), frozenset({Role.CLINICIAN}))) as running:
        first, second = running.enter(0), running.enter(1)

        assert first.post({"action": "leave"}).status == 200
        assert first.get().status == 403
        assert second.get().status == 200
        assert second.post({"action": "leave"}).status == 200
        assert ended(second) == ["Everybody left it."]
