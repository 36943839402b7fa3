"""Runs the console: answers requests of browsers on this computer, stores their sessions, and runs commands.

It reads neither a table nor a model.

Opening a page changes nothing. The rules:

* a request without the two secrets of a session learns nothing, not even whether a session exists;
* a form without the session's third secret, or of another role, does nothing;
* a form is carried out once. A second submission shows the first result;
* each role runs one action at a time. An action that only records a decision about a plan never waits;
* a session approves a plan as the exact bytes whose review it has opened;
* hospital.yaml is read for each page, so that a page never shows a policy that is no longer valid.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from protos.errors import OperatorError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.approvals import Approval, find_approval, why_not
from site_agent.approving import Refusal, announced_plans, find_refusal
from site_agent.console.console_actions import ACTS, APPROVE, COMPARE, EXAMINE, REVIEW, Act, Done, run_command
from site_agent.console.console_links import COOKIE, ROLE_NAMES, Links, Role, Session, Shown
from site_agent.console.console_pages import Desk, KnownPlan, Shelf
from site_agent.console.console_requests import Head, RefusedRequest, answer, go_to, read_form, read_head
from site_agent.gate.policy import refusals
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder, saved_runs

_MOST_PLANS: Final = 20
_LOOK_SECONDS: Final = 0.5  # short, so that the console ends soon after a sleeping computer wakes
_DECISION_SECONDS: Final = 10.0  # the time in which a decision may still be completed when the console ends


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings with which a console is started.

    Attributes:
        config: hospital.yaml, as an absolute path.
        host: the address that browsers must name.
        by: the name for the audit log; empty if people type it on the page.
        account: the user of this computer.
        idle_seconds: a session ends after this time without a request.
        clock: seconds of a clock that never jumps, and that runs while the computer sleeps.
        say: a function that writes a line to the terminal.
    """

    config: Path
    host: str
    by: str
    account: str
    idle_seconds: float
    clock: Callable[[], float]
    say: Callable[[str], None]


