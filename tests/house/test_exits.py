"""The gate is the only exit: the tests check in the code where bytes of a contribution are made, read and sent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

from protos.wire.log_checkpoints import MOST_LEAVES, Cosignature, LogCheckpoint
from protos.wire.messages import (
    Chunk,
    Done,
    Hello,
    Join,
    KeyAdvert,
    KeySessionAcknowledgement,
    MalformedMessage,
    Ready,
    Refusal,
    Saved,
    SiteMessage,
    SiteReason,
)
from protos.wire.upkeep_messages import (
    EnrolmentRequest,
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)
from tests.house.imports import HOUSE, modules, reachable
from tests.house.sizes import AUDIT_ORDER, AUDITED, SKIPPED, counted, inside, is_in

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


def test_no_name_of_the_boundary_hides_behind_another() -> None:
    """The tests of this file search for names, so no file of the boundary gives a class or function a second name."""
    again = {
        (module, alias.name)
        for module, text in BOUNDARY.items()
        for node in _nodes(text)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("site_agent", "protos", "audit"))
        for alias in node.names
        if alias.asname
    }
    watched = {"Chunk", "Contribution", "Refusal", "Gate", "encode_site_message", *OPENERS}
    handed_on = {
        (module, _name(part))
        for module, text in BOUNDARY.items()
        for node in _nodes(text)
        for part in _values(node)
        if isinstance(part, ast.Name | ast.Attribute) and _name(part) in watched
    }

    of_trainer = {"site_agent.gate.loop", "site_agent.gate.site_rounds"}  # two messages have the name Message
    assert again == {(module, "Message") for module in of_trainer}
    # The gate gets its arguments before it is made. `Callable[[Refusal], ...]` is a type.
    assert handed_on == {("site_agent.gate.site_rounds", "Gate"), ("site_agent.gate.run_admission", "Refusal")}
    by_text = {"site_agent.agent.agent_doctor", "site_agent.service.joining"}  # of an error, and of a configuration
    assert callers("getattr", BOUNDARY) == by_text


def _values(node: ast.AST) -> list[ast.expr]:
    """What a node stores under a name, puts into a list or hands to a call."""
    match node:
        case ast.Assign(value=value) | ast.NamedExpr(value=value) | ast.keyword(value=value):
            return [value]
        case ast.AnnAssign(value=ast.expr() as value) | ast.Return(value=ast.expr() as value):
            return [value]
        case ast.Call(args=args):
            return [] if _name(node.func) == "isinstance" else args
        case ast.List(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()):
            return elements
        case ast.Dict(values=values):
            return values
        case _:
            return []


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
        "site_agent.gate.site_rounds", "site_agent.gate.dry_run", "site_agent.gate.run_admission",
        "site_agent.gate.site_certificates", "site_agent.agent.kept_certificates", "site_agent.agent.relaying",
    }  # fmt: skip
    assert "memoryview(answer.payload)" in arguments(BOUNDARY["site_agent.gate.site_rounds"], "build")
    assert BOUNDARY["site_agent.gate.site_rounds"].count(".payload") == 1
    assert "memoryview(answer.payload)" in arguments(BOUNDARY["site_agent.gate.dry_run"], "build")
    assert BOUNDARY["site_agent.gate.dry_run"].count(".payload") == 1
    assert BOUNDARY["site_agent.gate.run_admission"].count(".payload") == 1


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


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading of a page, without its first two lines."""
    section = (HOUSE / "docs" / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# Files that know nothing of a model or of a decision: configuration, folders, and the two sockets within a site.
TOOLS = {
    "site_agent.hospital", "site_agent.state_folders", "site_agent.trainer_socket", "site_agent.framed_messages",
    "site_agent.gate_socket",
}  # fmt: skip
# Files of the list that join the others: the loop and the start. They use files outside the list.
JOINING = {
    "site_agent.gate.loop", "site_agent.service.joining", "site_agent.service.enrolling",
    "site_agent.service.state_moves",
}  # fmt: skip
# The files that see a vector of a model or the masks.
OF_NUMBERS = {
    "site_agent.gate.door", "site_agent.gate.site_rounds", "site_agent.gate.loop", "site_agent.gate.site_masking",
    "protos.masking.mask_stream", "protos.masking.key_session",
}  # fmt: skip


def test_what_an_auditor_reads_stands_alone() -> None:
    """Except the loop and the start, a file of the list uses no code of the site outside of the list.

    run_admission.py uses one file more, with the remedies of its errors.
    """
    read = set(inside(AUDITED))

    def outside(name: str) -> set[str]:
        found = {each for each in reachable(name, lazily=True) if each.startswith(("site_agent.", "audit.", "pki."))}
        return found - read - TOOLS - {"site_agent.gate"}

    found = {name: outside(name) for name in read - JOINING}

    assert found.pop("site_agent.gate.run_admission") == {"site_agent.gate.remedies"}
    assert "site_agent.gate.waiting" in outside("site_agent.gate.loop")  # so the search is able to find one
    assert {name: names for name, names in found.items() if names} == {}


def test_what_an_auditor_skips_has_no_number_of_a_model() -> None:
    """A file that is skipped imports no file that sees a vector, and takes no answer of a round from the trainer.

    dry_run.py makes a round that is not sent. Another test is about it.
    """
    skipped = {name for names in SKIPPED.values() for name in inside(names)}

    found = {name: reachable(name, lazily=True) & OF_NUMBERS for name in skipped}
    assert found.pop("site_agent.gate.dry_run") == {"site_agent.gate.door", "site_agent.gate.site_masking"} | {
        name for name in OF_NUMBERS if name.startswith("protos.")
    }
    assert {name: names for name, names in found.items() if names} == {}
    asked = {name: imported(SITE[name], "site_agent.trainer_socket") for name in skipped & SITE.keys()}
    assert asked.pop("site_agent.gate.dry_run") >= {"Train", "Trained"}
    assert set().union(*asked.values()) <= {"Check", "Failed", "GateEnd", "TrainerGone"}


def imported(text: str, module: str) -> set[str]:
    """The names that a text imports from a module."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module == module)
    return {alias.name for node in nodes for alias in node.names}


def test_the_loop_opens_nothing_that_it_passes_on() -> None:
    """It reads no payload, vector or tensor's name, makes no refusal, and builds, masks and releases nothing."""
    loop = SITE["site_agent.gate.loop"]

    for attribute in ("payload", "buffer", "body", "tensor", "rows"):
        assert readers(attribute, {"loop": loop}) == set(), attribute
    decisions = {"Chunk", "Refusal", "Gate", "Permission", "Allowance", "Consent", "SiteMasking", "Rounds", "Admission"}
    assert _called(loop) & {"build", "release", "freeze", "masked", *decisions} == {"Admission"}
    assert callers("Refusal", SITE) == {"site_agent.gate.run_admission", "site_agent.approving"}
    for kind in ("Rounds", "SiteMasking", "Consent"):
        assert callers(kind, SITE) == {"site_agent.gate.run_admission"}
    assert "numpy" not in loop


def test_a_dry_run_can_send_nothing() -> None:
    """It builds a contribution, and reaches neither the agent nor the code that releases."""
    reached = reachable("site_agent.gate.dry_run", lazily=True)

    assert reached & {"site_agent.gate.agent_link", "site_agent.gate.site_rounds", "site_agent.gate.loop"} == set()
    assert imported(SITE["site_agent.gate.dry_run"], "site_agent.gate.door") == {
        "Builder", "payload_bytes", "unexpected_answer",
    }  # fmt: skip
    assert {
        name for name in ("send", "post", "release") if callers(name, {"dry_run": SITE["site_agent.gate.dry_run"]})
    } == set()


def test_the_start_keeps_its_checks() -> None:
    """Before the gate's loop there are: the lock, the owners of approvals, the table, and the privacy ledger's mark."""
    joining, enrolling = SERVICE["site_agent.service.joining"], SERVICE["site_agent.service.enrolling"]

    assert in_order(joining, "join", "hold_state", "AuditLog", "tell_guard", "_take_part")
    assert in_order(joining, "_take_part", "check_table", "enrol_where_needed", "sign_with", "SiteGate", "run")
    assert in_order(joining, "hold_state", "refuse_unfinished", "hold_directory", "settle_format")
    assert in_order(enrolling, "enrol_where_needed", "look", "settle_ledger", "_enrol")
    assert in_order(enrolling, "_enrol", "check", "settle_ledger", "install")
    assert not in_order(enrolling, "_enrol", "install", "settle_ledger")


def in_order(text: str, function: str, *names: str) -> bool:
    """Whether a function calls these names in this order, each once."""
    (body,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    found = sorted((call.lineno, call.col_offset, _name(call.func)) for call in calls(ast.unparse(body)))
    return [name for _, _, name in found if name in names] == list(names)


_CHECKPOINT = LogCheckpoint("site/a", 1, 1, "0" * 64, "2026-01-01T00:00:00+00:00", bytes(32), bytes(64))
_COSIGNATURE = Cosignature("site/a", "2026-01-01T00:00:00+00:00", bytes(32), bytes(64))
# Those with a list.
LISTS = (
    Join("heart-1", bytes(32), bytes(32), 1, saved=(Saved(0),)),
    LogGrowth(_CHECKPOINT, 0, (bytes(32),)),
)
# One of each kind that a site sends besides chunks.
PLAIN = (
    Hello(4, "1.0"),
    Join("heart-1", bytes(32), bytes(32), 1),
    Ready(0, 0),
    Done("heart-1"),
    Refusal("heart-1", SiteReason.POLICY_FORBIDS, "body.weight"),
    KeyAdvert("a", 1, bytes(32), bytes(32), bytes(32), bytes(64)),
    KeySessionAcknowledgement("a", 1, bytes(32), bytes(64)),
    LogStanding(bytes(32), _CHECKPOINT),
    LogGrowth(_CHECKPOINT, 0, (bytes(32),)),
    LogCosignature(1, _COSIGNATURE),
    RenewalAsked("a", b"-", bytes(64)),
    EnrolmentRequest(bytes(24), b"-", bytes(32), bytes(64)),
)


def test_the_messages_without_numbers_are_those_on_the_page() -> None:
    """docs/design/boundary.md lists every kind with its fields, and no other kind exists."""
    kinds = {*get_args(SiteMessage), *get_args(Upkeep), EnrolmentRequest} - {Chunk, RenewalAnswered}

    listed = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows(*MESSAGES)}

    assert {type(message) for message in PLAIN} == kinds
    assert listed == {kind.__name__: {field.name for field in fields(kind)} for kind in kinds}


MESSAGES = ("design/boundary.md", "Messages without numbers")
ROOM = 1 << 17  # bytes; the largest field is a chain of certificates of 64 KiB


def test_no_message_without_numbers_has_room_for_a_model() -> None:
    """Each field is limited when the message is made: to less than 128 KiB of text or bytes, and a list to 16,384."""
    too_long = [
        (message, field.name, type(value)(b"x" * ROOM) if isinstance(value, bytes) else "x" * ROOM)
        for message in (*PLAIN, _CHECKPOINT, _COSIGNATURE)
        for field in fields(message)
        if isinstance(value := getattr(message, field.name), bytes | str)
    ]
    too_many = [
        (message, field.name, value * (MOST_LEAVES + 1)) for message in LISTS for field in fields(message)
        if isinstance(value := getattr(message, field.name), tuple)
    ]  # fmt: skip

    tried = too_long + too_many
    taken = [f"{type(message).__name__}.{name}" for message, name, value in tried if _takes(message, name, value)]

    assert len(too_long) > 25
    assert len(too_many) == len(LISTS) == 2
    assert taken == []
    assert _takes(PLAIN[0], "software", "1.1")


def _takes(message: Any, name: str, value: object) -> bool:  # Any: each kind of message
    try:
        replace(message, **{name: value})
    except (MalformedMessage, ValueError):
        return False
    return True


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
    """Every file of gate, approvals, masks, noise and written log is read or skipped for a reason, none is both.

    Of the plan, these are the files whose keys decide how much noise is drawn.
    """
    packages = ("site_agent.gate.", "site_agent.approvals", "protos.masking.", "protos.privacy.", "audit.")
    packages += ("protos.plan.patient_privacy", "protos.plan.private_")
    wanted = {name for name in counted() if name.startswith(packages) and not name.startswith("audit.reading")}
    prefixes = [*AUDITED, *(prefix for names in SKIPPED.values() for prefix in names)]
    listed = [name for name in counted() for prefix in prefixes if is_in(name, prefix)]

    assert sorted(listed) == sorted({*listed})
    assert wanted - {*listed, "site_agent.gate"} == set()
    log = {found for name in wanted for found in reachable(name, lazily=True) if found.startswith("audit.reading")}
    assert log == set()


def test_the_security_officer_reads_the_same_list() -> None:
    """docs/security-officer.md describes each part of the list in its order, and boundary.md what is skipped."""
    assert [row[0] for row in rows("security-officer.md", "What an auditor reads")] == list(AUDIT_ORDER)
    assert [row[0] for row in rows("design/boundary.md", "What an auditor may skip")] == list(SKIPPED)


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
    assert sockets == {"site_agent.framed_messages", "site_agent.trainer_socket", "site_agent.trainer.__main__"}
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
