"""The console's web application: checks each request, shows pages, and runs commands of `site-agent` for buttons.

It reads neither a table nor a model: each command is a process of its own, which checks, acts and writes the audit log.
The rules:

* the host must equal the console's own address, so no other name can be made to point here;
* requests that another page started are refused: forms, frames, pictures and pages loaded in advance;
* a request without the two secrets of the session learns nothing, not even whether there is a session;
* opening a page decides nothing. A form without the session's third secret does nothing;
* a plan is approved as the exact bytes whose review the session has opened;
* no response may be framed or cached, run a script, or load anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from host.printed_page import STYLE
from protos.errors import OperatorError
from protos.plan.plan import Plan, plan_from_wire
from site_agent.approvals import announced_plans, find_approval, why_not
from site_agent.console.console_session import COOKIE, Done, Session
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import is_run_name, live_curves_path, saved_runs

LARGEST_HEAD_BYTES: Final = 8192
LONGEST_FORM_BYTES: Final = 8192
_FORM_SECONDS: Final = 5.0
_COMMAND_SECONDS: Final = 3600.0
_MOST_PLANS: Final = 20
_FORM: Final = "application/x-www-form-urlencoded"
# Browsers send these fields when they load a page in advance. Such a request must not use up the link.
_AHEAD: Final = ("sec-purpose", "purpose", "x-purpose", "x-moz")
_FIELDS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_UNKNOWN: Final = (
    "This address is not valid. The link works once, for 10 minutes, in one browser. The session ends when nobody uses "
    "it. To continue, start the console again. If you did not use the link yourself, stop the console with Ctrl-C."
)
# Action -> the words of its command, and the fields of the form that become options. `--plan` is added to both.
_DECISIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "approve": (("approve", "--yes"), ("by", "until", "beside")),
    "withdraw": (("withdraw",), ("by",)),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings with which a console is started.

    Attributes:
        config: hospital.yaml, as an absolute path.
        host: the address that browsers must name.
        account: the user of this computer.
    """

    config: Path
    host: str
    account: str


def application(setting: Setting, session: Session) -> ASGIApp:
    """Return the web application of a console with one session."""
    pages = _Pages(setting, session)
    routes = [
        Route(f"{session.address}", pages.home, methods=["GET"]),
        Route(f"{session.address}", pages.act, methods=["POST"]),
        Route(f"{session.address}plan/{{digest}}", pages.plan, methods=["GET"]),
        Route(f"{session.address}review/{{digest}}", pages.review, methods=["GET"]),
        Route(f"{session.address}report/{{run}}", pages.report, methods=["GET"]),
        Route(f"{session.address}curves/{{run}}", pages.curves, methods=["GET"]),
        Route(f"{session.address}result", pages.result, methods=["GET"]),
    ]
    handlers = {HTTPException: pages.refuse, OperatorError: pages.fail, OSError: pages.fail}
    inner = Starlette(routes=routes, exception_handlers=handlers)
    inner.router.redirect_slashes = False
    return _Guard(inner, setting.host, session)