class Console:
    """A running console: responds to requests, and runs the commands."""

    def __init__(self, setting: Setting, links: Links) -> None:
        self._setting, self._links, self._ended = setting, links, "Nobody opened its link in time."
        self._turns = {role: asyncio.Lock() for role in Role}
        self._acts: dict[asyncio.Task[str], Act] = {}

    def body_bytes(self, head: bytes) -> int:
        """Return how many bytes the body of a request may have; 0 if the request belongs to no session."""
        try:
            found = read_head(head, self._setting.host)
        except RefusedRequest:
            return 0
        return found.body_bytes if self._session(found) else 0

    async def respond(self, request: bytes) -> bytes:
        """Return the complete HTTP response to one request of a browser."""
        raw, _, body = request.partition(b"\r\n\r\n")
        try:
            head = read_head(raw, self._setting.host)
            session = self._session(head)
            if session is None:
                return self._enter(head.path, is_form=head.is_form)
        except RefusedRequest as refused:
            return answer(refused.status, f"{refused.words}\n")
        session.last_seconds = self._setting.clock()
        try:
            if head.is_form:
                return await self._act(session, head.path, read_form(body))
            return self._page(session, head.path)
        except RefusedRequest as refused:
            return self._message(session, refused.status, refused.words)
        except OperatorError as error:
            return self._message(session, 409, error.lines("site-agent"))
        except OSError as error:
            reason = error.strerror or "it took too long"
            return self._message(session, 409, f"The console could not do this: {reason}.")
        except Exception as defect:
            self._setting.say(f"The console has a defect: {type(defect).__name__}. The request was not answered.")
            words = "The console has a defect. Ask the person who runs this computer to use the command at a terminal."
            return self._message(session, 500, words)

    async def until_over(self) -> str:
        """Wait until nobody can use the console any more. Return the reason as text for the terminal."""
        while True:
            now = self._setting.clock()
            for session in self._links.end_idle(now):
                self._ended = f"Nobody used it for {self._setting.idle_seconds / 60:g} minutes."
                self._setting.say(f"The session of the {_names(session)} ended. {self._ended}")
            if self._links.is_over(now) and not self._acts:
                return self._ended
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Stop running commands and remove their files. A command that records a decision may still finish."""
        for act in self._acts:
            act.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)

    def _session(self, head: Head) -> Session | None:
        return self._links.session(head.path, head.cookies, self._setting.clock())

    def _message(self, session: Session, status: int, words: str) -> bytes:
        return answer(status, self._desk(session).message(words), is_page=True)

    def _enter(self, path: str, *, is_form: bool) -> bytes:
        start = "/enter/"
        session = None
        if not is_form and path.startswith(start):
            session = self._links.open(path.removeprefix(start), self._setting.clock())
        if session is None:
            raise RefusedRequest(
                403,
                "This address is not valid. A link works once, for 10 minutes, in one browser. A session ends when "
                "nobody uses it. To continue, ask for a new link. If you did not use this link yourself, stop the "
                "console with Ctrl-C.",
            )
        self._setting.say(f"A browser opened the link of the {_names(session)}. It cannot be used again.")
        cookie = f"Set-Cookie: {COOKIE}={session.cookie}; Path={session.address}; HttpOnly; SameSite=Strict"
        return go_to(session.address, cookie)

    def _page(self, session: Session, path: str) -> bytes:
        desk = self._desk(session)
        match path.removeprefix(session.address).split("/"):
            case [""]:
                return answer(200, desk.home(self._shelf(session)), is_page=True)
            case ["page", number, *again] if (shown := session.find(number)) and shown.page and again in _AGAIN:
                page = shown.page()
            case ["document", number, *again] if (shown := session.find(number)) and shown.document and again in _AGAIN:
                if shown.plan is not None:
                    session.read[shown.plan.digest] = shown.plan
                page = desk.with_way_back(shown.document)
            case _:
                raise RefusedRequest(404, "The console has no such page.")
        return answer(200, desk.repeated(page) if again else page, is_page=True)

    async def _act(self, session: Session, path: str, form: dict[str, str]) -> bytes:
        number = session.form_number(form.get("form_key", ""), form.get("form", ""))
        if path != session.address or number is None:
            raise RefusedRequest(403, "This form was not sent by a page of this session. Nothing was done.")
        if form.get("action") == "leave":
            self._links.end(session)
            self._ended = "All users left it."
            return answer(200, "You left the console. Its link is not valid any more.\n")
        act = ACTS.get(form.get("action", ""))
        if act is None:
            raise RefusedRequest(400, "The console has no such form.")
        if act.role not in session.roles:
            raise RefusedRequest(403, f"Only the {ROLE_NAMES[act.role]} can do this.")
        if (first := session.acts.get(number)) is not None:
            return go_to(f"{await asyncio.shield(first)}/again")
        session.by = form.get("by", session.by)
        typed = form | ({"by": self._setting.by} if self._setting.by else {})
        act.require_fields(typed)
        plan = self._plan(session, act, typed.get("plan", "")) if act.has_plan else None
        begun = asyncio.create_task(self._carry_out(session, act, typed, plan))
        session.acts[number], self._acts[begun] = begun, act
        begun.add_done_callback(self._acts.pop)
        try:
            return go_to(await asyncio.shield(begun))
        except Exception:
            session.acts.pop(number, None)  # no command was completed, so the form may be sent again
            raise

    async def _carry_out(self, session: Session, act: Act, typed: dict[str, str], plan: Plan | None) -> str:
        """Wait for this action's turn, and run its command. Return the path of the page with the result.

        The command works in a folder that only this user can read, and that is removed afterwards.
        """
        async with nullcontext() if act.is_decision else self._turns[act.role]:
            if not self._links.has(session):  # the session ended while another action ran
                raise RefusedRequest(403, "This session is over. Nothing was done.")
            with tempfile.TemporaryDirectory(prefix="site-agent-console-") as name:
                folder = Path(name)
                if plan is not None:
                    (folder / "plan.json").write_bytes(plan.canonical)
                patience = _DECISION_SECONDS if act.is_decision else 0.0
                done = await run_command(act.command(self._setting.config, folder, typed), folder, patience)
        session.last_seconds = self._setting.clock()
        shown = self._shown(session, act, done, plan)
        return f"{session.address}{'document' if shown.page is None else 'page'}/{session.keep(shown)}"

    def _shown(self, session: Session, act: Act, done: Done, plan: Plan | None) -> Shown:
        desk, number = self._desk(session), session.next_number
        if done.document is None:
            is_list = act is COMPARE and done.status == 0
            return Shown(page=partial(desk.models, done.text) if is_list else partial(desk.result, done))
        if act is REVIEW and plan is not None:
            reviewed = plan
            return Shown(
                page=lambda: desk.plan(self._known(read_hospital(self._setting.config), reviewed), done.status, number),
                document=done.document,
                plan=plan,
            )
        if act is EXAMINE:
            return Shown(page=partial(desk.examination, done, number), document=done.document)
        return Shown(document=done.document)

    def _plan(self, session: Session, act: Act, digest: str) -> Plan:
        """Return the plan that a form names. It is approved in the version that was read, whatever its file has now."""
        known = session.read.values() if act is APPROVE else self._announced(read_hospital(self._setting.config))
        for plan in known:
            if plan.digest.hex() == digest:
                return plan
        if act is APPROVE:
            raise RefusedRequest(409, "Nothing was approved. Read the review of this plan first.")
        raise RefusedRequest(404, "This site no longer has this plan. Nothing was done.")

    def _shelf(self, session: Session) -> Shelf:
        """Return the content of a session's first page. A role sees only its own part."""
        hospital = read_hospital(self._setting.config)
        state = hospital.state_path
        plans = list(self._plans(hospital)) if Role.OFFICER in session.roles else []
        runs = saved_runs(state) if Role.CLINICIAN in session.roles else []
        return Shelf(site=hospital.site, plans=plans if plans or _can_read_plans(state) else None, runs=runs)

    def _announced(self, hospital: Hospital) -> Iterator[Plan]:
        """Yield the plans that were announced to this site, each once, the latest first. Skip files without a plan."""
        seen: set[bytes] = set()
        for place in reversed(announced_plans(hospital.state_path)):
            with suppress(OSError, OperatorError):
                plan = plan_from_wire(place.read_bytes())
                if plan.digest not in seen:
                    seen.add(plan.digest)
                    yield plan

    def _plans(self, hospital: Hospital) -> Iterator[KnownPlan]:
        for number, plan in enumerate(self._announced(hospital)):
            known = self._known(hospital, plan)
            if number < _MOST_PLANS or known.is_approved:  # an approval can always be withdrawn
                yield known

    def _known(self, hospital: Hospital, plan: Plan) -> KnownPlan:
        title, digest = f"{plan.study}, version {plan.version}", plan.digest.hex()
        try:
            approval = find_approval(hospital.state_path, plan)
        except (OperatorError, OSError) as error:
            words = str(error)
            if isinstance(error, OSError):
                words = f"Its approval cannot be read: {error.filename}: {error.strerror}."
            return KnownPlan(title=title, digest=digest, standing=words, is_approved=False, is_damaged=True)
        missing = why_not(approval, approvers=hospital.policy.approvers, now=datetime.now(UTC))
        broken = refusals(hospital.policy, plan, manifest_of(plan), site=hospital.site, identity=None)
        said = list(_decisions(approval, find_refusal(hospital.state_path, plan)))
        is_approved = approval is not None and approval.withdrawn is None
        if missing is not None:
            forbidden = "Training with this plan is not permitted"
            said.append(f"{forbidden}: {missing}." if is_approved or not said else f"{forbidden}.")
        said += [f"This hospital's policy refuses this plan, because {reason}." for reason in broken]
        said += [] if missing is not None or broken else ["Training with this plan is permitted."]
        return KnownPlan(title=title, digest=digest, standing=" ".join(said), is_approved=is_approved)

    def _desk(self, session: Session) -> Desk:
        return Desk(session=session, account=self._setting.account, fixed_name=self._setting.by)


