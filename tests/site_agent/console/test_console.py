"""The console: the same checks and records as the commands, and attacks by others on the computer and on the web."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protos.plan.plan import Plan, plan_from_json
from site_agent.approvals import announced_plans, approval_path, find_approval, why_not
from site_agent.console.console_app import LONGEST_FORM_BYTES, run_command
from site_agent.console.console_session import LINK_SECONDS
from site_agent.state_folders import gate_folder, gate_store_path, live_curves_path
from tests.logged import lines_of
from tests.pki.whole_site import SiteKeys
from tests.site_agent.console.running_console import Running, announce, make_hospital, running_console
from tests.site_agent.trainer.sites import RUN, site_after_run

AHEAD = ({"Sec_Purpose": "prefetch"}, {"Purpose": "prefetch"}, {"X_Purpose": "preview"}, {"X_Moz": "prefetch"})
PROTECTED = {
    "x-frame-options": "DENY", "x-content-type-options": "nosniff", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital to which a plan was announced."""
    folder = tmp_path_factory.mktemp("hospital")
    make_hospital(folder)
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    """A console whose user has read the plan, so that a forged form would approve it."""
    with running_console(folder) as running:
        running.enter()
        assert running.read_plan(plan_of(folder)).status == 200
        yield running


def plan_of(folder: Path) -> Plan:
    """The plan that was announced."""
    return plan_from_json(announced_plans(folder / "state")[0].read_bytes())


def _may_train(folder: Path, plan: Plan) -> bool:
    return why_not(find_approval(folder / "state", plan), approvers=1, now=datetime.now(UTC)) is None


def _is_untouched(folder: Path) -> bool:
    return find_approval(folder / "state", plan_of(folder)) is None and not gate_store_path(folder / "state").exists()


def approval(folder: Path) -> dict[str, str]:
    """The form that approves the plan."""
    return {"action": "approve", "plan": plan_of(folder).digest.hex(), "by": "Mallory"}


def events(folder: Path) -> list[tuple[str, str]]:
    """The events of the audit log, and who caused them."""
    lines = lines_of(gate_store_path(folder / "state"))
    return [(facts["event"], facts["by"]) for facts in (json.loads(line)["facts"] for line in lines)]


def test_a_plan_is_read_approved_and_withdrawn(tmp_path: Path) -> None:
    """The officer's acts leave the commands' own files and records, under the name that was typed."""
    plan = make_hospital(tmp_path)
    digest = plan.digest.hex()
    with running_console(tmp_path) as running:
        running.enter()
        early = running.post({"action": "approve", "plan": digest, "by": "A. Jones", "until": ""})
        assert (early.status, _may_train(tmp_path, plan)) == (409, False)
        assert 'value="approve"' not in running.get(f"plan/{digest}").body
        assert running.read_plan(plan).status == 200
        assert 'value="approve"' in running.get(f"plan/{digest}").body
        running.act("approve", plan=digest, by="A. Jones", until="2099-01-31")
        assert _may_train(tmp_path, plan)
        assert "Training is permitted." in running.get().body
        running.act("withdraw", plan=digest, by="B. Lee")
        assert not _may_train(tmp_path, plan)

    assert events(tmp_path) == [("plan_approved", "A. Jones"), ("plan_withdrawn", "B. Lee")]


