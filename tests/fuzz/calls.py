"""Malformed calls against a running coordinator: `PYTHONPATH=deploy python -m tests.fuzz.calls --calls 100000`.

The coordinator is the deployed program on loopback. Two honest sites wait in a run for a third, in whose name, with its
certificate, the calls are made: streams whose messages are mutated, requests for certificates, unknown methods, and
bytes that are no TLS. In the end the third site takes part honestly, and the run must end with the right numbers.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import click
import grpc
import grpc.aio

from benchmarks.rehearsal.enrolled import credentials_of, enrol_all, write_run
from benchmarks.rehearsal.federation import Setting, coordinator_command, running
from benchmarks.rehearsal.observation import memory_mib
from benchmarks.soak import light_command
from deploy.quickstart.ports import free_port
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.codec import encode_enrolment, encode_site_message
from protos.wire.messages import ENROL, PARTICIPATE, PROTOCOL_VERSION, Hello, Join
from site_agent.hospital import read_hospital
from tests.chaos.network.federation import Federation
from tests.fuzz.mutator import mutated
from tests.fuzz.targets import LARGEST_EXAMPLE
from tests.protos.examples import ENROLMENT_REQUEST, SITE_MESSAGES
from tests.rehearsal.federation import as_channel
from tests.rehearsal.programs import says, wait_until

ROUNDS, PARAMETERS = 3, 1000
AT_ONCE = 4  # as many streams as one site may have
CALLS_OF_A_CONNECTION = 1000
LONGEST_SECONDS = 20.0  # for one call; the coordinator ends a stream within five
_PAUSES_SECONDS = (0.0,) * 19 + (0.01,)  # before a message; longer than the coordinator needs to end a stream
_NO_TLS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
)
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]

Connections: TypeAlias = tuple[grpc.aio.Channel, grpc.aio.Channel]


@dataclass
class Told:
    """The results of the calls.

    Attributes:
        calls: their number, `endings` how they ended.
        unanswered, interrupted: calls not ended in time, and streams ended before all was said on them.
        first_mib, last_mib, peak_mib: its resident memory after the first hundred calls, at the end, and at most.
        descriptors: its open files at the end.
        is_exact: whether the honest run ended in the right numbers afterwards.
    """

    calls: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    interrupted: int = 0
    seconds: float = 0.0
    first_mib: float = 0.0
    last_mib: float = 0.0
    peak_mib: float = 0.0
    descriptors: int = 0
    is_exact: bool = False

    @property
    def is_borne(self) -> bool:
        """Whether every call was answered, memory did not grow, and the attacked run ended with the right numbers."""
        is_small = self.last_mib < self.first_mib + 16 and self.descriptors < 60
        return self.is_exact and is_small and self.unanswered == 0 and self.endings["OK"] > self.calls / 3


class Attacker:
    """The attacker with the third site's certificate."""

    def __init__(
        self, address: str, connected: Callable[[], AbstractAsyncContextManager[Connections]], plan: Plan, seed: int
    ) -> None:
        """`connected` opens a connection to the sites' port, which is at `address`, and one to the enrolment port."""
        self._address, self._connected, self._luck, self.told = address, connected, random.Random(seed), Told()
        join = Join(plan.run_name, plan.digest, manifest_of(plan).digest, 0)
        self._opening = [encode_site_message(Hello(PROTOCOL_VERSION, "fuzz")), encode_site_message(join)]
        known = [encode_site_message(message) for message in (*SITE_MESSAGES, join)]
        self._examples = [raw for raw in known if len(raw) <= LARGEST_EXAMPLE]
        self._request = encode_enrolment(ENROLMENT_REQUEST)

    async def attack(self, calls: int, seconds: float, coordinator: int) -> None:
        """Make this number of calls, some at a time, or as many as fit into the time."""
        began = time.monotonic()

        def has_more() -> bool:
            return self.told.calls < calls and time.monotonic() - began < seconds

        async def some() -> None:
            while has_more():
                async with self._connected() as connections:
                    for _ in range(CALLS_OF_A_CONNECTION):
                        if not has_more():
                            return
                        self.told.calls += 1
                        if self.told.calls == max(1, min(calls, 1000) // 10):
                            self.told.first_mib = memory_mib(coordinator, "VmRSS")
                        if await self._call(*connections) == "unanswered":
                            break

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        self.told.seconds = time.monotonic() - began

    async def _call(self, channel: grpc.aio.Channel, enrolment: grpc.aio.Channel) -> str:
        kind = self._luck.random()
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                if kind < 0.7:
                    ending = await self._stream(channel)
                elif kind < 0.9:
                    request = mutated(self._luck, [self._request], is_text=False)
                    await enrolment.unary_unary(ENROL)(request)
                    ending = "enrolment answered"
                elif kind < 0.95:
                    await channel.unary_unary(self._luck.choice(("/none/none", "/", ENROL, PARTICIPATE)))(b"\xff" * 9)
                    ending = "unknown method answered"
                else:
                    ending = await self._no_tls()
        except grpc.aio.AioRpcError as error:
            ending = error.code().name
        except TimeoutError:
            ending, self.told.unanswered = "unanswered", self.told.unanswered + 1
        self.told.endings[ending] += 1
        return ending

    async def _stream(self, channel: grpc.aio.Channel) -> str:
        luck = self._luck
        sent = self._opening[: luck.choice((0, 1, 1, 1, 1, 2))]
        sent = [*sent, *(mutated(luck, self._examples, is_text=False) for _ in range(luck.choice((1, 1, 2, 4))))]
        stream = channel.stream_stream(PARTICIPATE)()
        try:
            await self._say(stream, sent)
            # To the end in any case. A call whose write met the other side's end is done to gRPC, which cancels it no
            # more. Unread, it would keep its place among the few of its connection, and after four no call would leave.
            async for _ in stream:
                pass
            return (await stream.code()).name
        finally:
            stream.cancel()

    async def _say(self, stream: grpc.aio.StreamStreamCall[bytes, bytes], sent: list[bytes]) -> None:
        try:
            for raw in sent:
                await asyncio.sleep(self._luck.choice(_PAUSES_SECONDS))
                await stream.write(raw)
            await stream.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            self.told.interrupted += 1

    async def _no_tls(self) -> str:
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(ConnectionError):
            writer.write(mutated(self._luck, _NO_TLS, is_text=False))
            if self._luck.random() < 0.5:
                writer.write_eof()
                await reader.read()
        writer.close()
        return "no TLS"


def connecting(setting: Setting) -> Callable[[], AbstractAsyncContextManager[Connections]]:
    """Opens connections with the third site's certificate, and to the enrolment port without one."""
    secrets = as_channel(credentials_of(read_hospital(setting.folder / "site-03" / "hospital.yaml")))
    root = grpc.ssl_channel_credentials((setting.folder / "authority" / "root.crt").read_bytes())

    @asynccontextmanager
    async def connected() -> AsyncIterator[Connections]:
        async with (
            grpc.aio.secure_channel(setting.address, secrets, options=_OPTIONS) as channel,
            grpc.aio.secure_channel(setting.enrolment, root, options=_OPTIONS) as enrolment,
        ):
            yield channel, enrolment

    return connected


def besiege(folder: Path, calls: int, seed: int, seconds: float = float("inf")) -> Told:
    """Make the calls, then let the run come to its end."""
    setting = Setting(
        folder=folder, sites=3, parameters=PARAMETERS, rounds=ROUNDS, is_masked=False, is_early=False, study="siege",
        address=f"localhost:{free_port()}", enrolment=f"localhost:{free_port()}",
    )  # fmt: skip
    plan = write_run(setting, enrol_all(setting))
    *honest, third = setting.site_names
    with ExitStack() as stack:
        log = folder / "coordinator.log"
        coordinator = stack.enter_context(running(coordinator_command(setting, "run"), log))
        wait_until(says(log, "coordinator_listening"))
        sites = [stack.enter_context(running(light_command(setting, honest), folder / "honest.log"))]
        attacker = Attacker(setting.address, connecting(setting), plan, seed)
        asyncio.run(attacker.attack(calls, seconds, coordinator.pid))
        told = attacker.told
        told.last_mib = memory_mib(coordinator.pid, "VmRSS")
        told.peak_mib = memory_mib(coordinator.pid, "VmHWM")
        told.descriptors = len(list(Path(f"/proc/{coordinator.pid}/fd").iterdir()))
        sites.append(stack.enter_context(running(light_command(setting, [third]), folder / "third.log")))
        # A site that ends with an error is noticed first, because the coordinator would wait for it.
        is_over = all(program.wait(300) == 0 for program in (*sites, coordinator))
        told.is_exact = is_over and Federation(setting, {}).arrays_are(ROUNDS)
    return told


@click.command()
@click.option("--calls", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--seconds", type=float, default=float("inf"), help="No further call after so many.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="An empty folder for logs and records."
)
def main(calls: int, seconds: float, seed: int, folder: Path | None) -> None:
    """Attack a coordinator, and report the result."""
    with tempfile.TemporaryDirectory(prefix="siege-") as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        told = besiege(place, calls, seed, seconds)
    click.echo(json.dumps(vars(told) | {"endings": dict(told.endings.most_common())}, indent=2))
    sys.exit(0 if told.is_borne else 1)


if __name__ == "__main__":
    main()
