"""A taken-over agent at a booted hospital: the relay of the installed package, which tampers with what it relays.

It runs inside the machine as the agent's user, with the agent's files and the agent's way to the gate's socket:
`python -P taken_over_agent.py SECONDS SEED`. It drops, repeats, replays and alters messages of the coordinator. At
its end it prints what it did, and which rounds left through it, as JSON.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from protos.wire.codec import decode_site_message
from protos.wire.messages import Chunk
from site_agent.agent.kept_certificates import KeptCertificates
from site_agent.agent.relaying import Relay
from site_agent.framed_messages import FramedSocket
from site_agent.gate_socket import FRAMING, Down, Message, Up

FOLDER, PLACE = Path("/var/lib/global-layers/site/agent"), Path("/run/site-gate/gate.sock")


class Tampering(FramedSocket[Message]):
    """The socket to the gate; what comes from the coordinator is changed as drawn."""

    luck: ClassVar[random.Random]
    done: ClassVar[Counter[str]] = Counter()
    left: ClassVar[Counter[int]] = Counter()
    heard: ClassVar[list[bytes]] = []

    def post(self, message: Message) -> None:
        """Hand a report to the gate, or do something else."""
        if not isinstance(message, Down):
            super().post(message)
            return
        raw = bytes(message.payload)
        draw = self.luck.choices(("passed", "dropped", "repeated", "replayed", "altered"), (96, 1, 1, 1, 1))[0]
        self.done[draw] += 1
        sent = {"passed": [raw], "dropped": [], "repeated": [raw, raw], "altered": [self._altered(raw)]}
        for payload in sent.get(draw) or [self.luck.choice(self.heard or [raw])] * (draw == "replayed"):
            super().post(Down(message.stream, payload))
        if len(self.heard) < 500:
            self.heard.append(raw)

    async def receive(self, largest_payload: Callable[[type[Message]], int]) -> Message:
        """The gate's next order; the rounds that leave are counted."""
        order = await super().receive(largest_payload)
        if isinstance(order, Up) and isinstance(chunk := decode_site_message(bytes(order.payload)), Chunk):
            self.left[chunk.round] += 1
        return order

    def _altered(self, raw: bytes) -> bytes:
        changed = bytearray(raw)
        for _ in range(self.luck.randrange(1, 4)):
            changed[self.luck.randrange(len(changed))] = self.luck.randrange(256)
        return bytes(changed)


async def relay_for(seconds: float) -> None:
    """Be the agent for so long, or until the gate hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.connect(str(PLACE))
        async with asyncio.timeout(seconds):
            await Relay(Tampering(connection, FRAMING), KeptCertificates(FOLDER)).run()


async def tamper(deadline: float) -> None:
    """Be the agent again and again."""
    while time.monotonic() < deadline:
        try:
            await relay_for(deadline - time.monotonic())
        except Exception as error:  # the time is over, or the gate has stopped
            Tampering.done[type(error).__name__] += 1
            await asyncio.sleep(0.5)


def main() -> None:
    """Tamper for so many seconds."""
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 40, exit=True)  # it never outstays its test
    Tampering.luck = random.Random(int(sys.argv[2]))
    asyncio.run(tamper(time.monotonic() + float(sys.argv[1])))
    print(json.dumps({"done": Tampering.done, "rounds": sorted(Tampering.left)}), flush=True)


if __name__ == "__main__":
    main()
