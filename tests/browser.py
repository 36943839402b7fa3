"""A headless Chromium for tests, driven by the DevTools protocol over a pair of pipes.

No port is opened, and no further package is needed: the protocol is JSON, each message ended by a zero byte. A test
that needs a browser uses `with started_browser(tmp_path) as browser`, which skips the test if there is none.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

SECONDS: Final = 60.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # root has none, and every page here is the project's own
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PIECE: Final = 1 << 16


class BrowserError(Exception):
    """The browser refused a command, or did not answer in time."""


class Browser:
    """One Chromium process. `page` opens a tab with cookies of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        """`folder` is empty; the browser's profile is made in it."""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._received = 0, b""
        self._events: list[dict[str, Any]] = []

    def page(self) -> Page:
        """Open a tab that shares no cookie and no storage with another one."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Page.enable")
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result.

        Raises:
            BrowserError: the browser refused it, ended, or did not answer within SECONDS.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._next(until, method)
            if answer.get("id") != number:
                self._events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error'].get('message')}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for_event(self, method: str, session: str) -> dict[str, Any]:
        """Wait for an event of a page, or take it if it came since `forget_events`."""
        until = time.monotonic() + SECONDS
        while True:
            for event in self._events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self._events.remove(event)
                    found: dict[str, Any] = event["params"]
                    return found
            self._events.append(self._next(until, method))

    def forget_events(self, session: str) -> None:
        """Delete all earlier events of a page."""
        self._events = [event for event in self._events if event.get("sessionId") != session]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(SECONDS)
        os.close(self._write)
        os.close(self._read)

    def _next(self, until: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._read, _PIECE) if ready else b""
            if not piece:
                raise BrowserError(f"{awaited}: Chromium {'ended' if ready else f'did not answer in {SECONDS:g} s'}")
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@dataclass(frozen=True)
class Page:
    """One tab of a browser."""

    browser: Browser
    session: str

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command to this tab."""
        return self.browser.call(method, self.session, **parameters)

    def go(self, address: str) -> None:
        """Load an address and wait until it is loaded.

        Raises:
            BrowserError: no program answers there.
        """
        self.browser.forget_events(self.session)
        found = self.call("Page.navigate", url=address)
        if "errorText" in found:
            raise BrowserError(f"{address}: {found['errorText']}")
        self.browser.wait_for_event("Page.loadEventFired", self.session)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited.

        The page's own content policy does not apply to it.
        """
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"].get("exception", {}).get("description", found)))
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> Any:
        """Return the value of an expression as soon as it is truthy, also across a change of page.

        Raises:
            BrowserError: it was not within the time.
        """
        until, last = time.monotonic() + seconds, "nothing"
        while time.monotonic() < until:
            # The page itself waits a moment, so this test need not sleep.
            asked = f"new Promise(done => setTimeout(() => done({expression}), 50))"
            try:
                if value := self.evaluate(asked):
                    return value
            except BrowserError as error:  # the page is just being replaced
                last = str(error)
        raise BrowserError(f"{expression} was not true within {seconds:g} s; last error: {last}")

    def click(self, selector: str) -> None:
        """Click the one element that a selector finds, as a person does: it must be visible."""
        place = self.evaluate(
            f"(() => {{const found = document.querySelectorAll({json.dumps(selector)});"
            "if (found.length !== 1) throw new Error(`${found.length} elements`);"
            "found[0].scrollIntoView({block: 'center'}); const box = found[0].getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Type into the one field that a selector finds."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def show(self, width: int, *, is_dark: bool = False, height: int = 844) -> None:
        """Set the size of the screen in CSS pixels, and the colour scheme. Up to 600 pixels it is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width <= 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write the whole page, also what is below the screen, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def started_browser(folder: Path) -> Iterator[Browser]:
    """A browser for the time of a test; without Chromium the test is skipped, and the reason is reported."""
    program = next((place for name in _NAMES if (place := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed (Debian: apt-get install chromium)")
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()
