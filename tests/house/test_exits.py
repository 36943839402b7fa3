"""The gate is the only exit: the text of the code proves where bytes of a contribution are made, read and sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from protos.wire.messages import SiteMessage
from tests.house.imports import HOUSE, modules, reachable
from tests.house.sizes import AUDIT_ORDER, AUDITED, counted, is_in

SITE = {name: path.read_text() for name, path in modules().items() if name.startswith("site_agent.")}
SERVICE = {name: text for name, text in SITE.items() if name.startswith("site_agent.service.")}
BOUNDARY = {
    name: text for name, text in SITE.items() if name.startswith(("site_agent.gate.", "site_agent.agent."))
} | SERVICE


NOTHING = ("None", "AsyncIterator[None]")  # of a method, or of a block around other work


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
    assert readers("buffer", BOUNDARY) <= {
        "site_agent.gate.door", "site_agent.gate.site_rounds", "site_agent.gate.dry_run",
    }  # fmt: skip
    for module in ("site_agent.gate.site_rounds", "site_agent.gate.dry_run"):
        text = BOUNDARY[module]
        assert text.count(".buffer") == text.count(".buffer)")
        assert "len(contribution.buffer)" in text or "len(built.buffer)" in text


def test_what_the_trainer_hands_out_goes_to_the_gate_and_nowhere_else() -> None:
    """Its payload is read where it is given to the gate, and where the gate reads which states there are on disk.

    The one other reader of a payload takes certificates and replies from the agent, before any run.
    """
    assert readers("payload", BOUNDARY) == {
        "site_agent.gate.site_rounds", "site_agent.gate.dry_run", "site_agent.gate.loop",
        "site_agent.gate.site_certificates", "site_agent.agent.kept_certificates", "site_agent.agent.relaying",
    }  # fmt: skip
    assert "memoryview(answer.payload)" in arguments(BOUNDARY["site_agent.gate.site_rounds"], "build")
    assert BOUNDARY["site_agent.gate.site_rounds"].count(".payload") == 1
    assert "memoryview(answer.payload)" in arguments(BOUNDARY["site_agent.gate.dry_run"], "build")
    assert BOUNDARY["site_agent.gate.dry_run"].count(".payload") == 1
    assert BOUNDARY["site_agent.gate.loop"].count(".payload") == 1


def test_only_chunks_from_the_gate_are_sent() -> None:
    """The loop over `release` is the one place that sends a chunk, and nothing else has a name that could be one."""
    rounds = ast.parse(BOUNDARY["site_agent.gate.site_rounds"])
    loops = [node for node in ast.walk(rounds) if isinstance(node, ast.For) and "chunk" in ast.unparse(node.target)]

    assert [ast.unparse(loop.iter) for loop in loops] == ["self._gate.release(contribution, bind)"]
    sent = arguments(BOUNDARY["site_agent.gate.site_rounds"], "send")
    assert "chunk" in sent
    others = {text for text in sent if text != "chunk"}
    assert all(text.startswith(("Ready(", "Done(", "self._masked().")) for text in others), others


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


def test_what_an_auditor_skips_sends_nothing_of_a_run() -> None:
    """The service around the gate writes to no stream, and only the start of the gate asks the trainer."""
    assert {name: found for name, text in SERVICE.items() if (found := arguments(text, "send"))} == {}
    assert callers("post", SERVICE) | callers("stream", SERVICE) <= {"site_agent.service.joining"}
    assert arguments(SERVICE["site_agent.service.joining"], "stream") == {"greeting.address", "greeting.accepted"}
    assert {name: arguments(text, "ask") for name, text in SERVICE.items() if callers("ask", {name: text})} == {
        "site_agent.service.joining": {"Check()"}
    }


def test_no_decision_of_the_gate_reads_the_record_of_its_work() -> None:
    """The gate stores facts in site_standing.py, and the methods that it calls there return nothing."""
    (record,) = (
        node
        for node in ast.parse(SITE["site_agent.site_standing"]).body
        if isinstance(node, ast.ClassDef) and node.name == "Standing"
    )
    methods = (node for node in record.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    silent = {node.name for node in methods if node.returns and ast.unparse(node.returns) in NOTHING}
    gate = [name for name, text in BOUNDARY.items() if ".gate." in name and "site_agent.site_standing" in text]

    read = {
        node.attr
        for name in gate
        for node in ast.walk(ast.parse(SITE[name]))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if ast.unparse(node.value) in {"standing", "self._standing"}
    }

    assert gate == ["site_agent.gate.loop"]
    assert {"saw", "failed", "asking"} <= read <= silent


def test_the_list_for_an_auditor_is_complete() -> None:
    """Every file of gate, approvals, masks, noise and written log is in one part of the list, none in two.

    Of the plan, these are the files whose keys decide how much noise is drawn.
    """
    packages = ("site_agent.gate.", "site_agent.approvals", "protos.masking.", "protos.privacy.", "audit.")
    packages += ("protos.plan.patient_privacy", "protos.plan.private_")
    wanted = {name for name in counted() if name.startswith(packages) and not name.startswith("audit.reading")}
    listed = [name for name in counted() for prefix in AUDITED if is_in(name, prefix)]

    assert sorted(listed) == sorted({*listed})
    assert wanted - {*listed, "site_agent.gate"} == set()
    log = {found for name in wanted for found in reachable(name, lazily=True) if found.startswith("audit.reading")}
    assert log == set()


def test_the_security_officer_reads_the_same_list() -> None:
    """docs/security-officer.md describes each part of the list, in its order."""
    page = (HOUSE / "docs" / "security-officer.md").read_text()
    section = page.partition("## What an auditor reads")[2].partition("\n## ")[0]

    parts = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]

    assert parts == ["part", "---", *AUDIT_ORDER]


def test_the_gate_cannot_be_reached_from_where_the_patients_are() -> None:
    """No module of the trainer imports the boundary, lazily or not, so none can call the exit."""
    trainers = [name for name in modules() if name.startswith("site_agent.trainer")]
    assert trainers
    for name in trainers:
        assert not {found for found in reachable(name, lazily=True) if found.startswith("site_agent.gate")}


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
    of_trainer = {"site_agent.trainer.__main__", "site_agent.trainer.standby"}
    assert sockets == {"site_agent.framed_messages", "site_agent.trainer_socket", *of_trainer}
    assert callers("secure_channel", BOUNDARY) == {"site_agent.agent.connection"}  # the search is able to find one


def test_the_proof_would_see_another_exit() -> None:
    """A second maker of chunks, and a second reader of payloads, are found."""
    text = "def leak(answer, stream):\n    stream.send(Chunk(0, 0, 0, answer.payload))\n"

    assert callers("Chunk", {"x": text}) == {"x"}
    assert readers("payload", {"x": text}) == {"x"}
    assert arguments(text, "send") == {"Chunk(0, 0, 0, answer.payload)"}