class _Guard:
    """Refuses each request that no page of the session sends, before the application sees it. Opens the link."""

    def __init__(self, inner: ASGIApp, host: str, session: Session) -> None:
        self._inner, self._host, self._session = inner, host, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_fields(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = [(name.lower().encode(), value.encode()) for name, value in _FIELDS.items()]
                message["headers"] = [*message["headers"], *fields]
            await send(message)

        request = Request(scope)
        own = self._answer(request)
        await (self._inner if own is None else own)(scope, receive, send_fields)

    def _answer(self, request: Request) -> Response | None:
        fields, is_form = request.headers, request.method == "POST"
        if fields.getlist("host") != [self._host]:
            return _line(421, f"The console answers only as http://{self._host}/. Use the link that it printed.")
        if request.method not in ("GET", "POST"):
            return _line(405, "The console answers GET and POST only.")
        sites = ["same-origin"] if is_form else ["same-origin", "none"]
        is_foreign = any(site not in sites for site in fields.getlist("sec-fetch-site"))
        is_embedded = any(use != "document" for use in fields.getlist("sec-fetch-dest"))
        if is_foreign or is_embedded or any(name in fields for name in _AHEAD):
            return _line(403, "Another page asked for this. Copy the console's link into the address bar.")
        if is_form and fields.getlist("origin") != [f"http://{self._host}"]:
            return _line(403, "This form was not sent by a page of this console.")
        folder, _, rest = request.url.path.removeprefix("/").partition("/")
        if self._session.has(folder, _cookies(request)):
            return None
        if is_form or folder != "enter" or not self._session.enter(rest):
            return _line(403, _UNKNOWN)
        address = self._session.address
        entered = RedirectResponse(address, 303)
        entered.set_cookie(COOKIE, self._session.cookie, path=address, httponly=True, samesite="strict")
        return entered


class _Pages:
    def __init__(self, setting: Setting, session: Session) -> None:
        self._setting, self._session = setting, session
        self._turn = asyncio.Lock()
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    async def home(self, _: Request) -> Response:
        self._session.use()
        hospital = read_hospital(self._setting.config)
        plans = [(plan, self._standing(hospital, plan)) for plan in _announced(hospital)]
        runs, curves = saved_runs(hospital.state_path), [file.stem for file in curve_files(hospital.state_path)]
        return self._shown("home.html", site=hospital.site, plans=plans, reports=runs, curves=curves)

    async def plan(self, request: Request) -> Response:
        self._session.use()
        digest = request.path_params["digest"]
        if digest not in self._session.reviewed:
            plan = self._named(digest)
            self._session.reviewed[digest] = plan, await self._run(["review"], plan)
        plan, done = self._session.reviewed[digest]
        approval = find_approval(read_hospital(self._setting.config).state_path, plan)
        return self._shown(
            "plan.html",
            plan=plan,
            status=done.status,
            is_read=digest in self._session.read,
            is_approved=approval is not None and approval.withdrawn is None,
            standing=self._standing(read_hospital(self._setting.config), plan),
        )

    async def review(self, request: Request) -> Response:
        self._session.use()
        digest = request.path_params["digest"]
        if (found := self._session.reviewed.get(digest)) is None:
            raise HTTPException(404, "This plan was not reviewed in this session.")
        self._session.read.add(digest)
        return self._document(found[1], f"{self._session.address}plan/{digest}", "Decide about this plan")

    async def report(self, request: Request) -> Response:
        self._session.use()
        if not is_run_name(run := request.path_params["run"]):
            raise HTTPException(404, "There is no such run.")
        done = await self._run(["report", f"--run={run}"])
        if done.document is None:
            return self._shown("result.html", 409, done=done)
        return self._document(done, self._session.address, "Back to the console")

    async def curves(self, request: Request) -> Response:
        run = request.path_params["run"]
        if not is_run_name(run):
            raise HTTPException(404, "There is no such run.")
        drawn = drawn_curve(read_hospital(self._setting.config).state_path, run)
        return self._shown("curves.html", run=run, drawn=drawn)

    async def result(self, _: Request) -> Response:
        self._session.use()
        return self._shown("result.html", done=self._session.done or Done(status=0, text=""))

    async def act(self, request: Request) -> Response:
        form, session = await _form(request), self._session
        if not session.sent(form):
            raise HTTPException(403, "This form was not sent by a page of this session. Nothing was done.")
        session.use()
        session.by = form.get("by", session.by)
        action = form.get("action", "")
        if action == "leave":
            session.end("Its user left it.")
            return _line(200, "You left the console. Its link is not valid any more.")
        if action in _DECISIONS:
            return await self._decide(action, form)
        raise HTTPException(400, "The console has no such form.")

    async def refuse(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        done = Done(status=error.status_code, text=error.detail)
        return self._shown("result.html", error.status_code, done=done)

    async def fail(self, _: Request, error: Exception) -> Response:
        text = (
            error.lines("site-agent") if isinstance(error, OperatorError) else f"The console could not do this: {error}"
        )
        return self._shown("result.html", 409, done=Done(status=1, text=text))

    async def _decide(self, action: str, form: Mapping[str, str]) -> Response:
        session, (words, options) = self._session, _DECISIONS[action]
        digest = form.get("plan", "")
        if action == "approve" and digest not in session.read:
            raise HTTPException(409, "Nothing was approved. Read the review of this plan first.")
        plan = session.reviewed[digest][0] if digest in session.read else self._named(digest)
        if not form.get("by"):
            raise HTTPException(400, "The form lacks a name. Nothing was done.")
        given = [f"--{name}={form[name]}" for name in options if form.get(name)]
        session.done = await self._run([*words, *given], plan, is_decision=True)
        return RedirectResponse(f"{session.address}result", 303)

    async def _run(self, words: list[str], plan: Plan | None = None, *, is_decision: bool = False) -> Done:
        """Run a command in a folder that only this user can read. Only a decision never waits for another command."""
        self._session.running += 1
        try:
            async with nullcontext() if is_decision else self._turn:
                with tempfile.TemporaryDirectory(prefix="site-agent-console-") as name:
                    folder = Path(name)
                    words = [*words, f"--config={self._setting.config}"]
                    if plan is not None:
                        (folder / "plan.json").write_bytes(plan.canonical)
                        words.append(f"--plan={folder / 'plan.json'}")
                    if not is_decision:
                        words.append(f"--html={folder / 'page.html'}")
                    return await run_command(words, folder)
        finally:
            self._session.running -= 1
            self._session.use()

    def _named(self, digest: str) -> Plan:
        for plan in _announced(read_hospital(self._setting.config)):
            if plan.digest.hex() == digest:
                return plan
        raise HTTPException(404, "This site no longer has this plan. Nothing was done.")

    def _standing(self, hospital: Hospital, plan: Plan) -> str:
        """Return whether the persons of this hospital permit training with a plan, as a sentence."""
        try:
            approval = find_approval(hospital.state_path, plan)
        except OperatorError as damaged:
            return str(damaged)
        missing = why_not(approval, approvers=hospital.policy.approvers, now=datetime.now(UTC))
        signed = " and ".join(one.by for one in approval.signatures) if approval else ""
        names = f"Approved by {signed}. " if signed else ""
        return f"{names}Training is not permitted: {missing}." if missing else f"{names}Training is permitted."

    def _document(self, done: Done, way: str, words: str) -> Response:
        back = f'<body><p><a href="{way}">{words}</a></p>'
        return HTMLResponse((done.document or "").replace("<body>", back, 1))

    def _shown(self, template: str, code: int = 200, **facts: object) -> Response:
        text = self._templates.get_template(template).render(
            style=STYLE, session=self._session, setting=self._setting, **facts
        )
        return HTMLResponse(text, code)


def _announced(hospital: Hospital) -> Iterator[Plan]:
    """Yield the plans that were announced to this site, each once, the latest first. Skip files without a plan."""
    seen: set[bytes] = set()
    for place in reversed(announced_plans(hospital.state_path)):
        with suppress(OSError, OperatorError):
            plan = plan_from_wire(place.read_bytes())
            if plan.digest not in seen and len(seen) < _MOST_PLANS:
                seen.add(plan.digest)
                yield plan


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException: it is no form of a page, too long, or a field occurs twice."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != _FORM:
        raise HTTPException(415, "This is not a form of the console.")
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not re.fullmatch("[0-9]{1,12}", length):
        raise HTTPException(411, "The form does not name its length.")
    if int(length) > LONGEST_FORM_BYTES:
        raise HTTPException(413, f"The form has {length} bytes. The console reads {LONGEST_FORM_BYTES}.")
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            text = (await request.body()).decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=16)
    except (ValueError, TimeoutError) as cause:
        raise HTTPException(400, "This is not a form of the console.") from cause
    found = dict(pairs)
    if len(found) < len(pairs) or any(not value.isprintable() for value in found.values()):
        raise HTTPException(400, "A field of the form occurs twice, or has a control character.")
    return found


def _cookies(request: Request) -> Iterator[str]:
    """Yield every value under the console's name. A browser can send cookies of other folders too."""
    for line in request.headers.getlist("cookie"):
        for pair in line.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE:
                yield value


def _line(status: int, words: str) -> Response:
    return PlainTextResponse(f"{words}\n", status)


async def run_command(words: list[str], folder: Path) -> Done:
    """Run a command of `site-agent` to its end, even if the browser closes the connection.

    Raises:
        TimeoutError: it did not end within an hour and was stopped.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "site_agent", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"COLUMNS": "1000"},  # so that no sentence is cut at the width of the console's terminal
        start_new_session=True,  # Ctrl-C ends the console, which then decides how the command ends
    )
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with every process that it started
            await process.wait()  # no process writes to the folder any more
    lines = printed.decode(errors="replace").splitlines()
    page = folder / "page.html"
    return Done(
        status=process.returncode or 0,
        text="\n".join(line for line in lines if str(folder) not in line),
        document=page.read_text(encoding="utf-8") if page.exists() else None,
    )


def curve_files(state: Path) -> list[Path]:
    """Return the files with curves of runs, the latest first. Only a user who may read the trainer's files has any."""
    try:
        files = list(live_curves_path(state, "x").parent.glob("*.json"))
        return sorted(files, key=lambda file: (-file.stat().st_mtime, file.name))
    except OSError:
        return []


def drawn_curve(state: Path, run: str) -> str:
    """Draw the curve of a run as an image in HTML. Return an empty text without a file, or with a damaged file."""
    from host.plots import Series, axis_over, plot

    try:
        found = json.loads(live_curves_path(state, run).read_bytes())
        points = {int(number): float(loss) for number, loss in found}
    except (OSError, ValueError, TypeError):
        return ""  # there is no such file yet
    if not points:
        return ""
    series = Series(label="validation rows", xs=list(points), ys=list(points.values()))
    return plot("Loss by round", axis_over("after round", series.xs), axis_over("loss", series.ys), [series])
