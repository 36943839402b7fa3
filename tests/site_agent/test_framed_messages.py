"""Frames that arrive in any pieces: none is lost, cut off or mixed with the next one."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar

import numpy as np
import pytest

from protos.wire.messages import MalformedMessage
from site_agent.framed_messages import AHEAD_BYTES, HEADER, MOST_AT_ONCE, FramedSocket, memory_for
from site_agent.trainer_socket import FRAMING, Message, Prepare, TrainerEnd
from tests.for_each import for_each

LARGEST = 1 << 20
T = TypeVar("T")


def messages(generator: random.Random, count: int) -> list[Prepare]:
    """Messages with empty, small and large payloads, around the size that is read ahead."""
    sizes = (0, 1, 100, AHEAD_BYTES - 1, AHEAD_BYTES, AHEAD_BYTES + 1, 100_000)
    return [Prepare(f"run {number}", generator.randbytes(generator.choice(sizes))) for number in range(count)]


def joined(sent: list[Prepare]) -> bytes:
    """The bytes of these messages on the socket."""
    return b"".join(FRAMING.frame(message) + bytes(message.payload) for message in sent)


def _write_in_pieces(connection: socket.socket, raw: bytes, generator: random.Random) -> threading.Thread:
    def write() -> None:
        rest = memoryview(raw)
        while rest:
            size = generator.choice((1, HEADER.size, 3000, 40_000, len(rest)))
            connection.sendall(rest[:size])
            rest = rest[size:]

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def played(scene: Callable[[socket.socket, socket.socket], Coroutine[None, None, T]]) -> T:
    """The result of a scene between both ends of a socket pair."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return asyncio.run(scene(ours, theirs))


def facts(message: Message | None) -> tuple[str, bytes]:
    """What a message holds."""
    assert isinstance(message, Prepare)
    return message.run, bytes(message.payload)


@for_each("seed", range(20))
def test_messages_arrive_in_order_however_they_are_cut(seed: int) -> None:
    """Both ends read the same messages from any pieces of their bytes, also while a message is not there in full."""
    generator = random.Random(seed)
    sent = messages(generator, 12)
    wanted = [(message.run, bytes(message.payload)) for message in sent]

    async def received(ours: socket.socket) -> list[Message]:
        end = FramedSocket(ours, FRAMING)
        return [await end.receive(lambda _: LARGEST) for _ in sent]

    async def listened(ours: socket.socket) -> list[Message]:
        end, heard = FramedSocket(ours, FRAMING), asyncio.Queue[Message]()
        end.listen(lambda _: LARGEST, heard.put_nowait, pytest.fail)
        return [await heard.get() for _ in sent]

    for scene in (received, listened, None):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            thread = _write_in_pieces(theirs, joined(sent), generator)
            if scene is not None:
                assert [facts(message) for message in asyncio.run(scene(ours))] == wanted
            else:
                trainer = TrainerEnd(ours)
                trainer.largest_payload = LARGEST
                assert [facts(trainer.receive()) for _ in sent] == wanted
            thread.join()


def test_a_listener_gets_the_error_once_and_then_nothing() -> None:
    """After a frame of another socket, a refused message or the end, nothing more is read or passed on."""
    (message,) = messages(random.Random(0), 1)
    raw = joined([message])

    async def scene(ours: socket.socket, theirs: socket.socket, *, sent: bytes, refuses: bool) -> list[str]:
        end, told = FramedSocket(ours, FRAMING), list[str]()

        def take(_: Message) -> None:
            told.append("message")
            if refuses:
                raise MalformedMessage("not now")

        end.listen(lambda _: LARGEST, take, lambda error: told.append(type(error).__name__))
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.05)
        end.close()
        return told

    for sent, refuses, wanted in (
        (raw, False, ["message", "ConnectionResetError"]),
        (raw + raw, True, ["message", "MalformedMessage"]),
        (b"x" * len(raw), False, ["MalformedMessage"]),
        (raw + raw[:-1], False, ["message", "ConnectionResetError"]),
    ):
        assert played(partial(scene, sent=sent, refuses=refuses)) == wanted


def test_a_listener_that_gets_many_messages_lets_other_tasks_continue() -> None:
    """The other process can send as fast as this one reads. Between two turns of the event loop only a few are read."""
    sent = [Prepare(f"run {number}", b"") for number in range(20 * MOST_AT_ONCE)]

    async def scene(ours: socket.socket, theirs: socket.socket) -> tuple[list[str], list[int]]:
        end, heard, turns = FramedSocket(ours, FRAMING), list[str](), [0]
        end.listen(lambda _: LARGEST, lambda message: heard.append(facts(message)[0]), pytest.fail)
        theirs.sendall(joined(sent))
        for _ in range(1000):
            await asyncio.sleep(0)
            turns.append(len(heard))
            if len(heard) == len(sent):
                break
        end.close()
        return heard, turns

    heard, turns = played(scene)
    assert heard == [message.run for message in sent]
    # An event of the socket and the rest of an earlier one can come in the same turn.
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 2 * MOST_AT_ONCE


