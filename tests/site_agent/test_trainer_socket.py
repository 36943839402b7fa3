"""The trainer socket between a site's two processes: the messages that pass, and those that never do."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest

from protos.plan.plan import LARGEST_PLAN_BYTES
from protos.wire.messages import MalformedMessage
from site_agent.trainer_socket import (
    Agreed,
    Check,
    Failed,
    GateEnd,
    Message,
    Prepared,
    Train,
    Trained,
    TrainerEnd,
    TrainerGone,
)
from tests.for_each import for_each
from tests.fuzz.frames import TRAINER_MESSAGES

HEADER = struct.Struct("<4sBIQ")
MAGIC = b"GLH1"
KIND = {type(message): number for number, message in enumerate(TRAINER_MESSAGES)}


@contextmanager
def ends() -> Iterator[tuple[socket.socket, TrainerEnd]]:
    """A raw socket and the trainer's end behind it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, TrainerEnd(theirs)


def frame(kind: int, facts: object, payload: bytes = b"", *, magic: bytes = MAGIC) -> bytes:
    """A frame as it lies on the wire."""
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    return HEADER.pack(magic, kind, len(text), len(payload)) + text + payload


def received(raw: bytes, largest_payload: int = LARGEST_PLAN_BYTES) -> Message | None:
    """What the trainer's end makes of these bytes, after which the other side has gone."""
    with ends() as (ours, trainer_socket):
        trainer_socket.largest_payload = largest_payload
        writing = threading.Thread(target=lambda: (ours.sendall(raw), ours.shutdown(socket.SHUT_WR)))
        writing.start()
        try:
            return trainer_socket.receive()
        finally:
            writing.join()


def asked(answer: bytes, largest_payload: int = 0) -> Message:
    """What the agent's end makes of an answer in these bytes."""
    ours, theirs = socket.socketpair()

    def reply() -> None:
        theirs.recv(1 << 16)
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)

    async def scene() -> Message:
        return await GateEnd(ours).ask(Check(), largest_payload)

    with ours, theirs:
        thread = threading.Thread(target=reply)
        thread.start()
        try:
            return asyncio.run(scene())
        finally:
            thread.join()


@pytest.mark.parametrize("message", TRAINER_MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    """Every message passes the trainer socket in both directions unchanged."""
    with ends() as (ours, trainer_socket):
        TrainerEnd(ours).send(message)

        arrived = trainer_socket.receive()

    assert type(arrived) is type(message)
    for item in fields(message):
        got = getattr(arrived, item.name)
        assert (bytes(got) if item.name == "payload" else got) == getattr(message, item.name)


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, 5_000_001])
def test_large_payloads_arrive_whole(size: int) -> None:
    """A vector of any allowed size passes from process to process byte for byte."""
    payload = random.Random(size).randbytes(size)
    ours, theirs = socket.socketpair()
    trainer = TrainerEnd(theirs)
    trainer.largest_payload = size

    def answer() -> None:
        question = trainer.receive()
        assert isinstance(question, Train)
        trainer.send(Trained(round=1, rows=0, payload=bytes(question.payload)[::-1]))

    async def scene() -> Message:
        question = Train(round=1, stage=0, layers="", best_round=-1, payload=payload)
        return await GateEnd(ours).ask(question, size)

    with ours, theirs:
        thread = threading.Thread(target=answer)
        thread.start()
        got = asyncio.run(scene())
        thread.join()

    assert isinstance(got, Trained)
    assert bytes(got.payload) == payload[::-1]


AGREED = KIND[Agreed]
WRONG_FRAMES = {
    "another magic": frame(AGREED, {}, magic=b"GLH2"),
    "an unknown kind": frame(8, {}),
    "the last kind": frame(255, {}),
    "too many facts": HEADER.pack(MAGIC, AGREED, (1 << 15) + 1, 0),
    "facts of four gigabytes": HEADER.pack(MAGIC, AGREED, (1 << 32) - 1, 0),
    "a payload one byte too large": HEADER.pack(MAGIC, AGREED, 2, LARGEST_PLAN_BYTES + 1),
    "a payload of all memory": HEADER.pack(MAGIC, AGREED, 2, (1 << 64) - 1),
    "facts that are no JSON": frame(AGREED, b"{"),
    "facts that are no UTF-8": frame(AGREED, b"\xff\xff"),
    "facts that are a list": frame(AGREED, []),
    "facts that are null": frame(AGREED, None),
    "a fact that nobody knows": frame(AGREED, {"note": "free text"}),
    "the payload as a fact": frame(AGREED, {"payload": "x"}),
    "a missing fact": frame(KIND[Prepared], {}),
    "a text for a number": frame(KIND[Trained], {"round": "3", "rows": 0}),
    "a truth for a number": frame(KIND[Trained], {"round": True, "rows": 0}),
    "a fraction for a number": frame(KIND[Trained], {"round": 3.0, "rows": 0}),
    "a number for a text": frame(KIND[Prepared], {"manifest_digest": 3}),
    "nested facts": frame(KIND[Prepared], {"manifest_digest": {"a": 1}}),
    "a reason of nobody's list": frame(KIND[Failed], {"reason": 99, "exit_status": 1, "tensor": ""}),
    "deeply nested facts": frame(AGREED, b"[" * 4000),
}


@pytest.mark.parametrize("name", WRONG_FRAMES)
def test_a_wrong_frame_is_refused_at_both_ends(name: str) -> None:
    """Bytes that are not exactly a message of this trainer socket raise MalformedMessage and no other error."""
    with pytest.raises(MalformedMessage):
        received(WRONG_FRAMES[name])
    with pytest.raises(MalformedMessage):
        asked(WRONG_FRAMES[name], largest_payload=LARGEST_PLAN_BYTES)


def test_sizes_are_refused_before_memory_is_reserved() -> None:
    """A header that announces eight gigabytes costs no memory: less than a hundred kilobytes are reserved."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            received(HEADER.pack(MAGIC, AGREED, 2, 8 << 30))
        with pytest.raises(MalformedMessage):
            asked(HEADER.pack(MAGIC, AGREED, 2, 8 << 30))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


@for_each("cut", range(1, HEADER.size + 2))
def test_an_end_in_the_middle_of_a_frame_is_an_end(cut: int) -> None:
    """A process that ends while it writes is gone, and half a message is never accepted."""
    whole = frame(AGREED, {})

    assert received(whole[:-cut]) is None
    with pytest.raises(TrainerGone):
        asked(whole[:-cut])
