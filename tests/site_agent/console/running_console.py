"""A real console for tests: it listens on loopback and runs the real commands, and a client sends it any bytes."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from host.local_server import serve_locally
from protos.plan.plan import Plan
from site_agent.approvals import keep_plan
from site_agent.console.console_links import Links, Role
from site_agent.console.console_server import Console, Setting
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.study import made_up_identities, plan_with

SECONDS = 60.0
EVERYBODY = (frozenset(Role),)
POLICY: dict[str, Any] = {
    "methods": ["fedavg"],
    "secure_aggregation": "not-required",
    "smallest_sites": 3,
    "largest_rounds": 10,
    "largest_megabytes": 100.0,
    "largest_clipping_range": 8.0,
}


def make_hospital(folder: Path) -> Plan:
    """A hospital with an identity key, to which one plan was announced; the plan."""
    keys = SiteKeys.create(folder / "state" / "gate")
    data = {"table": "t.csv", "contract": "c.yaml", "split": {"seed": 0}}
    content = {"site": "a", "state": "state", "policy": POLICY, "data": data}
    (folder / "hospital.yaml").write_text(yaml.safe_dump(content))
    return announce(folder, keys)


def announce(folder: Path, keys: SiteKeys, *, version: int = 1, rounds: int = 3) -> Plan:
    """A plan that lists this site's key, announced to it."""
    identities = made_up_identities() | {"a": keys.identity_fingerprint()}
    plan = plan_with(identities, rounds=rounds, changes={"version": version})
    keep_plan(folder / "state", plan)
    return plan


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@dataclass(frozen=True)
class Answer:
    """One response, taken apart."""

    status: int
    fields: Mapping[str, str]
    body: str

    @classmethod
    def of(cls, raw: bytes) -> Answer:
        """Status, fields and text; status 0 if the connection was closed without an answer."""
        if not raw:
            return cls(0, {}, "")
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        fields = (line.partition(": ") for line in lines)
        return cls(int(first.split()[1]), {name.lower(): text for name, _, text in fields}, body.decode())


class Clock:
    """Seconds that pass when a test lets them."""

    seconds = 1000.0

    def __call__(self) -> float:
        """What a clock returns."""
        return self.seconds


@dataclass
class Running:
    """A started console.

    Attributes:
        links: the secret of each link, in the order of roles.
        said: what the terminal shows.
        ended: why it ended, once it has.
    """

    console: Console
    host: str
    links: list[str]
    said: list[str]
    clock: Clock
    ended: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def raw(self, request: bytes) -> Answer:
        """Send bytes, and read until the console closes the connection."""
        name, _, port = self.host.rpartition(":")
        with socket.create_connection((name, int(port)), timeout=SECONDS) as connection:
            received = b""
            with suppress(ConnectionError):  # closed before the request was read
                connection.sendall(request)
                while piece := connection.recv(65536):
                    received += piece
        return Answer.of(received)

    def ask(self, path: str, body: str | None = None, *, method: str = "", **fields: str | None) -> Answer:
        """Ask as a browser would; `fields` replaces lines of the head (with _ for -), and None leaves one out."""
        head: dict[str, str | None] = {"Host": self.host, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "document"}
        if body is not None:
            kind = "application/x-www-form-urlencoded"
            head |= {"Origin": f"http://{self.host}", "Content-Type": kind, "Content-Length": str(len(body))}
        head |= {name.replace("_", "-"): text for name, text in fields.items()}
        lines = [f"{name}: {text}" for name, text in head.items() if text is not None]
        method = method or ("GET" if body is None else "POST")
        return self.raw("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", body or ""]).encode())

    def enter(self, link: int = 0) -> Visitor:
        """Open a link as its owner."""
        answer = self.ask(f"/enter/{self.links[link]}", Sec_Fetch_Site="none")
        assert answer.status == 303, answer.body
        cookie = answer.fields["set-cookie"].partition(";")[0]
        visitor = Visitor(self, answer.fields["location"], cookie)
        visitor.form_key, _ = visitor.new_form()
        return visitor


@dataclass
class Visitor:
    """A browser with a session."""

    running: Running
    folder: str
    cookie: str
    form_key: str = ""

    def get(self, path: str = "", **fields: str | None) -> Answer:
        """Ask for a page below the session's folder."""
        return self.running.ask(self.folder + path, Cookie=self.cookie, **fields)

    def new_form(self) -> tuple[str, str]:
        """Key and number of a form on the first page, which are new each time that it is loaded."""
        return re.findall(
            'name="form_key" value="([^"]+)"><input type="hidden" name="form" value="([0-9]+)"', self.get().body
        )[0]

    def post(self, form: Mapping[str, str], **fields: str | None) -> Answer:
        """Send a form that was not sent before."""
        body = urlencode({"form_key": self.form_key, "form": self.new_form()[1], **form})
        return self.running.ask(self.folder, body, **{"Cookie": self.cookie, **fields})

    def act(self, action: str, **typed: str) -> Answer:
        """Send a form and look at the page that it leads to."""
        answer = self.post({"action": action, **typed})
        assert answer.status == 303, answer.body
        return self.running.ask(answer.fields["location"], Cookie=self.cookie)

    def read_plan(self, plan: Plan) -> Answer:
        """Have the review of a plan made, and open it."""
        page = self.act("review", plan=plan.digest.hex())
        document = re.findall('href="([^"]+/document/[^"]+)"', page.body)[0]
        return self.running.ask(document, Cookie=self.cookie)


@contextmanager
def running_console(
    folder: Path, roles: tuple[frozenset[Role], ...] = EVERYBODY, *, by: str = "", idle_seconds: float = 900.0
) -> Iterator[Running]:
    """A console of the hospital in a folder, until the block ends."""
    clock, said, host = Clock(), [], f"127.0.0.1:{free_port()}"
    links = Links(roles, clock(), idle_seconds)
    setting = Setting(
        config=folder / "hospital.yaml", host=host, by=by, account="jones",
        idle_seconds=idle_seconds, clock=clock, say=said.append,
    )  # fmt: skip
    console = Console(setting, links)
    running = Running(console, host, [secret for secret, _ in links.unused()], said, clock)
    listening, stop = threading.Event(), []

    async def serve() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
        async with await serve_locally(host, console.respond, console.body_bytes):
            listening.set()
            over = asyncio.create_task(console.until_over())
            over.add_done_callback(note_end)
            await stopped.wait()

    def note_end(over: asyncio.Task[str]) -> None:
        running.ended += [] if over.cancelled() else [over.result()]
        running.is_over.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert listening.wait(SECONDS)
    try:
        yield running
    finally:
        stop[0]()
        thread.join(SECONDS)
