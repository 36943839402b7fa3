"""Decides whether a request belongs to the one session of a console, which starts with a link that works once.

The rules:

* the link opens the session once, and is valid for LINK_SECONDS;
* the session needs two secrets: the folder of its addresses, and a cookie that the browser sends only to this folder.
  Browsers send cookies of 127.0.0.1 to every port. So without a secret folder, the page of another user of this
  computer would receive the cookie;
* each form repeats a third secret. All are compared in constant time, and only the link is ever printed;
* an unused session ends by itself. Curves that a browser loads again count as no use.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protos.plan.plan import Plan

COOKIE: Final = "console"
LINK_SECONDS: Final = 600.0
IDLE_SECONDS: Final = 900.0


def _secret() -> str:
    return secrets.token_urlsafe(32)


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


@dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a finished command: exit status, output with errors, and the page that it wrote, or None."""

    status: int
    text: str
    document: str | None = None


@dataclass(kw_only=True, eq=False)
class Session:
    """The session of the browser that opened the console's link.

    Attributes:
        clock: seconds of a clock that never jumps, and that runs while the computer sleeps.
        by: the name that was typed last.
        reviewed: digest of a plan -> the plan and the result of its review.
        read: the digests of plans whose review was opened.
        done: the result of the last command.
        running: how many commands run now.
        reason: why the session ended.
    """

    clock: Callable[[], float]
    by: str = ""
    reviewed: dict[str, tuple[Plan, Done]] = field(default_factory=dict, repr=False)
    read: set[str] = field(default_factory=set, repr=False)
    done: Done | None = field(default=None, repr=False)
    running: int = 0
    reason: str = "Nobody opened its link in time."
    link: str = field(default_factory=_secret, repr=False)
    folder: str = field(default_factory=_secret, repr=False)
    cookie: str = field(default_factory=_secret, repr=False)
    form_key: str = field(default_factory=_secret, repr=False)
    _is_open: bool = False
    _is_over: bool = False
    _last_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._last_seconds = self.clock()

    @property
    def address(self) -> str:
        return f"/{self.folder}/"

    @property
    def is_over(self) -> bool:
        """Return whether nobody can use the session any more. End it if it was idle for too long."""
        limit = IDLE_SECONDS if self._is_open else LINK_SECONDS
        if not self._is_over and not self.running and self.clock() - self._last_seconds >= limit:
            words = f"Nobody used it for {IDLE_SECONDS / 60:g} minutes." if self._is_open else self.reason
            self.end(words)
        return self._is_over

    def end(self, reason: str) -> None:
        self._is_over, self.reason = True, reason

    def enter(self, link: str) -> bool:
        """Open the session with its link. Return whether that is allowed now."""
        if self._is_open or self.is_over or not _is_same(link, self.link):
            return False
        self._is_open = True
        self.use()
        return True

    def use(self) -> None:
        self._last_seconds = self.clock()

    def has(self, folder: str, cookies: Iterable[str]) -> bool:
        is_known = self._is_open and not self.is_over and _is_same(folder, self.folder)
        return is_known and any(_is_same(cookie, self.cookie) for cookie in cookies)

    def sent(self, form: Mapping[str, str]) -> bool:
        return _is_same(form.get("form_key", ""), self.form_key)
