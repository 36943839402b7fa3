"""The browser that the tests of pages use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import BrowserError, started_browser

_PAGE = (
    "data:text/html,<!doctype html><meta name=viewport content=width=device-width>"
    "<button onclick='document.title=\"pressed\"'>Press</button><input>"
)


def test_it_shows_presses_and_types(tmp_path: Path) -> None:
    """A phone's width and a dark scheme reach the page, and so do a click and a word."""
    with started_browser(tmp_path) as browser:
        page = browser.page()
        page.show(390, is_dark=True)
        page.go(_PAGE)
        page.click("button")
        page.type("input", "a word")

        assert page.evaluate("[innerWidth, matchMedia('(prefers-color-scheme:dark)').matches]") == [390, True]
        assert page.wait_for("document.title") == "pressed"
        assert page.evaluate("document.querySelector('input').value") == "a word"


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    """An address without a server, an expression that fails, and an element that is not there."""
    with started_browser(tmp_path) as browser:
        page = browser.page()

        with pytest.raises(BrowserError, match="ERR_"):
            page.go("http://127.0.0.1:1/")
        with pytest.raises(BrowserError, match="no such thing"):
            page.evaluate("(() => {throw new Error('no such thing')})()")
        with pytest.raises(BrowserError, match="0 elements"):
            page.click("button")
