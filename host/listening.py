"""Serves a command's pages to people on this computer until the command ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click
from pydantic import TypeAdapter, ValidationError

from host.command_line import Command
from protos.errors import UsageError
from protos.plan.documents import LocalAddress


def listen_option(port: int, *, has_socket: bool = True) -> Callable[[Command], Command]:
    """Return the option for the address of a page. With `has_socket` the address can be a Unix socket."""
    return click.option(
        "--listen",
        default=f"127.0.0.1:{port}",
        show_default=True,
        help=f"Address to listen on: HOST:PORT of this computer{', or unix:/path' if has_socket else ''}.",
    )


def check_local(listen: str, consequence: str) -> None:
    """Check that `--listen` names loopback or a Unix socket.

    Raises:
        UsageError: it does not; `consequence` is its second sentence.
    """
    try:
        TypeAdapter(LocalAddress).validate_python(listen)
    except ValidationError as cause:
        raise UsageError(
            what=f"--listen {listen} is not a local address of this computer.",
            consequence=consequence,
            remedy="Use 127.0.0.1:PORT, [::1]:PORT or unix:/path. For other computers, use the institution's own "
            "proxy.",
        ) from cause


def plain_address(listen: str) -> str:
    """Return HOST:PORT as a browser writes it, without leading zeros in the port. A Unix socket is unchanged."""
    host, _, port = listen.rpartition(":")
    return listen if listen.startswith("unix:") else f"{host}:{int(port)}"


def browser_host(address: str) -> str:
    """Return an address as a browser names it in its requests, without the standard port of HTTP."""
    return address.removesuffix(":80")


async def until_ended(server: asyncio.Server, listen: str) -> None:
    """Print the address of the page, and serve it until this process ends."""
    shown = listen if listen.startswith("unix:") else f"http://{listen}/"
    click.echo(f"The page is at {shown}", err=True)
    async with server:
        await server.serve_forever()
