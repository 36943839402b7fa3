"""The console's process: it listens on loopback, knows sessions, and runs commands. It reads no table and no model.

One act runs at a time. A page is only a view: a browser that asks for it again changes nothing. The rules:

* a request without the two secrets of a session learns nothing, not even whether there is a session;
* a form without the session's third secret, or of another role, does nothing;
* a plan is approved as the very bytes whose review this session has opened.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from protos.errors import OperatorError
from protos.plan.plan import Plan, plan_from_wire
from site_agent.approvals import announced_plans, find_approval, why_not
from site_agent.console.console_actions import ACTS, APPROVE, COMPARE, EXAMINE, REVIEW, Act, Done, run_command
from site_agent.console.console_links import COOKIE, Links, Role, Session, Shown
from site_agent.console.console_pages import ROLE_NAMES, Desk, KnownPlan
from site_agent.console.console_requests import RefusedRequest, answer, go_to, read_form, read_head
from site_agent.hospital import Hospital

_MOST_PLANS: Final = 20
_LOOK_SECONDS: Final = 0.5  # so that a computer that was asleep ends the console soon


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a console is started with.

    Attributes:
        hospital: the site.
        config: its file, as an absolute path.
        host: the address that browsers must name, HOST:PORT.
        by: the name for the audit log; empty if people type it on the page.
        account: the user of this computer.
        idle_seconds: after so long without a request of a session the console ends.
        clock: seconds of a clock that never jumps, and that runs while the computer sleeps.
        say: writes a line to the terminal.
    """

    hospital: Hospital
    config: Path
    host: str
    by: str
    account: str
    idle_seconds: float
    clock: Callable[[], float]
    say: Callable[[str], None]


