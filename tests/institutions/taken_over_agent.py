"""A hostile agent at a booted hospital: the relay of the installed package, which changes the messages that it relays.

It runs inside the machine as the agent's user, with the agent's files and the agent's way to the gate's socket: `python
-P taken_over_agent.py SECONDS SEED [watch]`. It drops, repeats, replays and alters messages of the coordinator; with
`watch` it changes nothing, but keeps refusals from the coordinator, so that a study goes on that a gate has stopped. At
its end it prints its changes and the messages that it relayed, as JSON.
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
from protos.wire.messages import Chunk, Refusal
from site_agent.agent.kept_certificates import KeptCertificates
from site_agent.agent.relaying import Relay
from site_agent.framed_messages import FramedSocket
from site_agent.gate_socket import FRAMING, Down, Message, Up

# A name that a taken-over trainer writes into its answers.
PATIENT = b"Jane Doe"
FOLDER, PLACE = Path("/var/lib/global-layers/site/agent"), Path("/run/site-gate/gate.sock")


class Tampering(FramedSocket[Message]):
    """The socket to the gate; what comes from the coordinator is changed as drawn."""

    luck: ClassVar[random.Random]
    watches: ClassVar[bool] = False
    done: ClassVar[Counter[str]] = Counter()
    kinds: ClassVar[Counter[str]] = Counter()
    left: ClassVar[Counter[int]] = Counter()  # bytes of numbers, by round
    told: ClassVar[list[str]] = []  # messages that name a patient
    heard: ClassVar[list[bytes]] = []

    def post(self, message: Message) -> None:
        """Hand a report to the gate, or do something else."""
        if self.watches or not isinstance(message, Down):
            super().post(message)
            return
        raw = bytes(message.payload)
        draw = self.luck.choices(("passed", "dropped", "repeated", "replayed", "altered"), (96, 1, 1, 1, 1))[0]
        self.done[draw] += 1
        for payload in self._instead(draw, raw):
            super().post(Down(message.stream, payload))
        if len(self.heard) < 500:
            self.heard.append(raw)

    async def receive(self, largest_payload: Callable[[type[Message]], int]) -> Message:
        """The gate's next order; what leaves is counted."""
        while True:
            order = await super().receive(largest_payload)
            if not isinstance(order, Up):
                return order
            message = decode_site_message(bytes(order.payload))
            self.kinds[type(message).__name__] += 1
            if PATIENT in bytes(order.payload):
                self.told.append(type(message).__name__)
            if isinstance(message, Chunk):
                self.left[message.round] += len(message.body)
            if not (self.watches and isinstance(message, Refusal)):
                return order

    def _instead(self, draw: str, raw: bytes) -> list[bytes]:
        match draw:
            case "dropped":
                return []
            case "repeated":
                return [raw, raw]
            case "replayed":
                return [self.luck.choice(self.heard or [raw])]
            case "altered":
                return [self._altered(raw)]
            case _:
                return [raw]

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
    """Tamper for this number of seconds."""
    faulthandler.dump_traceback_later(float(sys.argv[1]) + 40, exit=True)  # it never outstays its test
    Tampering.luck, Tampering.watches = random.Random(int(sys.argv[2])), "watch" in sys.argv[3:]
    asyncio.run(tamper(time.monotonic() + float(sys.argv[1])))
    sent = {"kinds": Tampering.kinds, "rounds": Tampering.left, "naming a patient": Tampering.told}
    print(json.dumps({"done": Tampering.done, "sent": sent}), flush=True)


if __name__ == "__main__":
    main()
