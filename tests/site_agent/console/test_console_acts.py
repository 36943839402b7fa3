"""The actions on a console are those of the commands: the same checks, the same record, the same files."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from protos.plan.plan import Plan
from site_agent.approvals import approval_path, find_approval, why_not
from site_agent.approving import announced_plans
from site_agent.console import console_server
from site_agent.console.console_actions import ACTS, Done, _text_of, _without
from site_agent.console.console_links import Role
from site_agent.site_cli import cli
from site_agent.state_folders import audit_log_path, gate_folder
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.programs import called
from tests.site_agent.console.running_console import announce, make_hospital, running_console


def events(folder: Path) -> list[dict[str, Any]]:
    """The records of the audit log."""
    lines = audit_log_path(folder / "state").read_text().splitlines()
    return [json.loads(line)["facts"] for line in lines]


async def run_here(words: list[str], folder: Path, _: float) -> Done:
    """As `run_command`, in this process, which has loaded the commands already."""
    done = await asyncio.to_thread(called, "site-agent", *words)
    text, problems = (_without(folder, said.encode()) for said in (done.stdout, done.stderr))
    document, facts = (_text_of(folder / name) for name in ("page.html", "facts.json"))
    return Done(status=done.returncode, text=text, problems=problems, document=document, facts=facts)


@pytest.fixture(autouse=True)
def loaded_commands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first round through all acts starts a process for each of them, as a console does."""
    if request.function is not test_a_plan_is_read_approved_withdrawn_and_refused:
        monkeypatch.setattr(console_server, "run_command", run_here)


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

        assert "nobody here has approved exactly this plan" in officer.get().body
        early = officer.post({"action": "approve", "plan": digest, "by": "A. Jones", "until": ""})
        assert (early.status, may_train(tmp_path, plan)) == (409, False)
        assert "what a would send" in officer.read_plan(plan).body
        refused = officer.act("refuse", plan=digest, by="A. Jones", because="too many rounds")
        assert "A. Jones refused study version 1" in refused.body
        approved = officer.act("approve", plan=digest, by="A. Jones", until="2099-01-31")
        assert "A. Jones approved study version 1" in approved.body
        assert may_train(tmp_path, plan)
        assert "Approved by A. Jones. Training with this plan is permitted." in officer.get().body
        again = officer.act("refuse", plan=digest, by="B. Lee", because="late")
        assert "exit status 2" in again.body
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
    assert "exit status 77" in answer.body
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

    assert "“Your name” is empty" in page.body
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


def test_a_changed_policy_is_shown_at_once(tmp_path: Path) -> None:
    """hospital.yaml is read for each page: an approved plan that the policy now refuses may not train."""
    plan = make_hospital(tmp_path)
    config = tmp_path / "hospital.yaml"
    allowed = config.read_text()
    with running_console(tmp_path) as running:
        officer = running.enter()
        officer.read_plan(plan)
        officer.act("approve", plan=plan.digest.hex(), by="A. Jones", until="")
        before = officer.get().body
        config.write_text(allowed.replace("largest_rounds: 10", "largest_rounds: 2"))
        refused = officer.get().body
        config.write_text(allowed.replace("policy:", "policy:\n  approvers: 2"))
        waiting = officer.get().body
        config.write_text("site: [")
        broken = officer.get()
        config.write_text(allowed)
        after = officer.get().body

    assert "Approved by A. Jones. Training with this plan is permitted." in before
    assert "policy refuses this plan, because the plan has 3 rounds, and the policy allows 2." in refused
    assert "Training with this plan is not permitted: 1 of 2 persons have approved it." in waiting
    assert "Training with this plan is permitted." not in refused + waiting
    assert (broken.status, "hospital.yaml" in broken.body) == (409, True)
    assert "Approved by A. Jones. Training with this plan is permitted." in after


DAMAGE = {
    "garbage": b"{",
    "no zone": b'"until": "2099-01-01"',
    "no time": b'"until": "tomorrow"',
    "no signature": b'"signatures": []',
}