class Console:
    """One started console."""

    def __init__(self, setting: Setting, links: Links) -> None:
        self._setting, self._links = setting, links
        self._last_seconds, self._busy, self._has_left = setting.clock(), asyncio.Lock(), False

    def body_bytes(self, head: bytes) -> int:
        """How much of a body is read: nothing before the head has shown a session."""
        try:
            found = read_head(head, self._setting.host)
        except RefusedRequest:
            return 0
        return found.body_bytes if self._links.session(found.path, found.cookies) else 0

    async def respond(self, request: bytes) -> bytes:
        """The whole response to one request."""
        raw, _, body = request.partition(b"\r\n\r\n")
        try:
            head = read_head(raw, self._setting.host)
            session = self._links.session(head.path, head.cookies)
            if session is None:
                return self._enter(head.path, is_form=head.is_form)
            self._last_seconds = self._setting.clock()
            if head.is_form:
                return await self._act(session, head.path, read_form(body))
            return self._page(session, head.path)
        except RefusedRequest as refused:
            return answer(refused.status, f"{refused.words}\n")
        except OperatorError as error:
            return answer(409, error.lines("site-agent") + "\n")
        except OSError as error:
            return answer(409, f"The console could not do this: {error.strerror or 'it took too long'}.\n")
        except Exception as defect:
            self._setting.say(f"The console has a defect: {type(defect).__name__}. The request was not answered.")
            return answer(
                500, "The console has a defect. Use the command at a terminal, and tell who runs this site.\n"
            )

    async def until_over(self) -> str:
        """Wait until nobody can use the console any more; the reason, for the terminal."""
        while True:
            now = self._setting.clock()
            if not self._busy.locked():
                if self._links.seconds_left(now) <= 0:
                    return "Everybody left it." if self._has_left else "Nobody opened its link in time."
                if now - self._last_seconds >= self._setting.idle_seconds:
                    return f"Nobody used it for {self._setting.idle_seconds / 60:g} minutes."
            await asyncio.sleep(_LOOK_SECONDS)

    def _enter(self, path: str, *, is_form: bool) -> bytes:
        start = "/enter/"
        session = None
        if not is_form and path.startswith(start):
            session = self._links.open(path.removeprefix(start), self._setting.clock())
        if session is None:
            raise RefusedRequest(
                403,
                "This address is not valid. A link works once, for 10 minutes, in one browser. If you did not use "
                "it yourself, stop the console with Ctrl-C. Start it again for new links.",
            )
        self._last_seconds = self._setting.clock()
        roles = ", ".join(ROLE_NAMES[role] for role in sorted(session.roles))
        self._setting.say(f"A browser opened the link of the {roles}. It cannot be used again.")
        cookie = f"Set-Cookie: {COOKIE}={session.cookie}; Path={session.address}; HttpOnly; SameSite=Strict"
        return go_to(session.address, cookie)

    def _page(self, session: Session, path: str) -> bytes:
        desk = self._desk(session)
        match path.removeprefix(session.address).split("/"):
            case [""]:
                is_officer = Role.OFFICER in session.roles
                return answer(200, desk.home(list(self._plans()) if is_officer else []), is_page=True)
            case ["page", number] if (shown := session.find(number)) and shown.page is not None:
                return answer(200, shown.page, is_page=True)
            case ["document", number] if (shown := session.find(number)) and shown.document is not None:
                if shown.plan is not None:
                    session.read[shown.plan.digest] = shown.plan
                return answer(200, desk.with_way_back(shown.document), is_page=True)
            case _:
                raise RefusedRequest(404, "The console has no such page.")

    async def _act(self, session: Session, path: str, form: dict[str, str]) -> bytes:
        if path != session.address or not session.has_form_key(form.get("form_key", "")):
            raise RefusedRequest(403, "This form was not sent by a page of this session.")
        if form.get("action") == "leave":
            self._links.leave(session)
            self._has_left = True
            return answer(200, "You left the console. Its link is not valid any more.\n")
        act = ACTS.get(form.get("action", ""))
        if act is None:
            raise RefusedRequest(400, "The console has no such form.")
        if act.role not in session.roles:
            raise RefusedRequest(403, f"Only the {ROLE_NAMES[act.role]} can do this.")
        session.by = form.get("by", session.by)
        typed = form | ({"by": self._setting.by} if self._setting.by else {})
        async with self._busy:
            if not self._links.has(session):  # it was left while another act ran
                raise RefusedRequest(403, "This session is over. Nothing was done.")
            shown = await self._done(session, act, typed)
            number = session.keep(shown)
        self._last_seconds = self._setting.clock()
        return go_to(f"{session.address}{'document' if shown.page is None else 'page'}/{number}")

    async def _done(self, session: Session, act: Act, typed: dict[str, str]) -> Shown:
        """Run the command of an act, in a folder that only this user can read and that is removed at once."""
        plan = self._plan(session, act, typed.get("plan", "")) if act.has_plan else None
        with tempfile.TemporaryDirectory(prefix="site-agent-console-") as name:
            folder = Path(name)
            if plan is not None:
                (folder / "plan.json").write_bytes(plan.canonical)
            done = await run_command(act.command(self._setting.config, folder, typed), folder)
        return self._shown(session, act, done, plan)

    def _shown(self, session: Session, act: Act, done: Done, plan: Plan | None) -> Shown:
        desk, number = self._desk(session), session.next_number
        if done.document is None:
            is_list = act is COMPARE and done.status == 0
            return Shown(page=desk.models(done.text) if is_list else desk.result(done.status, done.text))
        if act is REVIEW and plan is not None:
            page = desk.plan(self._known(plan), done.status, number)
            return Shown(page=page, document=done.document, plan=plan)
        if act is EXAMINE:
            page = desk.examination(done.status, done.text, number, self._to_accept(done))
            return Shown(page=page, document=done.document)
        return Shown(document=done.document)

    def _plan(self, session: Session, act: Act, digest: str) -> Plan:
        """The plan that a form names. One is approved as it was read, whatever lies in its file by now."""
        known = session.read.values() if act is APPROVE else self._announced()
        for plan in known:
            if plan.digest.hex() == digest:
                return plan
        if act is APPROVE:
            raise RefusedRequest(409, "Nothing was approved. Read the review of this plan first.")
        raise RefusedRequest(404, "No plan with this digest was announced here.")

    def _announced(self) -> Iterator[Plan]:
        """The plans of this site, the latest first, each once; a file that is no plan is skipped."""
        seen: set[bytes] = set()
        for place in reversed(announced_plans(self._setting.hospital.state_path)):
            with suppress(OSError, OperatorError):
                plan = plan_from_wire(place.read_bytes())
                if plan.digest not in seen:
                    seen.add(plan.digest)
                    yield plan

    def _plans(self) -> Iterator[KnownPlan]:
        for number, plan in enumerate(self._announced()):
            known = self._known(plan)
            if number < _MOST_PLANS or known.is_approved:  # an approval can always be withdrawn
                yield known

    def _known(self, plan: Plan) -> KnownPlan:
        hospital = self._setting.hospital
        approval = find_approval(hospital.state_path, plan)
        missing = why_not(approval, approvers=hospital.policy.approvers, now=datetime.now(UTC))
        names = "" if approval is None else approval.names
        return KnownPlan(
            title=f"{plan.study}, version {plan.version}",
            digest=plan.digest.hex(),
            standing=f"Approved by {names}: it may train." if missing is None else f"It may not train: {missing}.",
            is_approved=approval is not None and approval.withdrawn is None,
        )

    def _to_accept(self, done: Done) -> str | None:
        """The digest of the examination that was just made, if only its warnings stand in the way."""
        try:
            facts = json.loads((self._setting.hospital.state_path / "data" / "check.json").read_bytes())
            levels = {finding["level"] for finding in facts["findings"]}
            return str(facts["digest"]) if done.status and "error" not in levels and "warning" in levels else None
        except (OSError, ValueError, KeyError):
            return None

    def _desk(self, session: Session) -> Desk:
        setting = self._setting
        return Desk(session=session, site=setting.hospital.site, account=setting.account, fixed_name=setting.by)
