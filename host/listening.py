"""Pages that a command serves to this computer's own people until it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import click
from pydantic import TypeAdapter, ValidationError

from protos.errors import UsageError
from protos.plan.configuration_fields import LocalAddress

Command = TypeVar("Command", bound=Callable[..., Any])


def listen_option(port: int, *, has_socket: bool = True) -> Callable[[Command], Command]:
    """The option with which a command that serves a page receives its address; `has_socket`: or a Unix socket."""
    return click.option(
        "--listen",
        default=f"127.0.0.1:{port}",
        show_default=True,
        help=f"Address to listen on: HOST:PORT of this computer{', or unix:/path' if has_socket else ''}.",
    )


def check_local(listen: str, consequence: str) -> None:
    """Return when `--listen` names loopback or a Unix socket.

    Raises:
        UsageError: it does not; `consequence` is its second sentence.
    """
    try:
        TypeAdapter(LocalAddress).validate_python(listen)
    except ValidationError as cause:
        raise UsageError(
            what=f"--listen {listen} is no address of this computer alone.",
            consequence=consequence,
            remedy="Give 127.0.0.1:PORT, [::1]:PORT or unix:/path. Others come in by the institution's own proxy.",
        ) from cause


def plain_address(listen: str) -> str:
    """HOST:PORT as a browser writes it, with no zeros before the port; a checked Unix socket stays unchanged."""
    host, _, port = listen.rpartition(":")
    return listen if listen.startswith("unix:") else f"{host}:{int(port)}"


def browser_host(address: str) -> str:
    """How a browser names a plain address in its requests: it leaves out the usual port of HTTP."""
    return address.removesuffix(":80")


async def until_ended(server: asyncio.Server, listen: str) -> None:
    """Say where the page is, and answer until this process is ended."""
    shown = listen if listen.startswith("unix:") else f"http://{listen}/"
    click.echo(f"The page is at {shown}", err=True)
    async with server:
        await server.serve_forever()
