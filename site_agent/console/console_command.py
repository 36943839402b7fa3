"""Contains `site-agent console`, which shows web pages on this computer for the persons who decide at a hospital."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from pydantic import TypeAdapter, ValidationError

from host.command_line import account
from protos.errors import ConfigurationError, UsageError
from protos.plan.documents import LocalAddress
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital

if TYPE_CHECKING:
    import uvicorn

    from site_agent.console.console_session import Session

_LOOK_SECONDS: Final = 0.5
_NOTHING: Final = "Nothing was started, and nothing was sent."
# The time that a command still has when the console ends. An approval or a withdrawal is then complete.
_LAST_SECONDS: Final = 10


@click.command()
@config_option
@click.option(
    "--listen", default="127.0.0.1:8483", show_default=True, help="Address to listen on: HOST:PORT of this computer."
)
def console(path: Path, listen: str) -> None:
    """Show web pages about this site: the plans, the reports, and the curves of a study that trains now.

    Open the printed link in a browser on this computer. The link works only once. On the pages a person reviews plans,
    and approves or withdraws. The pages run commands of site-agent under the user account that started the console.
    Ctrl-C ends the console. It also ends by itself after 15 minutes without a request.

    Example: site-agent console --config hospital.yaml
    """
    read_hospital(path)
    opened = _opened(listen)

    import uvicorn

    from site_agent.console.console_app import LARGEST_HEAD_BYTES, Setting, application
    from site_agent.console.console_session import LINK_SECONDS, Session

    host, _, port = listen.rpartition(":")
    shown = host if int(port) == 80 else f"{host}:{int(port)}"  # as a browser writes the address
    session = Session(clock=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    setting = Setting(config=path.resolve(), host=shown, account=account())
    server = uvicorn.Server(
        uvicorn.Config(
            application(setting, session), http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, timeout_keep_alive=5, limit_concurrency=64,
            h11_max_incomplete_event_size=LARGEST_HEAD_BYTES, timeout_graceful_shutdown=_LAST_SECONDS,
        )
    )  # fmt: skip
    click.echo(f"http://{shown}/enter/{session.link}")
    click.echo(
        f"The link works once, for {LINK_SECONDS / 60:g} minutes. Give it to nobody else. Ctrl-C ends.", err=True
    )
    # uvicorn ends in order on these signals, and raises them again at its end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve(server, opened, session))
    if not session.is_over:
        session.end("You stopped it.")
    click.echo(f"The console ended. {session.reason} Decisions that were made are kept, and the audit log has them.")


def _opened(listen: str) -> socket.socket:
    try:
        TypeAdapter(LocalAddress).validate_python(listen)
    except ValidationError as cause:
        raise UsageError(
            what=f"--listen {listen} is not a local address that a browser can open.",
            consequence=_NOTHING,
            remedy="Use 127.0.0.1:PORT or [::1]:PORT.",
        ) from cause
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=64)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The console cannot listen on {listen}: {cause.strerror}.",
            consequence=_NOTHING,
            remedy="Choose another port with --listen, such as 127.0.0.1:8500.",
        ) from cause


async def _serve(server: uvicorn.Server, opened: socket.socket, session: Session) -> None:
    serving = asyncio.create_task(server.serve(sockets=[opened]))
    while not serving.done():
        server.should_exit = server.should_exit or session.is_over
        await asyncio.wait([serving], timeout=_LOOK_SECONDS)
    await serving
