"""Measures the coordinator's memory for each connected site, and gRPC's part: `python -m benchmarks.connections`.

Measures two servers on one machine with the same certificates and the same number of connections. Each connection uses
mutual TLS and has one bidirectional stream. The first server is the deployed coordinator. Its plan has one site more
than connect, so no round begins. The second is a bare `grpc.aio` server. Then the bare server receives eight chunks of
512 KiB on each stream, one stream after another, and is measured again, because gRPC keeps the memory into which a
connection has read. The unit is KiB of resident memory for each connection. The last line has `key=value` pairs.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.rehearsal.enrolled import credentials_of, enrol_all, write_run
from benchmarks.rehearsal.federation import Setting, Unfinished, coordinator_command, running, wait_for
from benchmarks.rehearsal.observation import memory_mib
from benchmarks.soak import light_command
from pki.authority import Authority
from site_agent.hospital import read_hospital

_METHOD: Final = "/bare/stream"
_CHUNK: Final = bytes(512 << 10)
_CHUNKS: Final = 8
_SETTLE_SECONDS: Final = 1.0  # until threads have freed their memory
_LIMIT_SECONDS: Final = 120.0


def of_coordinator(setting: Setting, sites: int) -> float:
    """Return how many KiB the deployed coordinator uses for each connected site, with this number of sites."""
    log = setting.folder / "coordinator.log"
    with ExitStack() as stack:
        process = stack.enter_context(running(coordinator_command(setting, "run"), log))
        deadline = time.monotonic() + _LIMIT_SECONDS
        wait_for("coordinator_listening", log, process, deadline)
        time.sleep(_SETTLE_SECONDS)
        before = memory_mib(process.pid, "VmRSS")
        words = light_command(setting, "streams", setting.site_names[:sites])
        stack.enter_context(running(words, setting.folder / "sites.log"))
        while log.read_text().count('"site_joined"') < sites:
            if time.monotonic() > deadline:
                raise Unfinished("not all sites have joined")
            time.sleep(0.1)
        time.sleep(_SETTLE_SECONDS)
        return (memory_mib(process.pid, "VmRSS") - before) * 1024 / sites


def of_bare_server(setting: Setting, sites: int) -> tuple[float, float]:
    """Return how many KiB gRPC uses for each connection: while idle, and after it has received eight chunks."""
    words: list[str | Path] = [sys.executable, "-m", __spec__.name, "--serve", setting.folder, "--sites", str(sites)]
    with running(words, setting.folder / "bare.log") as server:
        address = _line(server)
        calls = [*words[:3], "--call", address, "--folder", setting.folder, "--sites", str(sites)]
        with running(calls, setting.folder / "calls.log") as callers:
            figures = []
            for step in ("begin", "connect", "send"):
                if step != "begin":
                    _tell(callers, step)
                time.sleep(_SETTLE_SECONDS)
                figures.append(memory_mib(server.pid, "VmRSS"))
    idle, connected, used = figures
    return (connected - idle) * 1024 / sites, (used - idle) * 1024 / sites


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline().decode().strip()
    if not text:
        raise Unfinished("a program of the bare pair has ended")
    return text


def _tell(process: subprocess.Popen[bytes], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word.encode() + b"\n")
    process.stdin.flush()
    _line(process)


async def _serve(folder: Path) -> None:
    from coordinator.network.service import grpc  # with the suites of the coordinator

    async def take(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(message := await context.read(), bytes):
            if len(message) < len(_CHUNK):
                await context.write(message)

    authority = Authority.load(folder / "authority")
    shown = authority.coordinator_key_path.read_bytes(), authority.coordinator_certificate_path.read_bytes()
    secrets = grpc.ssl_server_credentials([shown], authority.accepted_roots_pem(), require_client_auth=True)
    handler: Any = grpc.stream_stream_rpc_method_handler(take)
    server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 83_886)])
    _, service, method = _METHOD.split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_secure_port("localhost:0", secrets)
    await server.start()
    click.echo(f"localhost:{port}")
    await server.wait_for_termination()


async def _call(folder: Path, address: str, sites: int) -> None:
    from site_agent.agent.connection import grpc

    async with AsyncExitStack() as stack:
        await asyncio.to_thread(sys.stdin.readline)
        streams = []
        for number in range(1, sites + 1):
            own = credentials_of(read_hospital(folder / f"site-{number:02d}" / "hospital.yaml"))
            secrets = grpc.ssl_channel_credentials(own.root, own.key, own.chain)
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.max_frame_size", 1 << 20)]
            channel = await stack.enter_async_context(grpc.aio.secure_channel(address, secrets, options=options))
            stream: Any = channel.stream_stream(_METHOD)()
            await stream.write(b"hello")
            await stream.read()
            streams.append(stream)
        click.echo("connected")
        await asyncio.to_thread(sys.stdin.readline)
        for stream in streams:
            for _ in range(_CHUNKS):
                await stream.write(_CHUNK)
            await stream.write(b"sent")
            await stream.read()
        click.echo("sent")
        await asyncio.to_thread(sys.stdin.readline)  # until the pipe is closed


@click.command()
@click.option("--sites", type=click.IntRange(1, 99), default=99, show_default=True)
@click.option("--serve", type=click.Path(path_type=Path), hidden=True)
@click.option("--call", hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(sites: int, serve: Path | None, call: str | None, folder: Path | None) -> None:
    """Measure a connected site's memory at the coordinator and at a bare server."""
    if serve is not None:
        asyncio.run(_serve(serve))
    elif call is not None and folder is not None:
        asyncio.run(_call(folder, call, sites))
    else:
        with tempfile.TemporaryDirectory(prefix="connections-") as temporary:
            setting = Setting(
                folder=Path(temporary), sites=sites + 1, parameters=1_000_000, rounds=1, is_masked=False, is_early=False
            )
            write_run(setting, enrol_all(setting))
            ours, (idle, used) = of_coordinator(setting, sites), of_bare_server(setting, sites)
        click.echo(
            f"connections={sites} coordinator_kib={ours:.0f} grpc_kib={idle:.0f} grpc_after_chunks_kib={used:.0f}"
        )


if __name__ == "__main__":
    main()
