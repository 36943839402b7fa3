"""The console in a real browser, over a hospital after a run: each role works, and other pages reach nothing."""

from __future__ import annotations

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.plan.plan import Plan
from site_agent.approvals import find_approval, keep_plan
from site_agent.desk.results import simple_models
from site_agent.desk.use.adoption import find_adoption
from site_agent.state_folders import audit_log_path
from tests.browser import Browser, BrowserError, Page, started_browser
from tests.site_agent.console.running_console import free_port
from tests.site_agent.trainer.after_a_run import RUN, site_after_run
from tests.site_agent.trainer.sites import make_plan

LONG = 120.0
ROLES = ("data-manager", "officer", "clinician")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hospital with a table, a run with all its models, and a new plan."""
    folder = tmp_path_factory.mktemp("hospital")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(simple_models, "_TREES", 10)
        hospital = site_after_run(folder, simple_models=True)
    keep_plan(hospital.state_path, new_plan())
    text = (folder / "hospital.yaml").read_text()
    (folder / "hospital.yaml").write_text(text.replace("unaccepted_warnings: tell", "unaccepted_warnings: stop"))
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests."""
    with started_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def new_plan() -> Plan:
    """The plan that waits for the officer."""
    return make_plan(version=2)


@contextmanager
def console(folder: Path, *words: str) -> Iterator[tuple[list[str], str]]:
    """The command itself; its links and its address. It ends by Ctrl-C, and reports that."""
    port = free_port()
    command = [sys.executable, "-m", "site_agent", "console", "--config", str(folder / "hospital.yaml")]
    process = subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        links = [process.stdout.readline().split()[-1] for _ in range(words.count("--role") or 1)]
        yield links, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG)
    assert process.returncode == 0, said
    assert "The console ended. You stopped it." in said
    assert "Traceback" not in said


def submit(page: Page, action: str, expected: str, **typed: str) -> str:
    """Fill in a form and send it, as a person does; the text of the page that follows."""
    button = f"button[value={action}]"
    for name, text in typed.items():
        page.type(f"form:has({button}) [name={name}]", text)
    page.click(button)
    return seen(page, expected)


def follow(page: Page, link: str, expected: str) -> str:
    """Click the link with this text."""
    page.evaluate(f"[...document.links].find(link => link.textContent === {json.dumps(link)}).id = 'clicked'")
    page.click("#clicked")
    return seen(page, expected)


def seen(page: Page, expected: str) -> str:
    """The text of the page, once it has these words."""
    page.wait_for(f"document.body && document.body.innerText.includes({json.dumps(expected)})", LONG)
    text: str = page.evaluate("document.body.innerText")
    return text


def events(folder: Path) -> list[dict[str, Any]]:
    """The audit log's records."""
    lines = audit_log_path(folder / "state").read_text().splitlines()
    return [json.loads(line)["facts"] for line in lines]