def test_what_is_approved_is_what_was_read(tmp_path: Path) -> None:
    """If a program puts another plan into the file after the review, the plan that was read is approved."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        running.enter()
        running.read_plan(plan)
        changed = plan.model_copy(update={"version": plan.version + 1})
        (gate_folder(tmp_path / "state") / "plans" / f"{plan.digest.hex()}.json").write_bytes(changed.canonical)

        running.act("approve", plan=plan.digest.hex(), by="A. Jones")
        other = running.post({"action": "approve", "plan": changed.digest.hex(), "by": "A. Jones"})

    assert _may_train(tmp_path, plan)
    assert events(tmp_path) == [("plan_approved", "A. Jones")]
    assert other.status == 409
    assert not approval_path(tmp_path / "state", changed).exists()


def test_what_the_policy_refuses_is_refused_on_the_page(tmp_path: Path) -> None:
    """A plan against the policy has no form for approval, and a form that is sent anyway is refused by the command."""
    make_hospital(tmp_path)
    long = announce(tmp_path, SiteKeys.load(tmp_path / "state" / "gate"), version=2, rounds=20)
    with running_console(tmp_path) as running:
        running.enter()
        running.read_plan(long)
        page = running.get(f"plan/{long.digest.hex()}").body
        answer = running.act("approve", plan=long.digest.hex(), by="A. Jones")

    assert 'value="approve"' not in page
    assert "Status 77" in answer.body
    assert events(tmp_path) == [("approval_refused", "A. Jones")]


@pytest.mark.parametrize("name", ["--until=2000-01-01", "-h", "$(id) `id`; rm", "<script>x</script>", "'\" --yes"])
def test_a_name_is_a_name_whatever_is_typed(tmp_path: Path, name: str) -> None:
    """What is typed becomes no option, no command and no markup: the log has it letter by letter."""
    plan = make_hospital(tmp_path)
    with running_console(tmp_path) as running:
        running.enter()
        running.read_plan(plan)
        answer = running.act("approve", plan=plan.digest.hex(), by=name)

    assert events(tmp_path) == [("plan_approved", name)]
    assert "<script>" not in answer.body


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": None}, {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Dest": "empty"}, {"Content_Type": "text/plain"},
        {"Content_Type": "multipart/form-data; boundary=x"}, {"Content_Length": "-1"}, {"Content_Length": None},
        {"Content_Length": str(LONGEST_FORM_BYTES + 1)}, {"Cookie": None}, {"Cookie": "console=x"},
        {"Host": "evil.example"}, {"Host": "localhost:8483"}, {"Host": None},
    ],
)  # fmt: skip
def test_a_form_that_no_page_of_the_session_sends_does_nothing(
    running: Running, folder: Path, fields: dict[str, str | None]
) -> None:
    """With the person's own key, a form of another origin, frame, script, host or session is refused."""
    assert running.post(approval(folder), **fields).status in (400, 403, 411, 413, 415, 421)
    assert _is_untouched(folder)


@pytest.mark.parametrize(
    "form",
    [
        {"form_key": "none"}, {"form_key": ""}, {"by": ""}, {"by": "a\nb"}, {"by": "a\0b"}, {"action": "examine"},
        {"action": "report"}, {"plan": "0"},
    ],
)  # fmt: skip
def test_a_changed_form_does_nothing(running: Running, folder: Path, form: dict[str, str]) -> None:
    """Without the session's key, a name, a known action or a sound run nothing is done."""
    assert running.post(approval(folder) | form).status in (400, 403, 409)
    assert _is_untouched(folder)


def test_a_field_that_comes_twice_is_refused(running: Running, folder: Path) -> None:
    """A form in which a field has two values does nothing."""
    form = f"form_key={running.session.form_key}&action=approve&by=x&by=y&plan={plan_of(folder).digest.hex()}"

    for body in (form, "=&=", "%ff=%ff", "&".join(f"f{number}=1" for number in range(99))):
        assert running.ask(running.session.address, body).status in (400, 403)
    assert _is_untouched(folder)


def test_another_user_or_page_sees_nothing(running: Running) -> None:
    """Without both secrets every address has the same answer, and no other page can load, frame or prefetch one."""
    foreign = [running.ask(path, Cookie=None) for path in ("/", "/x/", running.session.address, "/enter/", "/enter/x")]
    foreign += [running.get(Cookie="console=x"), running.ask("/x/", Cookie=running.cookie)]
    embedded = [{"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Dest": "script"}, *AHEAD]

    assert {answer.status for answer in foreign} == {403}
    assert [running.get(**fields).status for fields in embedded] == [403] * len(embedded)
    assert running.get(Cookie=f"console=x; {running.cookie}").status == 200


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(running: Running, method: str) -> None:
    """Only GET and POST are answered."""
    assert running.get(method=method).status == 405


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "report/..%2f..%2fhospital.yaml", "curves/..", "plan/0", "x"]
)
def test_no_file_is_found_by_a_path(running: Running, path: str) -> None:
    """A path is compared with the console's own pages and leads to no file."""
    answer = running.get(path)

    assert answer.status in (400, 403, 404)
    assert "root:" not in answer.body
    assert "policy:" not in answer.body


def test_no_answer_may_be_framed_or_kept(running: Running, folder: Path) -> None:
    """Every kind of answer forbids frames, scripts, storing and guessing of types."""
    answers = [
        running.get(), running.get(f"review/{plan_of(folder).digest.hex()}"), running.get("none"),
        running.get(method="PUT"), running.get(Host="evil.example"), running.ask("/", Cookie=None),
    ]  # fmt: skip

    assert [answer.status for answer in answers] == [200, 200, 404, 405, 421, 403]
    for answer in answers:
        assert {name: answer.fields[name] for name in PROTECTED} == PROTECTED
        policy = answer.fields["content-security-policy"]
        assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy.split("; "))
        assert "script-src" not in policy


