"""The events in audit logs have plain descriptions, and are on the page of the officer who reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.log_files import CONTINUED, RESTARTED
from audit.own_log import COSIGNED, DELETED, IDENTITY_REPLACED, WITNESSED
from audit.reading.log_report import _WORDS as WORDS
from coordinator.operations.coordinator_log import _EVENTS as JOURNALLED
from tests.house.imports import nodes_of

ROOT = Path(__file__).parents[2]
# How the rooms call what writes a record; the coordinator's journal is echoed into its log under other names.
WRITERS = {
    "site_agent": {"write", "write_after"},
    "coordinator": {"write", "_record", "_note_once"},
    "protos": {"write"},
}
JOURNAL = {"note"}
PAGES = {"site_agent": "data-protection-officer.md", "coordinator": "security-officer.md"}
# Of both sides; where such words stand on one page, the other leads there.
BOTH = {COSIGNED, WITNESSED, CONTINUED, DELETED, "log_refused", IDENTITY_REPLACED, "state_restored", RESTARTED}


def first_words(room: str, names: set[str]) -> Iterator[str]:
    """The first argument of each call of such a method in a room, where it is a name in quotes."""
    for path in (ROOT / room).rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                match node.args:
                    case [ast.Constant(value=str(word)), *_] if word.isidentifier():
                        yield word


def events_of(room: str) -> set[str]:
    """Every event that a room writes."""
    found = set(first_words(room, WRITERS[room]))
    if room == "coordinator":
        kinds = {kind for kind in first_words(room, JOURNAL) if kind not in WORDS}
        found |= {JOURNALLED.get(kind, f"run_{kind}") for kind in kinds if kind != "renewal_refused"}
    return found


@pytest.mark.parametrize("room", ["site_agent", "coordinator"])
def test_every_event_has_plain_words_and_a_line_on_its_officers_page(room: str) -> None:
    """An officer who reads a log finds no name that the program and the pages do not explain."""
    events = events_of(room) | (set() if room == "site_agent" else BOTH)
    page = (ROOT / "docs" / PAGES[room]).read_text()

    assert len(events) > 20
    assert sorted(event for event in events if event not in WORDS) == []
    assert sorted(event for event in events if f"`{event}`" not in page) == []


def test_no_words_are_kept_for_an_event_that_nobody_writes() -> None:
    """Every explained event can happen. The words of removed events are removed too."""
    written = events_of("site_agent") | events_of("coordinator") | events_of("protos") | BOTH
    by_name = {"certificate_renewed", "renewal_refused"} | set(JOURNALLED.values())
    by_journal = {f"run_{kind}" for kind in first_words("coordinator", JOURNAL)} | {"run_restored", "run_ahead"}
    limited = set(first_words("coordinator", JOURNAL))  # refusals, which are counted

    assert sorted(WORDS.keys() - written - by_name - by_journal - limited) == []