@pytest.mark.slow
def test_three_people_do_their_work(folder: Path, browser: Browser) -> None:
    """Data manager, officer and clinician read and decide in the browser; state and log are those of the commands."""
    roles = [word for role in ROLES for word in ("--role", role)]
    with console(folder, *roles) as (links, _):
        manager, officer, clinician = (browser.page() for _ in ROLES)

        manager.go(links[0])
        assert "You are here as data manager." in seen(manager, "Console of ahus")
        submit(manager, "examine", "The table cannot be used yet")
        assert "Before training, a person must accept" in follow(manager, "Read the examination", "Table 1")
        follow(manager, "Back to the console", "Examine the table")
        submit(manager, "examine", "Decide about the warnings")
        submit(manager, "accept", "D. Okoro accepted 4 warnings", by="D. Okoro")

        officer.go(links[1])
        seen(officer, "nobody here has approved exactly this plan")
        submit(officer, "review", "policy allows the plan")
        submit(officer, "approve", "Read the review of this plan first", by="A. Jones")
        officer.evaluate("history.back()")
        seen(officer, "policy allows the plan")
        assert "Signatures" in follow(officer, "Read the review", "what ahus would send")
        officer.evaluate("history.back()")
        seen(officer, "policy allows the plan")
        clear_name(officer, "refuse")
        submit(officer, "refuse", "A. Jones refused law version 2", by="A. Jones", because="too many rounds")
        follow(officer, "Back to the console", "The reason: too many rounds.")
        submit(officer, "review", "policy allows the plan")
        follow(officer, "Read the review", "Signatures")
        officer.evaluate("history.back()")
        seen(officer, "policy allows the plan")
        clear_name(officer, "approve")
        submit(officer, "approve", "A. Jones approved law version 2", by="A. Jones")
        follow(officer, "Back to the console", "Approved by A. Jones. Training with this plan is permitted.")
        log = submit(officer, "log", "What happened".lower())
        assert "D. Okoro accepted 4 warnings" in log
        assert "A. Jones approved law version 2" in log
        follow(officer, "Back to the console", "Approved by A. Jones")

        clinician.go(links[2])
        seen(clinician, "Report and models")
        submit(clinician, "report", "report of the run")
        follow(clinician, "Back to the console", "Report and models")
        assert "Recommended: " in submit(clinician, "compare", f"Models of the run {RUN}")
        clinician.evaluate("document.querySelector('select').value = 'logistic_regression'")
        submit(clinician, "adopt", "Dr Lee adopted logistic regression", by="Dr Lee")
        submit_leave(clinician)

    approval, adoption = find_approval(folder / "state", new_plan()), find_adoption(folder / "state")
    assert approval is not None
    assert approval.names == "A. Jones"
    assert adoption is not None
    assert (adoption.model, adoption.by, adoption.run) == ("logistic_regression", "Dr Lee", RUN)
    assert [(facts["event"], facts["by"]) for facts in events(folder)] == [
        ("data_accepted", "D. Okoro"),
        ("plan_declined", "A. Jones"),
        ("plan_approved", "A. Jones"),
        ("model_adopted", "Dr Lee"),
    ]


def clear_name(page: Page, action: str) -> None:
    """Empty the field with the name that was typed last."""
    page.evaluate(f"document.querySelector('form:has(button[value={action}]) [name=by]').value = ''")


@pytest.mark.slow
def test_a_double_click_acts_once(folder: Path, browser: Browser) -> None:
    """Two quick clicks on a button send its form twice; the log has one record, and the page shows its result."""
    before = len(events(folder)) if audit_log_path(folder / "state").exists() else 0
    with console(folder, "--role", "officer") as (links, _):
        officer = browser.page()
        officer.go(links[0])
        seen(officer, "Console of ahus")
        submit(officer, "review", "policy allows the plan")
        is_approved = officer.evaluate("!!document.querySelector('button[value=withdraw]')")
        action = "withdraw" if is_approved else "refuse"
        clear_name(officer, action)
        form = f"form:has(button[value={action}])"
        officer.type(f"{form} [name=by]", "B. Lee")
        if action == "refuse":
            officer.type(f"{form} [name=because]", "twice")
        # The browser sends the form at each click, as it does for an impatient person.
        officer.evaluate(
            f"(() => {{const form = document.querySelector({json.dumps(form)});"
            f"const button = form.querySelector('button'); form.requestSubmit(button);"
            "setTimeout(() => form.requestSubmit(button), 100)})()"
        )
        seen(officer, "B. Lee withdrew" if is_approved else "B. Lee refused")

    assert len(events(folder)) == before + 1


def test_a_page_that_loads_ahead_does_not_use_up_a_link(folder: Path, browser: Browser) -> None:
    """A hostile page that prefetches, prerenders, frames or fetches a link opens nothing; its owner still enters."""
    with console(folder, "--role", "officer") as (links, _):
        rules = json.dumps({"prerender": [{"urls": links}], "prefetch": [{"urls": links}]})
        hostile = (
            f'<link rel="prefetch" href="{links[0]}"><link rel="preload" as="fetch" href="{links[0]}">'
            f'<script type="speculationrules">{rules}</script><iframe src="{links[0]}"></iframe>'
            f'<img src="{links[0]}"><p>hostile</p>'
        )
        with stranger(hostile) as (place, _):
            page = browser.page()
            page.go(f"{place}/")
            page.evaluate(f"fetch({json.dumps(links[0])}, {{mode: 'no-cors'}}).then(() => 1, () => 0)")
            seen(page, "hostile")
        owner = browser.page()
        owner.go(links[0])

        assert "You are here as data protection officer." in seen(owner, "Console of ahus")


