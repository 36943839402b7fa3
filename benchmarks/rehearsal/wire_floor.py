"""Measures the shortest possible round: the same bytes between processes, without our code.

A bare gRPC server and one client process for each site exchange a round's bytes over mutual TLS: the server sends each
client the parameters, each client sends as many bytes back, the server adds every contribution to one sum as it
arrives, and syncs a journal line to disk. No encoding, no masks, no checks, no audit log. What a round of the product
costs beyond this is the product's.

With `is_relayed` each site has three processes, as in the product: the client passes the bytes to a second process over
a Unix socket, the second passes them to a third, and the third returns as many bytes on the same way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import grpc
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.rehearsal.federation import Unfinished, running
from deploy.quickstart.ports import free_port

_METHOD: Final = "/floor/stream"
_CHUNK_BYTES: Final = 512 << 10
_JOURNAL_BYTES: Final = 512  # a round's lines in the coordinator's journal
_START_SECONDS: Final = 30.0
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", 2 << 20),
    ("grpc.max_send_message_length", 2 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
]


def floor_seconds(sites: int, size: int, rounds: int, *, is_relayed: bool = False) -> list[float]:
    """Measure rounds of the bare exchange.

    Args:
        sites: client processes.
        size: the number of bytes sent each way for each site.
        rounds: how many rounds; the first, in which connections open, is not counted.
        is_relayed: whether each site has three processes instead of one.

    Returns:
        Seconds of each counted round.

    Raises:
        Unfinished: a process ended with a failure.
    """
    with tempfile.TemporaryDirectory(prefix="floor-") as temporary, ExitStack() as stack:
        folder, address = Path(temporary), f"localhost:{free_port()}"
        _write_credentials(folder)
        words = [sys.executable, "-m", __spec__.name, "--folder", folder, "--address", address]
        words += ["--sites", str(sites), "--size", str(size), "--rounds", str(rounds)]
        words += ["--relayed"] * is_relayed
        server = stack.enter_context(running([*words, "--serve"], folder / "server.log"))
        assert server.stdout is not None
        if server.stdout.readline().strip() != b"listening":
            raise Unfinished((folder / "server.log").read_text())
        clients = [stack.enter_context(running(words, folder / f"client-{n}.log")) for n in range(sites)]
        lines = server.stdout.read().split()
        if server.wait() or any(client.wait() for client in clients):
            raise Unfinished("\n".join(log.read_text() for log in folder.glob("*.log")))
    return [float(line) for line in lines]


def _write_credentials(folder: Path) -> None:
    """Write one self-signed certificate that server and clients present and trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


class _Server:
    """Sends parameters, adds up the replies, and syncs one line to disk for each round."""

    def __init__(self, folder: Path, sites: int, size: int, rounds: int) -> None:
        self._sites, self._rounds = sites, rounds
        self._down = np.zeros(size, np.uint8)
        self._sum = np.zeros(size, np.uint8)
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._missing, self._turn = sites, asyncio.Condition()
        self._round, self._began = 0, 0.0
        self._joined = 0
        self.over = asyncio.Event()

    async def stream(self, _: AsyncIterator[bytes], context: Any) -> None:
        """Handle all messages of one client."""
        async with self._turn:
            self._joined += 1
            self._turn.notify_all()
            await self._turn.wait_for(lambda: self._joined == self._sites)
        for number in range(self._rounds):
            for start in range(0, self._down.nbytes, _CHUNK_BYTES):
                await context.write(self._down[start : start + _CHUNK_BYTES].tobytes())
            start = 0
            while start < self._sum.size:
                chunk = np.frombuffer(await context.read(), np.uint8)
                part = self._sum[start : start + chunk.size]
                np.add(part, chunk, out=part)
                start += chunk.size
            await self._arrived(number)

    async def _arrived(self, number: int) -> None:
        async with self._turn:
            self._missing -= 1
            if self._missing == 0:
                os.write(self._journal, bytes(_JOURNAL_BYTES))
                os.fdatasync(self._journal)
                now = time.monotonic()
                if number:
                    print(f"{now - self._began:.6f}")
                self._began, self._missing, self._round = now, self._sites, number + 1
                self._sum[:] = 0
                if self._round == self._rounds:
                    self.over.set()
                self._turn.notify_all()
            await self._turn.wait_for(lambda: self._round > number)


