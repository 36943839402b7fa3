"""One-time links, roles and sessions of the console: who at the browser may ask for what.

The rules:

* a link opens one session of its roles, once, and only within LINK_SECONDS;
* a session needs two secrets: the folder of its addresses, and a cookie that the browser sends to this folder alone.
  Browsers send cookies of 127.0.0.1 to every port of it, so the page of another user of this computer would receive
  a cookie that has no secret folder;
* each form repeats a third secret. All are compared in constant time, and only a link is ever printed.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protos.plan.plan import Plan

COOKIE: Final = "console"
LINK_SECONDS: Final = 600.0
_SECRET_BYTES: Final = 32
_MOST_SHOWN: Final = 30


class Role(StrEnum):
    """What a person does at a hospital; a session may have several roles."""

    DATA_MANAGER = "data-manager"
    OFFICER = "officer"
    CLINICIAN = "clinician"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one act came to.

    Attributes:
        page: its own page; None if the document is all of it.
        document: the page that the command wrote, as it was written; None if there is none.
        plan: the plan that the document reviews.
    """

    page: str | None = None
    document: str | None = None
    plan: Plan | None = None


def _secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


@dataclass(kw_only=True, eq=False)
class Session:
    """One browser that opened a link.

    Attributes:
        roles: whose acts it may ask for.
        by: the name that was typed last.
        read: plan digest -> each plan whose review this session has opened.
    """

    roles: frozenset[Role]
    by: str = ""
    folder: str = field(default_factory=_secret, repr=False)
    cookie: str = field(default_factory=_secret, repr=False)
    form_key: str = field(default_factory=_secret, repr=False)
    read: dict[bytes, Plan] = field(default_factory=dict, repr=False)
    _shown: dict[int, Shown] = field(default_factory=dict, repr=False)
    _count: int = 0

    @property
    def address(self) -> str:
        """The path below which all of this session's pages are."""
        return f"/{self.folder}/"

    @property
    def next_number(self) -> int:
        """The number of the next result."""
        return self._count + 1

    def keep(self, shown: Shown) -> int:
        """Remember a result for this session's pages; its number. Only the latest ones are kept."""
        self._count += 1
        self._shown[self._count] = shown
        self._shown.pop(self._count - _MOST_SHOWN, None)
        return self._count

    def find(self, number: str) -> Shown | None:
        """A result by its number."""
        return self._shown.get(int(number)) if number.isdecimal() and len(number) < 10 else None

    def has_form_key(self, given: str) -> bool:
        """Whether a form came from a page of this session."""
        return _is_same(given, self.form_key)


class Links:
    """All links and sessions of one console."""

    def __init__(self, roles: Sequence[frozenset[Role]], now_seconds: float) -> None:
        """One link for each set of roles; the clock never jumps."""
        self._ends_seconds = now_seconds + LINK_SECONDS
        self._unused = {_secret(): each for each in roles}
        self._sessions: list[Session] = []

    def unused(self) -> list[tuple[str, frozenset[Role]]]:
        """Secret and roles of each link that nobody has opened."""
        return list(self._unused.items())

    def open(self, given: str, now_seconds: float) -> Session | None:
        """Use a link; None if it was used, has expired, or never was one."""
        known = next((link for link in self._unused if _is_same(given, link)), None)
        if known is None or now_seconds >= self._ends_seconds:
            return None
        session = Session(roles=self._unused.pop(known))
        self._sessions.append(session)
        return session

    def session(self, path: str, cookies: Iterable[str]) -> Session | None:
        """The session that a request belongs to by its path and its cookies, or None."""
        folder = path.split("/")[1]
        for session in self._sessions:
            if _is_same(folder, session.folder) and any(_is_same(cookie, session.cookie) for cookie in cookies):
                return session
        return None

    def has(self, session: Session) -> bool:
        """Whether nobody has left the session."""
        return any(one is session for one in self._sessions)

    def leave(self, session: Session) -> None:
        """End a session."""
        self._sessions.remove(session)

    def seconds_left(self, now_seconds: float) -> float:
        """How long anybody can still ask for something: without end while there is a session."""
        if self._sessions:
            return float("inf")
        return self._ends_seconds - now_seconds if self._unused else 0.0


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())
