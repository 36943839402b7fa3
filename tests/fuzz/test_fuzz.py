"""A few seconds of every decoder's fuzzing, and the findings of longer runs. The long run is a command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from protos.wire.messages import PARTICIPATE
from tests.fuzz.calls import AT_ONCE, Attacker, Connections, Told, besiege
from tests.fuzz.feeding import bounded_memory, feed
from tests.fuzz.targets import Target, targets
from tests.rehearsal.study import SITES, plan_with

REPOSITORY = Path(__file__).parents[2]
FOUND = Path(__file__).with_name("found")


def fuzz(*words: str, findings: Path) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--findings", findings, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_decoder_ends_otherwise_than_it_says(tmp_path: Path) -> None:
    """Within limits of memory and time, mutated inputs are accepted or refused with the declared errors."""
    done = fuzz("--inputs", "1000", "--seconds", "0.1", findings=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("findings=0") == len(done.stdout.splitlines()) > 15


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("names", "inputs"),
    [
        (("site-messages", "coordinator-messages", "enrolment-requests", "enrolment-replies"), 1_000_000),
        (("chunk-frames", "contributions", "snapshots", "checkpoints"), 1_000_000),
        (("plans-from-the-wire", "invitations", "certificates", "certificate-chains"), 50_000),
        (("signing-requests", "private-keys", "plans", "hospitals", "coordinators", "contracts"), 50_000),
    ],
    ids=["messages", "vectors", "papers", "documents"],
)
def test_a_million_inputs_bring_no_decoder_down(tmp_path: Path, names: tuple[str, ...], inputs: int) -> None:
    """A million for each that reads bytes from the wire or numbers from a disk, fifty thousand for each other."""
    words = [word for name in names for word in ("--target", name)]

    done = fuzz("--inputs", str(inputs), *words, findings=tmp_path)

    print(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_was_found_once_is_borne_now(tmp_path: Path) -> None:
    """Every stored input ends as its decoder declares."""
    known = targets(tmp_path)
    kept = sorted(FOUND.glob("*/*.hex"))
    assert kept

    for path in kept:  # in hexadecimal, since an editor would change some of them
        target = known[path.parent.name]
        try:
            target.decode(bytes.fromhex(path.read_text()))
        except target.errors:
            continue


def endless(raw: bytes) -> str:
    """A decoder that never returns for some inputs."""
    while len(raw) % 2:
        time.monotonic()
    return "even"


def greedy(raw: bytes) -> str:
    """A decoder that trusts a size before it has the bytes."""
    return str(len(bytearray(1 << 40 if len(raw) % 2 else 1)))


@pytest.mark.parametrize("decode", [endless, greedy])
def test_a_decoder_that_hangs_or_hoards_is_found(decode: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that takes more time or memory than allowed is a finding, and the fuzzing continues."""
    monkeypatch.setattr("tests.fuzz.feeding.LONGEST_SECONDS", 0.05)
    target = Target(examples=[b"some bytes"], decode=decode, errors=(ValueError,))  # type: ignore[arg-type]

    with bounded_memory():
        done = feed(target, seed=0, inputs=12)

    assert 0 < len(done.findings) < 12 == done.inputs
    assert {finding.what.split(":")[0] for finding in done.findings} <= {"TooSlow", "MemoryError"}


def assert_borne(told: Told) -> None:
    """Every call was answered, memory did not grow, and the attacked run ends with the right numbers."""
    assert told.is_exact
    assert told.unanswered == 0, told
    assert told.endings["OK"] > told.calls / 3
    assert told.last_mib < told.first_mib + 16
    assert told.descriptors < 60


Context = grpc.aio.ServicerContext[bytes, bytes]


async def never_ends(_: Any, context: Context) -> None:
    """Accept a call and never answer it."""
    await asyncio.Event().wait()


def told_of(handler: Callable[[Any, Context], Awaitable[None]], calls: int) -> Told:
    """The attacker's report about a bare gRPC server with this behaviour and the coordinator's limit of streams."""

    async def scene() -> Told:
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", AT_ONCE)])
        service, method = PARTICIPATE.strip("/").split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        address = f"localhost:{server.add_insecure_port('localhost:0')}"

        @asynccontextmanager
        async def connected() -> AsyncIterator[Connections]:
            options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                yield channel, channel

        attacker = Attacker(address, connected, plan_with({site: "-".join([4 * site] * 8) for site in SITES}), 0)
        await server.start()
        try:
            await attacker.attack(calls, 60.0, os.getpid())
        finally:
            await server.stop(0)
        return attacker.told

    return asyncio.run(scene())


def test_a_server_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is taken and never ended is reported as unanswered."""
    monkeypatch.setattr("tests.fuzz.calls.LONGEST_SECONDS", 0.3)

    told = told_of(never_ends, 20)

    assert told.unanswered > 3, told  # about half of the drawn calls; the others have no method or no TLS
    assert told.endings["OK"] == 0


def test_malformed_calls_do_not_disturb_a_run(tmp_path: Path) -> None:
    """In a site's own name, with its certificate and without: the coordinator ends each call and goes on."""
    assert_borne(besiege(tmp_path, 150, 0))


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_a_long_siege_does_not_disturb_a_run(tmp_path: Path) -> None:
    """The same with a hundred thousand calls, which takes minutes. The figures are printed."""
    told = besiege(tmp_path, 100_000, 1)

    print(f"\n{told}")
    assert_borne(told)
