"""Every page on a phone and on a desk, by day and by night, in a real browser, and for a screen reader.

`PICTURES=folder python -m pytest tests/pages` also writes a picture of each page for people to look at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser import Browser, Page, started_browser
from tests.pages.every_page import every_page

pytestmark = pytest.mark.slow

WIDTHS: Final = (390, 1280)
PAGES: Final = (
    "report", "report-of-classes", "report-of-a-number", "examination", "review", "fingerprints", "audit",
)  # fmt: skip
LOOKED_AT: Final = (Path(__file__).parent / "looked_at.js").read_text()
# The elements that a screen reader announces by their name.
NAMED: Final = frozenset(
    {"image", "img", "graphics-document", "group", "region", "progressbar", "textbox", "button", "link"}
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all pages."""
    with started_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def files(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every page in a file."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, text in every_page(tmp_path_factory.mktemp("sites")):
        found[name] = folder / f"{name}.html"
        found[name].write_text(text)
    return found


def shown(browser: Browser, file: Path, width: int, *, is_dark: bool) -> Page:
    """The page in a tab of its own."""
    page = browser.page()
    page.show(width, is_dark=is_dark)
    page.go(file.as_uri())
    return page


def faults_of(page: Page, width: int) -> list[str]:
    """Return the faults of the page."""
    found: dict[str, list[str]] = page.evaluate(LOOKED_AT.replace("WIDTH", str(width)))
    assert found["pairs"]
    return found["faults"]


def test_all_pages_are_looked_at(files: dict[str, Path]) -> None:
    """A page that is added is tested below too."""
    assert sorted(files) == sorted(PAGES)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_usable(browser: Browser, files: dict[str, Path], name: str, width: int, scheme: str) -> None:
    """It fits its screen, its tables and pictures have words, its headings are in order, its colours are clear."""
    page = shown(browser, files[name], width, is_dark=scheme == "dark")

    faults = faults_of(page, width)

    if pictures := os.environ.get("PICTURES"):
        page.screenshot(Path(pictures) / f"{name}-{width}-{scheme}.png")
    assert faults == []


@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_finds_names(browser: Browser, files: dict[str, Path], name: str) -> None:
    """In the tree for a screen reader, pictures, boxes and fields have names, and tables have heads."""
    page = shown(browser, files[name], 1280, is_dark=False)

    tree: list[dict[str, Any]] = page.call("Accessibility.getFullAXTree")["nodes"]

    roles = [node["role"]["value"] for node in tree if not node["ignored"]]
    nameless = [
        node["role"]["value"]
        for node in tree
        if not node["ignored"] and node["role"]["value"] in NAMED and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    assert "main" in roles
    assert roles.count("table") == 0 or "columnheader" in roles
    assert roles.count("LayoutTable") == 0


@pytest.mark.parametrize(
    ("markup", "words"),
    [
        ("<p style='width:900px'>wide</p>", "wide"),
        ("<p style='color:#999'>pale</p>", "contrast"),
        ("<table><tr><td>1</td></tr></table>", "no head cells"),
        ("<table><tr><th>1</th></tr></table>", "no direction"),
        ("<h4>deep</h4>", "leaves a level out"),
        ("<svg viewBox='0 0 9 9'></svg>", "no words"),
        ("<input>", "no label"),
        ("<div style='overflow-x:auto'>box</div>", "no keyboard"),
        ("<svg role='img' aria-label='a small text'><text style='font-size:5px' y='9'>a</text></svg>", "too small"),
    ],
)
def test_the_look_finds_faults(browser: Browser, tmp_path: Path, markup: str, words: str) -> None:
    """A page with one fault of each kind fails."""
    file = tmp_path / "page.html"
    file.write_text(
        "<!doctype html><html lang=en><meta name=viewport content='width=device-width'><title>a page</title>"
        f"<body style='color:#000;background:#fff'><main><h1>A page</h1><p>text</p>{markup}"
    )

    faults = faults_of(shown(browser, file, 390, is_dark=False), 390)

    assert any(words in fault for fault in faults)
