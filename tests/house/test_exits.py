"""The gate is the only exit: the tests check in the code where bytes of a contribution are made, read and sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from protos.wire.messages import SiteMessage
from tests.house.imports import modules, reachable

SITE = {name: path.read_text() for name, path in modules().items() if name.startswith("site_agent.")}
SERVICE = {name: text for name, text in SITE.items() if name.startswith("site_agent.service.")}
BOUNDARY = {
    name: text for name, text in SITE.items() if name.startswith(("site_agent.gate.", "site_agent.agent."))
} | SERVICE


def calls(text: str) -> Iterator[ast.Call]:
    """Every call in a text."""
    return (node for node in _nodes(text) if isinstance(node, ast.Call))


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text)))


def callers(name: str, texts: dict[str, str]) -> set[str]:
    """The modules that call a function or class by this name."""
    return {module for module, text in texts.items() if name in _called(text)}


@cache
def _called(text: str) -> frozenset[str]:
    return frozenset(_name(call.func) for call in calls(text))


def _name(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def readers(attribute: str, texts: dict[str, str]) -> set[str]:
    """The modules that read an attribute of this name."""
    return {
        module
        for module, text in texts.items()
        for node in _nodes(text)
        if isinstance(node, ast.Attribute) and node.attr == attribute
    }


def arguments(text: str, function: str) -> set[str]:
    """What is handed to calls of a name, as written."""
    return {ast.unparse(arg) for call in calls(text) if _name(call.func) == function for arg in call.args}


def test_only_the_gate_makes_a_chunk() -> None:
    """The one message that can hold numbers of a model is built in one file of the site."""
    assert callers("Chunk", SITE) == {"site_agent.gate.door"}


def test_only_the_gate_makes_a_contribution_and_reads_its_bytes() -> None:
    """Built vectors are opaque to the rest of the agent; site_rounds.py logs their length."""
    assert callers("Contribution", SITE) == {"site_agent.gate.door"}
    assert readers("buffer", BOUNDARY) <= {"site_agent.gate.door", "site_agent.gate.site_rounds"}
    text = BOUNDARY["site_agent.gate.site_rounds"]
    assert text.count(".buffer") == text.count(".buffer)")
    assert "len(contribution.buffer)" in text


def test_what_the_trainer_hands_out_goes_to_the_gate_and_nowhere_else() -> None:
    """Its payload is read where it is given to the gate, and where the gate reads which states there are on disk. The
    one other reader of a payload takes certificates and replies from the agent, before any run."""
    assert readers("payload", BOUNDARY) == {
        "site_agent.gate.site_rounds", "site_agent.gate.run_admission",
        "site_agent.gate.site_certificates", "site_agent.agent.kept_certificates", "site_agent.agent.relaying",
    }  # fmt: skip
    assert "memoryview(answer.payload)" in arguments(BOUNDARY["site_agent.gate.site_rounds"], "build")
    assert BOUNDARY["site_agent.gate.site_rounds"].count(".payload") == 1
    assert BOUNDARY["site_agent.gate.run_admission"].count(".payload") == 1


def test_only_chunks_from_the_gate_are_sent() -> None:
    """The loop over `release` is the one place that sends a chunk, and nothing else has a name that could be one."""
    rounds = ast.parse(BOUNDARY["site_agent.gate.site_rounds"])
    loops = [node for node in ast.walk(rounds) if isinstance(node, ast.For) and "chunk" in ast.unparse(node.target)]

    assert [ast.unparse(loop.iter) for loop in loops] == ["self._gate.release(contribution, bind, scales)"]
    sent = arguments(BOUNDARY["site_agent.gate.site_rounds"], "send")
    assert "chunk" in sent
    others = {text for text in sent if text != "chunk"}
    assert all(text.startswith(("Done(", "self._masked().")) for text in others), others


def test_only_the_connection_writes_to_the_stream() -> None:
    """Messages become bytes in one place of the gate, and the stream's own `write` is called in one of the agent."""
    assert callers("encode_site_message", SITE) == {"site_agent.gate.agent_link"}
    stream_writes = {
        module
        for module, text in BOUNDARY.items()
        for call in calls(text)
        if _name(call.func) == "write" and "_stream" in ast.unparse(call.func)
    }
    assert stream_writes == {"site_agent.agent.connection"}


def test_a_site_has_no_other_message_that_could_hold_numbers() -> None:
    """Of all messages of a site, only a chunk has a body. The list is closed."""
    kinds = {kind.__name__: set(kind.__dataclass_fields__) for kind in SiteMessage.__args__}  # type: ignore[attr-defined]

    assert [name for name, fields in kinds.items() if "body" in fields or "payload" in fields] == ["Chunk"]


OPENERS = {
    "open_connection", "open_unix_connection", "create_connection", "create_datagram_endpoint", "start_server",
    "start_unix_server", "create_server", "urlopen", "getaddrinfo", "secure_channel", "insecure_channel",
}  # fmt: skip


def test_nothing_near_the_patients_opens_a_connection() -> None:
    """Beside the trainer socket no module that a trainer reaches names a function that connects, of any library."""
    near = {
        name for entry in modules() if entry.startswith("site_agent.trainer") for name in reachable(entry, lazily=True)
    }
    texts = {name: modules()[name].read_text() for name in near}

    assert {name for opener in OPENERS for name in callers(opener, texts)} == set()
    sockets = {name for name, text in texts.items() if "import socket" in text}
    assert sockets == {"site_agent.framed_messages", "site_agent.trainer_socket", "site_agent.trainer_process"}
    # The operator's status socket is a file of this computer.
    assert {(opener, module) for opener in OPENERS for module in callers(opener, BOUNDARY)} == {
        ("secure_channel", "site_agent.agent.connection"),
        ("start_unix_server", "site_agent.service.status_socket"),
        ("open_unix_connection", "site_agent.service.status_socket"),
    }


def test_the_proof_would_see_another_exit() -> None:
    """A second maker of chunks, and a second reader of payloads, are found."""
    text = "def leak(answer, stream):\n    stream.send(Chunk(0, 0, 0, answer.payload))\n"

    assert callers("Chunk", {"x": text}) == {"x"}
    assert readers("payload", {"x": text}) == {"x"}
    assert arguments(text, "send") == {"Chunk(0, 0, 0, answer.payload)"}