_AGAIN: Final[tuple[list[str], ...]] = ([], ["again"])


def _names(session: Session) -> str:
    return ", ".join(ROLE_NAMES[role] for role in sorted(session.roles))


def _decisions(approval: Approval | None, refusal: Refusal | None) -> Iterator[str]:
    """Yield a sentence for each decision and its person, the latest last. Skip refusals before the last approval."""
    if approval is not None:
        yield f"Approved by {approval.names}."
        if approval.withdrawn is not None:
            yield f"{approval.withdrawn.by} withdrew this site from the plan on {_day(approval.withdrawn.at)}."
    if refusal is not None and (approval is None or _is_before(approval.signatures[-1].at, refusal.at)):
        yield f"{refusal.by} refused it on {_day(refusal.at)}. The reason: {refusal.because.rstrip('.')}."


def _is_before(one: str, other: str) -> bool:
    return datetime.fromisoformat(one) < datetime.fromisoformat(other)


def _day(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%Y-%m-%d}"


def _can_read_plans(state: Path) -> bool:
    """Return whether this user can read the gate's plans. The folder for plans does not exist before the first plan."""
    gate = gate_folder(state)
    there = [place for place in (gate / "plans", gate, state) if os.access(place, os.F_OK)]
    return not there or os.access(there[0], os.R_OK | os.X_OK)
