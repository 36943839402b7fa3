"""The two sockets of a site: how each side reads bytes that the other side has written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from protos.wire.messages import MalformedMessage
from site_agent import gate_socket, trainer_socket
from site_agent.framed_messages import HEADER, Framing, packed, unpacked
from site_agent.gate_socket import FRAMING as OF_GATE
from site_agent.trainer_socket import FRAMING as OF_TRAINER

LARGEST_OF_TRAINER: Final = 1 << 16
PARTS: Final = packed((b"chain", b"root"))
GATE_MESSAGES: Final[tuple[gate_socket.Message, ...]] = (
    gate_socket.Look(),
    gate_socket.Make("next"),
    gate_socket.Call("enrol", "localhost:1", packed((b"root", b"request"))),
    gate_socket.Install("first", "a", "heart", "localhost:1", "localhost:2", packed((b"chain", b"root"))),
    gate_socket.Through("localhost:2"),
    gate_socket.Open(1, "localhost:1"),
    gate_socket.Up(1, b"message"),
    gate_socket.Taken(1, 4),
    gate_socket.Part(1),
    gate_socket.Shut(1),
    gate_socket.Shown("localhost:1", "localhost:2", PARTS),
    gate_socket.Requested(b"request"),
    gate_socket.Called(b"reply"),
    gate_socket.Unable(1, "unavailable"),
    gate_socket.Down(1, b"message"),
    gate_socket.Sent(1, 4),
    gate_socket.Ended(1, "ended"),
)
TRAINER_MESSAGES: Final[tuple[trainer_socket.Message, ...]] = (
    trainer_socket.Check(),
    trainer_socket.Prepare("run", b"plan"),
    trainer_socket.Train(3, 0, "05", -1, b"\x00\x00\x80\x3f"),
    trainer_socket.Conclude(4, "", 2, b"\x00\x00\x80\x3f"),
    trainer_socket.Agreed(),
    trainer_socket.Prepared("ab" * 32),
    trainer_socket.Trained(3, 12, b"\x00\x00\x80\x3f"),
    trainer_socket.Failed(4, 78, "first"),
)


def gate_frame(raw: bytes) -> str:
    """A frame of the gate socket, and the certificates in one that shows them."""
    message = _framed(OF_GATE, gate_socket.largest_payload, raw)
    if isinstance(message, gate_socket.Shown):
        assert packed(message.parts) == bytes(message.payload)
    if isinstance(message, gate_socket.Call | gate_socket.Install):
        unpacked(message.payload, 2)
    return type(message).__name__


def trainer_frame(raw: bytes) -> str:
    """A frame of the trainer socket."""
    return type(_framed(OF_TRAINER, lambda _: LARGEST_OF_TRAINER, raw)).__name__


def _framed(framing: Framing[Any], largest: Callable[[type[Any]], int], raw: bytes) -> Any:
    """What a reader takes from a stream that ends with these bytes; what it accepts is written as the same record."""
    if len(raw) < HEADER.size:
        raise MalformedMessage("a stream that has ended")
    kind, facts, payload = framing.sizes(raw[: HEADER.size], largest)
    rest = raw[HEADER.size :]
    if len(rest) < facts + payload:
        raise MalformedMessage("a stream that has ended")
    message = framing.build(kind, rest[:facts], rest[facts : facts + payload])
    again = framing.frame(message) + bytes(message.payload)
    assert framing.sizes(again[: HEADER.size], largest)[0] is kind
    assert framing.build(kind, again[HEADER.size : len(again) - payload], message.payload) == message
    return message