@pytest.mark.parametrize("damage", [*DAMAGE, "folder"])
def test_a_damaged_approval_is_named_beside_the_rest(tmp_path: Path, damage: str) -> None:
    """The page names the file and the remedy, and still shows every plan, the log and a way to decide."""
    plan = make_hospital(tmp_path)
    other = announce(tmp_path, SiteKeys.load(tmp_path / "state" / "gate"), version=2)
    with running_console(tmp_path) as running:
        officer = running.enter()
        officer.read_plan(plan)
        officer.act("approve", plan=plan.digest.hex(), by="A. Jones", until="")
        place = approval_path(tmp_path / "state", plan)
        content = place.read_bytes()
        if damage == "folder":
            place.unlink()
            place.mkdir()
        else:
            place.write_bytes(damaged(content, DAMAGE[damage]))
        home = officer.get()
        review = officer.act("review", plan=plan.digest.hex()).body
        officer.read_plan(other)
        decided = officer.act("refuse", plan=other.digest.hex(), by="A. Jones", because="x").body
        place.rmdir() if damage == "folder" else place.unlink()
        restored = officer.act("approve", plan=plan.digest.hex(), by="A. Jones", until="").body

    assert home.status == 200
    assert f"the file {place} is damaged." in home.body
    assert "Remove the damaged file as root." in home.body
    assert "Read the audit log" in home.body
    assert "nobody here has approved exactly this plan" in home.body
    assert str(place) in review
    assert "A. Jones refused" in decided
    assert "A. Jones approved" in restored


def damaged(content: bytes, change: bytes) -> bytes:
    """An approval with one key of a wrong value."""
    if change == b"{":
        return change
    key, _, _ = change.partition(b":")
    facts = json.loads(content)
    value = json.loads(b"{" + change + b"}")
    if key == b'"until"':
        facts["signatures"][0] |= value
    else:
        facts |= value
    return json.dumps(facts).encode()


def test_a_refusal_is_shown_to_the_next_reader(tmp_path: Path) -> None:
    """The first page and the review name who refused a plan, and why, until somebody approves it."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        officer = running.enter()
        officer.act("refuse", plan=plan.digest.hex(), by="A. Jones", because="too many rounds")
        home, review = officer.get().body, officer.read_plan(plan).body
        officer.act("approve", plan=plan.digest.hex(), by="B. Lee", until="")
        after = officer.get().body

    assert re.search(
        r"A\. Jones refused it on 20\d\d-\d\d-\d\d\. The reason: too many rounds\. "
        r"Training with this plan is not permitted\.",
        home,
    )
    assert "The reason: too many rounds" in review
    assert "Approved by B. Lee. Training with this plan is permitted." in after
    assert "refused it" not in after


def test_an_approved_plan_that_the_policy_refuses_may_not_train(tmp_path: Path) -> None:
    """The review never shows a refusal beside the words that the plan may train."""
    plan = make_hospital(tmp_path)
    config = tmp_path / "hospital.yaml"
    with running_console(tmp_path) as running:
        officer = running.enter()
        officer.read_plan(plan)
        officer.act("approve", plan=plan.digest.hex(), by="A. Jones", until="")
        allowed = officer.read_plan(plan).body
        config.write_text(config.read_text().replace("largest_rounds: 10", "largest_rounds: 2"))
        refused = officer.read_plan(plan).body

    assert "Training with this plan is permitted here." in allowed
    assert "The policy refuses this plan: the plan has 3 rounds" in refused
    assert "own policy refuses it. Training is not permitted here." in refused
    assert "Training with this plan is permitted here." not in refused


def test_before_the_first_plan_the_page_explains_itself(tmp_path: Path) -> None:
    """Without plans and runs, each role reads what appears here, and when."""
    make_hospital(tmp_path)
    (place,) = announced_plans(tmp_path / "state")
    place.unlink()
    with running_console(tmp_path) as running:
        page = running.enter().get().body

    assert "No plan has arrived yet." in page
    assert "No run has ended at this hospital yet." in page
    assert 'value="report"' not in page
