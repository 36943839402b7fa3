"""Decides which browser may use which action of the console. A browser's session starts with a link that works once.

The rules:

* a link opens one session of its roles, once, and is valid for LINK_SECONDS;
* an unused session ends by itself, independently of other sessions;
* a session needs two secrets: the folder of its addresses, and a cookie that the browser sends only to this folder.
  Browsers send cookies of 127.0.0.1 to every port. So without a secret folder, the page of another user of this
  computer would receive the cookie;
* each form repeats a third secret. All three are compared in constant time, and only a link is ever printed;
* each form has a number of its own. A form is carried out once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protos.plan.plan import Plan

COOKIE: Final = "console"
LINK_SECONDS: Final = 600.0
_SECRET_BYTES: Final = 32
_MOST_SHOWN: Final = 30


class Role(StrEnum):
    """The role of a person at a hospital. A session may have several roles."""

    DATA_MANAGER = "data-manager"
    OFFICER = "officer"
    CLINICIAN = "clinician"


ROLE_NAMES: Final = {
    Role.DATA_MANAGER: "data manager",
    Role.OFFICER: "data protection officer",
    Role.CLINICIAN: "clinician",
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The result of one action of the console, as a page or as a document.

    Attributes:
        page: a function that makes its page from the current state; None if there is only the document.
        document: the page that the command wrote, unchanged, or None.
        plan: the plan that the document reviews.
    """

    page: Callable[[], str] | None = None
    document: str | None = None
    plan: Plan | None = None


def _secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


@dataclass(kw_only=True, eq=False)
class Session:
    """The session of one browser that opened a one-time link.

    Attributes:
        roles: the roles whose actions it may request.
        last_seconds: when it was used last, on the console's clock.
        by: the name that was typed last.
        read: plan digest -> each plan whose review this session has opened.
        acts: number of a form -> its action, which ends with the path of its result.
    """

    roles: frozenset[Role]
    last_seconds: float = 0.0
    by: str = ""
    folder: str = field(default_factory=_secret, repr=False)
    cookie: str = field(default_factory=_secret, repr=False)
    form_key: str = field(default_factory=_secret, repr=False)
    read: dict[bytes, Plan] = field(default_factory=dict, repr=False)
    acts: dict[int, asyncio.Task[str]] = field(default_factory=dict, repr=False)
    _shown: dict[int, Shown] = field(default_factory=dict, repr=False)
    _count: int = 0
    _forms: int = 0

    @property
    def address(self) -> str:
        """Return the beginning of the web addresses of all pages in this session."""
        return f"/{self.folder}/"

    @property
    def next_number(self) -> int:
        """The number for the next result of an action in this session."""
        return self._count + 1

    @property
    def is_waiting(self) -> bool:
        """Return whether a command that this session started is still running."""
        return any(not act.done() for act in self.acts.values())

    def keep(self, shown: Shown) -> int:
        """Store an action's result for this session's pages and return its number. Only the latest results remain."""
        self._count += 1
        self._shown[self._count] = shown
        self._shown.pop(self._count - _MOST_SHOWN, None)
        return self._count

    def find(self, number: str) -> Shown | None:
        """Return the result of an action with this number. Return None if this result is not stored."""
        return self._shown.get(int(number)) if _is_number(number) else None

    def new_form(self) -> int:
        """Return a number for a new form on a page of this session."""
        self._forms += 1
        return self._forms

    def form_number(self, key: str, number: str) -> int | None:
        """Return the number of a sent form as an integer, or None if no page of this session contains this form."""
        is_own = _is_same(key, self.form_key) and _is_number(number) and 0 < int(number) <= self._forms
        return int(number) if is_own else None


class Links:
    """Stores all links and sessions of one console."""

    def __init__(self, roles: Sequence[frozenset[Role]], now_seconds: float, idle_seconds: float) -> None:
        """Create a one-time link per set of roles. A session ends `idle_seconds` (monotonic) after its last use."""
        self._ends_seconds, self._idle_seconds = now_seconds + LINK_SECONDS, idle_seconds
        self._unused = {_secret(): each for each in roles}
        self._sessions: list[Session] = []

    def unused(self) -> list[tuple[str, frozenset[Role]]]:
        """Return the secret and the roles of each link that nobody has used yet."""
        return list(self._unused.items())

    def open(self, given: str, now_seconds: float) -> Session | None:
        """Open a new session with a link and return it. Return None if the link is used, expired or unknown."""
        known = next((link for link in self._unused if _is_same(given, link)), None)
        if known is None or now_seconds >= self._ends_seconds:
            return None
        session = Session(roles=self._unused.pop(known), last_seconds=now_seconds)
        self._sessions.append(session)
        return session

    def session(self, path: str, cookies: Iterable[str], now_seconds: float) -> Session | None:
        """Return the active session to which the path and the cookies of a request belong, or None."""
        folder = path.split("/")[1]
        for session in self._sessions:
            if _is_same(folder, session.folder) and any(_is_same(cookie, session.cookie) for cookie in cookies):
                return None if self._is_idle(session, now_seconds) else session
        return None

    def has(self, session: Session) -> bool:
        """Return whether this session of the console is still active."""
        return any(one is session for one in self._sessions)

    def end(self, session: Session) -> None:
        """End the session of a person in the console."""
        self._sessions.remove(session)

    def end_idle(self, now_seconds: float) -> list[Session]:
        """End all sessions of the console that nobody has used for too long, and return these sessions."""
        idle = [session for session in self._sessions if self._is_idle(session, now_seconds)]
        for session in idle:
            self.end(session)
        return idle

    def is_over(self, now_seconds: float) -> bool:
        """Return whether the console can end, because all sessions have ended and no link is valid."""
        return not self._sessions and (not self._unused or now_seconds >= self._ends_seconds)

    def _is_idle(self, session: Session, now_seconds: float) -> bool:
        return not session.is_waiting and now_seconds - session.last_seconds >= self._idle_seconds


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())
