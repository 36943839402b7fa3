"""The catalogue explains everything that an operator may see: each event in the code, each kind of error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import pytest

import coordinator.coordinator_cli
import pki.pki_cli
import site_agent.service.joining
import site_agent.trainer.failures
from coordinator.operations.coordinator_events import EVENTS as COORDINATOR
from host.message_catalogue import ERRORS, Entry, explained, identify
from protos.errors import OperatorError, UsageError
from site_agent.site_events import EVENTS as SITE
from tests.house.imports import modules, nodes_of, tree_of

EVENTS: dict[str, Sequence[Entry]] = {"coordinator": COORDINATOR, "site_agent": SITE}
LEVELS = {"info": "I", "warning": "W", "error": "E"}
# The functions that yield the names, where an event's name is a variable.
NAMES_FROM = {"coordinator.rounds.performing": ("coordinator.rounds.course", "news")}


def logged(name: str) -> Iterator[tuple[str, str]]:
    """The level and name of every event that a module logs."""
    for node in nodes_of(modules()[name]):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=level), args=[first, *_]) if level in LEVELS and (
                re.search(r"\blog$|_log$|get_logger\(\)$", ast.unparse(owner))
            ):
                for event in events_of(first, name):
                    yield LEVELS[level], event
            case ast.Call(func=ast.Name(id="log"), args=[ast.Constant(value=str(event)), *_]):
                yield "I", event  # of a level that is chosen


def events_of(node: ast.expr, name: str) -> Iterator[str]:
    """The names that an expression may have."""
    match node:
        case ast.Constant(value=str(event)):
            yield event
        case ast.IfExp(body=one, orelse=other):
            yield from events_of(one, name)
            yield from events_of(other, name)
        case _:
            module, function = NAMES_FROM[name]
            tree = tree_of(modules()[module])
            (found,) = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == function]
            for part in ast.walk(found):
                if isinstance(part, ast.Yield) and isinstance(part.value, ast.Tuple):
                    yield from events_of(part.value.elts[0], name)


def error_kinds(kind: type[OperatorError]) -> Iterator[type[OperatorError]]:
    """A kind of error and all kinds made from it."""
    yield kind
    for inner in kind.__subclasses__():
        yield from error_kinds(inner)


@pytest.mark.parametrize("program", EVENTS)
def test_every_event_in_the_code_is_explained(program: str) -> None:
    """Each event that a module logs is in its program's catalogue, under the letter of its level."""
    found = {event for name in modules() if name.split(".")[0] == program for event in logged(name)}

    known = {(entry.identifier[0], entry.name) for entry in EVENTS[program]}
    assert len(found) > 15
    assert sorted(found - known) == []


@pytest.mark.parametrize("program", EVENTS)
def test_no_entry_explains_an_event_that_is_gone(program: str) -> None:
    """The catalogue has no event that is never logged."""
    found = {event for name in modules() if name.split(".")[0] == program for _, event in logged(name)}

    assert sorted({entry.name for entry in EVENTS[program]} - found) == []


def test_every_error_has_an_identifier() -> None:
    """Each kind of operator error, and each identifier written at a place where one is raised, is explained."""
    known = {entry.identifier for entry in ERRORS}
    loaded = (coordinator.coordinator_cli, pki.pki_cli, site_agent.service.joining, site_agent.trainer.failures)

    kinds = {kind.code for kind in error_kinds(OperatorError)}
    written = {
        code for path in modules().values() for code in re.findall(r"\bcode ?= ?\"([A-Z]\d+)\"", path.read_text())
    }

    assert loaded
    assert kinds | written <= known
    assert len(kinds) > 10
    assert known <= kinds | written


def test_an_identifier_has_one_meaning() -> None:
    """Identifiers are a letter and three digits, no two entries share one, and each has two sentences of help."""
    for program, events in EVENTS.items():
        entries = [*ERRORS, *events]
        identifiers = [entry.identifier for entry in entries]
        assert len(set(identifiers)) == len(identifiers), program
        for entry in entries:
            assert re.fullmatch(r"[EWI]\d{3}", entry.identifier)
            assert entry.meaning.endswith(".")
            assert entry.remedy


def test_a_log_line_carries_its_identifier() -> None:
    """An event of the catalogue is marked with its identifier. An event of another library is unchanged."""
    process = identify(SITE)

    assert process(None, "info", {"event": "enrolled"})["id"] == "I200"
    assert "id" not in process(None, "info", {"event": "something of a library"})


def test_explain_says_what_to_do() -> None:
    """An identifier, in any case, and an event's name lead to the same help; another word is wrong usage."""
    everything = (*ERRORS, *SITE)

    assert explained(everything, "w251") == explained(everything, "approval_awaited")
    assert "site-agent approve" in explained(everything, "W251")
    assert len(explained(everything, None).splitlines()) == len(everything)
    with pytest.raises(UsageError):
        explained(everything, "E999")
