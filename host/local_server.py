"""Serves web pages to people on this computer, on loopback or a Unix socket, one short request at a time.

It also has the option `--listen` of the commands that serve a page until they end.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from pydantic import TypeAdapter, ValidationError

from host.command_line import Command
from host.http_answers import LONGEST_REQUEST_BYTES, PATIENCE_SECONDS
from protos.errors import ConfigurationError, UsageError
from protos.plan.documents import LocalAddress

_MOST_CONNECTIONS: Final = 64  # at once, because every user of this computer can open a connection to a port


_WHY: Final = {
    errno.EADDRINUSE: "Another program uses this address.",
    errno.EACCES: "This user may not use this address. Ports below 1024 need root.",
}


def _no_body(_head: bytes) -> int:
    return 0


async def serve_page(
    address: str,
    respond: Callable[[bytes], Awaitable[bytes]],
    running: str,
    body_bytes: Callable[[bytes], int] = _no_body,
) -> asyncio.Server:
    """Serve a local page on an address. `running` names the program that continues if the page cannot be served.

    Raises:
        ConfigurationError: the program cannot listen on the address.
    """
    try:
        return await serve_locally(address, respond, body_bytes)
    except OSError as cause:
        reason = _WHY.get(cause.errno or 0, f"The operating system reports: {cause.strerror or cause}.")
        is_port = not address.startswith("unix:")
        other = (
            "another port with --listen, such as 127.0.0.1:8500" if is_port else "a socket where this user may write"
        )
        raise ConfigurationError(
            what=f"The page cannot be served on {address}. {reason}",
            consequence=f"Nothing was started. If a {running} is running, it continues.",
            remedy=f"Choose {other}.",
        ) from cause


async def serve_locally(
    address: str, respond: Callable[[bytes], Awaitable[bytes]], body_bytes: Callable[[bytes], int] = _no_body
) -> asyncio.Server:
    """Serve HTTP on an address of this computer: HOST:PORT of loopback, or unix:/path.

    Args:
        address: an address that was checked before. A socket from an earlier process is replaced; any other file stays.
        respond: a function from a request's head and body to the whole response. The connection is closed, whatever
            error it raises.
        body_bytes: a function from a request's head to the number of bytes of its body to read. Without it no body is
            read.

    Raises:
        OSError: the program cannot listen on the address.
    """

    connections: set[asyncio.StreamWriter] = set()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            # Streams of Python 3.11 print a traceback if a connection is cancelled, as at the end of the program.
            with suppress(OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, asyncio.CancelledError):
                if len(connections) > _MOST_CONNECTIONS:
                    return
                async with asyncio.timeout(PATIENCE_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    body = await reader.readexactly(body_bytes(head))
                writer.write(await respond(head + body))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.drain()
        finally:
            connections.discard(writer)
            writer.close()

    if address.startswith("unix:"):
        place = Path(address.removeprefix("unix:"))
        if place.is_socket():
            place.unlink()
        return await asyncio.start_unix_server(answered, place, limit=LONGEST_REQUEST_BYTES)
    host, _, port = address.rpartition(":")
    return await asyncio.start_server(answered, host.strip("[]"), int(port), limit=LONGEST_REQUEST_BYTES)


def listen_option(port: int, *, has_socket: bool = True) -> Callable[[Command], Command]:
    """Return the option for the address of a page. With `has_socket` the address can be a Unix socket."""
    return click.option(
        "--listen",
        default=f"127.0.0.1:{port}",
        show_default=True,
        help=f"Address to listen on: HOST:PORT of this computer{', or unix:/path' if has_socket else ''}.",
    )


def check_local(listen: str, consequence: str) -> None:
    """Raise UsageError, with `consequence` as second sentence, unless `--listen` is loopback or a Unix socket."""
    try:
        TypeAdapter(LocalAddress).validate_python(listen)
    except ValidationError as cause:
        raise UsageError(
            what=f"--listen {listen} is not a local address of this computer.",
            consequence=consequence,
            remedy="Use 127.0.0.1:PORT, [::1]:PORT or unix:/path. To open the page from other computers, use the "
            "institution's own proxy.",
        ) from cause


def plain_address(listen: str) -> str:
    """Return HOST:PORT as a browser writes it, without leading zeros in the port. A Unix socket is unchanged."""
    host, _, port = listen.rpartition(":")
    return listen if listen.startswith("unix:") else f"{host}:{int(port)}"


def browser_host(address: str) -> str:
    """Return the address as a browser writes it in the Host header, without the standard port 80 of HTTP."""
    return address.removesuffix(":80")


async def until_ended(server: asyncio.Server, listen: str) -> None:
    """Print the address of the page, and serve it until this process ends."""
    shown = listen if listen.startswith("unix:") else f"http://{listen}/"
    click.echo(f"The page is at {shown}", err=True)
    async with server:
        await server.serve_forever()