def submit_leave(page: Page) -> None:
    """Leave the console, and find it closed."""
    follow(page, "Back to the console", "Leave the console")
    address = page.evaluate("location.href")
    submit(page, "leave", "You left the console")
    page.evaluate("history.back()")
    page.go(address)  # a reload would be refused while the browser still goes back
    seen(page, "This address is not valid")


class Stranger(http.server.BaseHTTPRequestHandler):
    """A web server of another user of the computer, which keeps what browsers send to it."""

    heard: list[str]
    page = ""

    def do_GET(self) -> None:
        """Keep the head, and answer with the page."""
        self.heard.append(f"{self.path}\n{self.headers}")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page.encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def stranger(page: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a hostile page on another port of 127.0.0.1; its address and what it received."""
    heard: list[str] = []
    kind = type("Hostile", (Stranger,), {"page": page, "heard": heard})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_of_another_user_reaches_nothing(folder: Path, browser: Browser) -> None:
    """In the officer's own browser a page on another port gets no cookie, frames nothing and sends no form."""
    with console(folder, "--role", "officer") as (links, address):
        officer = browser.page()
        officer.go(links[0])
        seen(officer, "Console of ahus")
        home = officer.evaluate("location.href")
        key = officer.evaluate("document.querySelector('[name=form_key]').value")
        before = len(events(folder)) if audit_log_path(folder / "state").exists() else 0
        # The worst case: the stranger has the secret folder and the key of the form, and lacks only the cookie.
        fields = {"form_key": key, "action": "refuse", "plan": new_plan().digest.hex(), "by": "M", "because": "x"}
        inputs = "".join(f'<input name="{name}" value="{text}">' for name, text in fields.items())
        hostile = (
            f'<iframe id="frame" src="{home}"></iframe><img src="{home}">'
            f'<form method="post" action="{home}">{inputs}<button id="send">win</button></form>'
        )
        with stranger(hostile) as (place, heard):
            officer.go(f"{place}/")
            frame = officer.evaluate("(() => {try {return frame.contentDocument.body.innerText} catch {return ''}})()")
            blocked = officer.evaluate(
                f"fetch({json.dumps(home)}, {{credentials: 'include'}}).then(r => r.text(), () => 'blocked')"
            )
            officer.click("#send")
            answer = seen(officer, "Another page asked for this")

        assert "Console of" not in frame
        assert blocked == "blocked"
        assert "Console of" not in answer
        assert heard
        assert not re.search("(?i)^cookie:", "\n".join(heard), re.MULTILINE)
        assert (len(events(folder)) if before else 0) == before
        officer.go(home)
        assert "Console of ahus" in seen(officer, "Console of ahus")
        officer.go(f"{address}/enter/{links[0].rpartition('/')[2]}")
        seen(officer, "This address is not valid")


def test_another_browser_of_the_machine_sees_nothing(folder: Path, browser: Browser) -> None:
    """A second browser has neither the link, which was used, nor the cookie, although it has the page's address."""
    with console(folder, "--role", "clinician") as (links, _):
        owner, thief = browser.page(), browser.page()
        owner.go(links[0])
        seen(owner, "Console of ahus")
        home = owner.evaluate("location.href")

        for address in (links[0], home, f"{home}document/1"):
            thief.go(address)
            seen(thief, "This address is not valid")
        with pytest.raises(BrowserError):
            thief.go(home.replace("127.0.0.1", "127.0.0.2"))
        assert owner.evaluate("document.cookie") == ""


def test_no_script_runs_on_a_page_of_the_console(folder: Path, browser: Browser) -> None:
    """The content policy of the console stops a script, a picture and a form that a page should ever contain."""
    with console(folder) as (links, _):
        page = browser.page()
        page.go(links[0])
        seen(page, "Console of ahus")
        page.evaluate(
            "(() => {const script = document.createElement('script'); script.textContent = 'window.ran = true';"
            "document.body.append(script)})()"
        )
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = true\">')")
        styled = page.evaluate("getComputedStyle(document.querySelector('h2')).borderTopStyle")

        assert page.evaluate("window.ran === undefined")
        assert styled == "solid"  # the page's own style is applied