@pytest.mark.parametrize("ends", ["by a close", "by an error"])
def test_a_listener_with_more_messages_in_memory_ends_at_once(ends: str) -> None:
    """After a close or an error between two turns of the event loop, the messages in memory are not passed on."""
    raw = joined([Prepare("run", b"")] * (2 * MOST_AT_ONCE))

    async def scene(ours: socket.socket, theirs: socket.socket) -> tuple[int, list[str]]:
        end, told, heard = FramedSocket(ours, FRAMING), list[str](), 0

        def take(_: Message) -> None:
            nonlocal heard
            heard += 1
            if heard == MOST_AT_ONCE:
                if ends == "by an error":
                    raise MalformedMessage("not now")
                asyncio.get_running_loop().call_soon(end.close)

        end.listen(lambda _: LARGEST, take, lambda error: told.append(type(error).__name__))
        theirs.sendall(raw)
        await asyncio.sleep(0.05)
        end.close()
        return heard, told

    heard, told = played(scene)
    assert heard == MOST_AT_ONCE
    assert told == (["MalformedMessage"] if ends == "by an error" else [])


def test_a_listener_gets_what_was_read_before_it() -> None:
    """Bytes that came together with an earlier message are in memory, so the kernel reports nothing new."""

    async def scene(ours: socket.socket, theirs: socket.socket) -> list[str]:
        end, heard = FramedSocket(ours, FRAMING), asyncio.Queue[Message]()
        theirs.sendall(joined([Prepare("one", b""), Prepare("two", b"")]))
        first = await end.receive(lambda _: LARGEST)
        end.listen(lambda _: LARGEST, heard.put_nowait, pytest.fail)
        async with asyncio.timeout(5):
            second = await heard.get()
        end.close()
        return [facts(first)[0], facts(second)[0]]

    assert played(scene) == ["one", "two"]


def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    """If a task stops waiting for a message, the next task that receives gets the whole message."""
    (message,) = messages(random.Random(0), 1)
    raw = joined([message])

    async def scene(ours: socket.socket, theirs: socket.socket) -> Message:
        end = FramedSocket(ours, FRAMING)
        for piece in (b"", raw[:1], raw[1 : HEADER.size - 1]):
            theirs.sendall(piece)
            waiting = asyncio.ensure_future(end.receive(lambda _: LARGEST))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait({waiting})
        theirs.sendall(raw[HEADER.size - 1 :])
        return await end.receive(lambda _: LARGEST)

    assert facts(played(scene)) == facts(message)


def test_a_message_that_was_read_ahead_is_not_the_end() -> None:
    """A side that closed after two messages has not ended for a reader of the first. It has ended after the second."""
    sent = messages(random.Random(1), 2)

    async def scene(ours: socket.socket, theirs: socket.socket) -> list[bool]:
        end, found = FramedSocket(ours, FRAMING), list[bool]()
        theirs.sendall(b"".join(FRAMING.frame(Prepare(message.run, b"")) for message in sent))
        theirs.close()
        for _ in sent:
            found.append(end.has_ended())
            await end.receive(lambda _: 0)
        return [*found, end.has_ended()]

    assert played(scene) == [False, False, True]


def test_bytes_that_nobody_reads_stay_in_the_kernel() -> None:
    """A side that sends without end fills the socket, and not the memory of a process that reads nothing."""

    async def scene(ours: socket.socket, theirs: socket.socket) -> int:
        end = FramedSocket(ours, FRAMING)
        theirs.sendall(joined([Prepare("run", b"")]))
        await end.receive(lambda _: 0)
        waiting = asyncio.ensure_future(end.receive(lambda _: LARGEST))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        theirs.setblocking(False)
        taken = 0
        for _ in range(20):
            try:
                taken += theirs.send(bytes(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        end.close()
        return taken

    assert played(scene) < 10 << 20


def test_a_closed_socket_leaves_nothing_to_the_next_one() -> None:
    """The next socket has the same number. A watch that was left on that number would never report its messages."""

    async def scene() -> list[int]:
        numbers = []
        for _ in range(2):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                numbers.append(ours.fileno())
                end = FramedSocket(ours, FRAMING)
                waiting = asyncio.ensure_future(end.receive(lambda _: 0))
                await asyncio.sleep(0.01)
                theirs.sendall(joined([Prepare("run", b"")]))
                await asyncio.wait_for(waiting, 10)
                assert ours.fileno() == -1  # nobody else can close the socket that is watched
                end.close()
        return numbers

    first, second = asyncio.run(scene())
    assert first == second


def test_a_message_for_which_there_is_no_memory_is_an_error_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader gets the error, and not something that is no message."""

    def no_memory(_: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr("site_agent.framed_messages.bytearray", no_memory, raising=False)

    async def scene(ours: socket.socket, theirs: socket.socket) -> Message:
        end = FramedSocket(ours, FRAMING)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        waiting = asyncio.create_task(end.receive(lambda _: 1 << 20))
        await asyncio.sleep(0.01)
        message = Prepare("run", bytes(100_000))
        theirs.sendall(FRAMING.frame(message) + message.payload)
        try:
            return await asyncio.wait_for(waiting, 1)
        finally:
            end.close()

    with pytest.raises(MemoryError):
        played(scene)


def test_large_memory_is_used_again_when_nothing_refers_to_it() -> None:
    """A part of an array refers to the whole."""
    whole = memory_for(LARGEST).obj
    part = np.frombuffer(whole, np.uint8)[7:9]

    assert memory_for(LARGEST).obj is not whole
    del part
    assert memory_for(LARGEST).obj is whole
