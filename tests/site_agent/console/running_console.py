"""A real console for tests: uvicorn on loopback, whose commands run in this process, and a client like a browser."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
import yaml

from protos.plan.plan import Plan
from site_agent.approvals import keep_plan
from site_agent.console import console_app
from site_agent.console.console_app import Setting, application
from site_agent.console.console_session import Done, Session
from tests.pki.whole_site import SiteKeys
from tests.plan_changes import WITHOUT_MASKS
from tests.rehearsal.programs import called
from tests.rehearsal.study import made_up_identities, plan_with

SECONDS = 60.0


def make_hospital(folder: Path) -> Plan:
    """A hospital with an identity key, to which one plan was announced; the plan."""
    keys = SiteKeys.create(folder / "state" / "gate")
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": WITHOUT_MASKS, "data": data}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    return announce(folder, keys)


def announce(folder: Path, keys: SiteKeys, *, version: int = 1, rounds: int = 3) -> Plan:
    """A plan that lists this site's key, announced to it."""
    identities = made_up_identities() | {"a": keys.identity_fingerprint()}
    plan = plan_with(identities, rounds=rounds, changes={"version": version})
    keep_plan(folder / "state", plan)
    return plan


async def _run_here(words: list[str], folder: Path) -> Done:
    done = await asyncio.to_thread(called, "site-agent", *words)
    page = folder / "page.html"
    return Done(
        status=done.returncode, text=done.stdout + done.stderr, document=page.read_text() if page.exists() else None
    )


@dataclass(frozen=True)
class Answer:
    """One response, taken apart."""

    status: int
    fields: Mapping[str, str]
    body: str


class Clock:
    """Seconds that pass when a test lets them."""

    seconds = 1000.0

    def __call__(self) -> float:
        """What a clock returns."""
        return self.seconds


@dataclass
class Running:
    """A started console, and the browser that uses it. `cookie` is set after its link was opened."""

    session: Session
    host: str
    clock: Clock
    cookie: str = ""

    def ask(self, path: str, body: str | None = None, *, method: str = "", **fields: str | None) -> Answer:
        """Ask as a browser would; `fields` replaces lines of the head (with _ for -), and None leaves one out."""
        head: dict[str, str | None] = {"Host": self.host, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "document"}
        if body is not None:
            kind = "application/x-www-form-urlencoded"
            head |= {"Origin": f"http://{self.host}", "Content-Type": kind, "Content-Length": str(len(body))}
        head |= {"Cookie": self.cookie} | {name.replace("_", "-"): text for name, text in fields.items()}
        name, _, port = self.host.rpartition(":")
        connection = http.client.HTTPConnection(name, int(port), timeout=SECONDS)
        connection.putrequest(method or ("GET" if body is None else "POST"), path, True, True)
        for key, value in head.items():
            if value is not None:
                connection.putheader(key, value)
        connection.endheaders((body or "").encode())
        response = connection.getresponse()
        found = {key.lower(): value for key, value in response.getheaders()}
        answer = Answer(response.status, found, response.read().decode())
        connection.close()
        return answer

    def enter(self) -> None:
        """Open the link as its owner."""
        answer = self.ask(f"/enter/{self.session.link}", Sec_Fetch_Site="none")
        assert answer.status == 303, answer.body
        self.cookie = answer.fields["set-cookie"].partition(";")[0]

    def get(self, path: str = "", **fields: str | None) -> Answer:
        """Ask for a page below the session's folder."""
        return self.ask(self.session.address + path, **fields)

    def post(self, form: Mapping[str, str], **fields: str | None) -> Answer:
        """Send a form with the key that the first page has."""
        found = re.findall('name="form_key" value="([^"]+)"', self.get().body)[0]
        return self.ask(self.session.address, urlencode({"form_key": found} | dict(form)), **fields)

    def act(self, action: str, **typed: str) -> Answer:
        """Send a form and look at the page that it leads to."""
        answer = self.post({"action": action, **typed})
        assert answer.status == 303, answer.body
        return self.ask(answer.fields["location"])

    def read_plan(self, plan: Plan) -> Answer:
        """Have the review of a plan made, and open it."""
        self.get(f"plan/{plan.digest.hex()}")
        return self.get(f"review/{plan.digest.hex()}")


@contextmanager
def running_console(folder: Path, *, commands: Callable[..., Any] = _run_here) -> Iterator[Running]:
    """A console of the hospital in a folder, until the block ends."""
    clock, opened = Clock(), socket.create_server(("127.0.0.1", 0))
    session, host = Session(clock=clock), f"127.0.0.1:{opened.getsockname()[1]}"
    setting = Setting(config=folder / "hospital.yaml", host=host, account="jones")
    server = uvicorn.Server(uvicorn.Config(application(setting, session), log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[opened])))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(console_app, "run_command", commands)
        patched.setattr("site_agent.commands.approval_commands.give_up_network", lambda: True)
        thread.start()
        try:
            yield Running(session, host, clock)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            opened.close()