def test_a_link_works_once_and_its_cookie_belongs_to_the_session(folder: Path) -> None:
    """What only looks ahead does not use the link up, and a stolen link opens nothing."""
    with running_console(folder) as running:
        link = f"/enter/{running.session.link}"
        assert [running.ask(link, **fields).status for fields in AHEAD] == [403] * len(AHEAD)
        assert [running.ask(link[:-1]).status, running.ask(link, "x=y").status] == [403, 403]
        first, stolen = running.ask(link), running.ask(link)

    assert (first.status, stolen.status) == (303, 403)
    wanted = ["HttpOnly", f"Path={running.session.address}", "SameSite=strict"]
    assert sorted(first.fields["set-cookie"].split("; ")[1:]) == wanted
    assert "set-cookie" not in stolen.fields
    assert len(running.session.address) > 40


def test_link_and_session_end(folder: Path) -> None:
    """An unused link ends after ten minutes, an idle session after its time, and a person can leave."""
    with running_console(folder) as late, running_console(folder) as idle, running_console(folder) as left:
        late.clock.seconds += LINK_SECONDS
        idle.enter()
        idle.clock.seconds += 899
        kept = idle.get().status
        idle.clock.seconds += 899
        watched = idle.get("curves/none").status
        idle.clock.seconds += 1
        left.enter()
        left.post({"action": "leave"})

        assert late.ask(f"/enter/{late.session.link}").status == 403
        assert (kept, watched, idle.get().status, left.get().status) == (200, 200, 403, 403)
        assert late.session.is_over
        assert idle.session.is_over
        assert left.session.is_over


def test_a_pipe_or_a_dangling_link_among_the_plans_takes_nothing_away(tmp_path: Path) -> None:
    """What is no plain file is no plan, and the page comes."""
    plan = make_hospital(tmp_path)
    plans = announced_plans(tmp_path / "state")[0].parent
    os.mkfifo(plans / "pipe.json")
    (plans / "link.json").symlink_to(tmp_path / "nowhere")
    with running_console(tmp_path) as running:
        running.enter()
        assert plan.study in running.get().body


@pytest.mark.parametrize("content", ["", "[]", '{"validation": 3}', '[[1, "<b>"]]'])
def test_a_damaged_file_of_curves_breaks_no_page(running: Running, folder: Path, content: str) -> None:
    """The page reports that there is nothing to draw."""
    place = live_curves_path(folder / "state", "damaged")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)

    page = running.get("curves/damaged").body

    assert "No round of this run has been evaluated yet" in page
    assert "<b>" not in page


def test_curves_and_report_are_shown_and_load_nothing(tmp_path: Path) -> None:
    """After a run a person sees the curve and the report; no page names an address elsewhere."""
    site_after_run(tmp_path)
    place = live_curves_path(tmp_path / "state", RUN)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps([[number, 0.5 + number] for number in range(1, 30)]))
    with running_console(tmp_path, commands=run_command) as running:
        running.enter()
        curves, report = running.get(f"curves/{RUN}").body, running.get(f"report/{RUN}").body

    assert curves.count("<img") == 1
    assert "<img" in report
    for page in (curves, report):
        without = re.sub(r'src="data:[^"]*"', "", page)
        assert not re.search(r"https?://|url\(|@import|<script|<link|src=", without)


@pytest.mark.parametrize(("listen", "status"), [("0.0.0.0:8483", 2), ("unix:/run/c.sock", 2), ("example.org:80", 2)])
def test_it_listens_on_this_computer_alone(tmp_path: Path, listen: str, status: int) -> None:
    """An address that others could reach, or that no browser opens, is refused."""
    make_hospital(tmp_path)

    assert _called_console(tmp_path, "--listen", listen).wait(60) == status


def test_the_command_serves_its_link_and_ends_in_order(tmp_path: Path) -> None:
    """The printed link opens, and SIGTERM ends the command without a traceback."""
    make_hospital(tmp_path)
    with running_console(tmp_path) as other:
        port = int(other.host.rpartition(":")[2])
    process = _called_console(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    browser = Running(other.session, f"127.0.0.1:{port}", other.clock)

    answer = None
    for _ in range(100):
        try:
            answer = browser.ask("/" + link.split("/", 3)[3], Sec_Fetch_Site="none")
            break
        except ConnectionError:
            time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=60)

    assert answer is not None
    assert answer.status == 303
    assert process.returncode == 0, said
    assert "The console ended." in printed
    assert "Traceback" not in said


def _called_console(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "site_agent", "console", "--config", str(folder / "hospital.yaml"), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
