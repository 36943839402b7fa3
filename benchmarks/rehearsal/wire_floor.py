"""Measures the shortest possible round: the same bytes between processes, without our code.

A bare gRPC server and one client process for each site exchange a round's bytes over mutual TLS: the server sends each
client the parameters, each client sends as many bytes back, the server adds every contribution to one sum as it
arrives, and syncs a journal line to disk. No encoding, no masks, no checks, no audit log. What a round of the product
costs beyond this is the product's.
"""

from __future__ import annotations

import asyncio
import os
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


def floor_seconds(sites: int, size: int, rounds: int) -> list[float]:
    """Measure rounds of the bare exchange.

    Args:
        sites: client processes.
        size: the number of bytes sent each way for each site.
        rounds: how many rounds; the first, in which connections open, is not counted.

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


async def _call(folder: Path, address: str, size: int, rounds: int) -> None:
    certificate, key = (folder / "certificate.pem").read_bytes(), (folder / "key.pem").read_bytes()
    secrets = grpc.ssl_channel_credentials(certificate, key, certificate)
    async with grpc.aio.secure_channel(address, secrets, options=_OPTIONS) as channel:
        stream = channel.stream_stream(_METHOD)()
        for _ in range(rounds):
            received = 0
            while received < size:
                received += len(await stream.read())
            for start in range(0, size, _CHUNK_BYTES):
                await stream.write(bytes(min(_CHUNK_BYTES, size - start)))
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
def main(folder: Path, address: str, sites: int, size: int, rounds: int, serve: bool) -> None:
    """Run one process of the exchange: the server or a client."""
    if serve:
        asyncio.run(_serve(folder, address, _Server(folder, sites, size, rounds)))
        return
    asyncio.run(_call(folder, address, size, rounds))


if __name__ == "__main__":
    main()