async def _serve(folder: Path, address: str, server: _Server) -> None:
    certificate, key = (folder / "certificate.pem").read_bytes(), (folder / "key.pem").read_bytes()
    secrets = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
    listening = grpc.aio.server(options=_OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(server.stream)
    service, method = _METHOD.strip("/").split("/")
    listening.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    listening.add_secure_port(address, secrets)
    await listening.start()
    print("listening", flush=True)
    await server.over.wait()
    await listening.stop(_START_SECONDS)


class _Site:
    """One site without further processes: it ignores what arrives, and sends zeros."""

    def __init__(self, size: int) -> None:
        self._zeros = bytes(min(size, _CHUNK_BYTES))

    async def take(self, chunk: bytes) -> None:
        """Receive one chunk of the parameters."""

    async def give(self, size: int) -> bytes:
        """Return the next chunk of the contribution."""
        return self._zeros[:size]


class _RelayedSite:
    """One site with two further processes behind this one, each connected to the next by a Unix socket."""

    def __init__(self, size: int, rounds: int) -> None:
        ours, theirs = socket.socketpair()
        if not os.fork():  # before gRPC starts its threads
            ours.close()
            inner, innermost = socket.socketpair()
            if not os.fork():
                inner.close()
                _return_bytes(innermost, size, rounds)
            innermost.close()
            _relay_bytes(theirs, inner, size, rounds)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours

    async def take(self, chunk: bytes) -> None:
        """Pass one chunk of the parameters to the second process."""
        await asyncio.get_running_loop().sock_sendall(self._socket, chunk)

    async def give(self, size: int) -> bytes:
        """Return the next chunk of the contribution from the second process."""
        chunk, filled = bytearray(size), 0
        while filled < size:
            filled += await asyncio.get_running_loop().sock_recv_into(self._socket, memoryview(chunk)[filled:])
        return bytes(chunk)


def _return_bytes(connection: socket.socket, size: int, rounds: int) -> None:
    """Run the innermost process: read all parameters of a round, then send as many bytes."""
    model = memoryview(bytearray(size))
    for _ in range(rounds):
        _fill(connection, model)
        connection.sendall(model)
    os._exit(0)


def _relay_bytes(outer: socket.socket, inner: socket.socket, size: int, rounds: int) -> None:
    """Run the second process: pass each chunk on, first inwards and then outwards."""
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    for _ in range(rounds):
        for source, target in ((outer, inner), (inner, outer)):
            for start in range(0, size, _CHUNK_BYTES):
                part = chunk[: min(_CHUNK_BYTES, size - start)]
                _fill(source, part)
                target.sendall(part)
    os._exit(0)


def _fill(source: socket.socket, part: memoryview) -> None:
    filled = 0
    while filled < len(part):
        received = source.recv_into(part[filled:])
        if not received:
            os._exit(1)
        filled += received


async def _call(folder: Path, address: str, site: _Site | _RelayedSite, size: int, rounds: int) -> None:
    certificate, key = (folder / "certificate.pem").read_bytes(), (folder / "key.pem").read_bytes()
    secrets = grpc.ssl_channel_credentials(certificate, key, certificate)
    async with grpc.aio.secure_channel(address, secrets, options=_OPTIONS) as channel:
        stream = channel.stream_stream(_METHOD)()
        for _ in range(rounds):
            received = 0
            while received < size:
                chunk = await stream.read()
                await site.take(chunk)
                received += len(chunk)
            for start in range(0, size, _CHUNK_BYTES):
                await stream.write(await site.give(min(_CHUNK_BYTES, size - start)))
        await stream.done_writing()
        # Wait until the server ends the stream, because a channel that closes earlier would lose the last bytes.
        await stream.read()


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--address", required=True)
@click.option("--sites", type=int, required=True)
@click.option("--size", type=int, required=True)
@click.option("--rounds", type=int, required=True)
@click.option("--serve", is_flag=True)
@click.option("--relayed", is_flag=True)
def main(folder: Path, address: str, sites: int, size: int, rounds: int, serve: bool, relayed: bool) -> None:
    """Run one process of the exchange: the server or a client."""
    if serve:
        asyncio.run(_serve(folder, address, _Server(folder, sites, size, rounds)))
        return
    site = _RelayedSite(size, rounds) if relayed else _Site(size)
    asyncio.run(_call(folder, address, site, size, rounds))


if __name__ == "__main__":
    main()
