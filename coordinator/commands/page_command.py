"""`coordinator page`: the status page, for a browser on this computer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from coordinator.commands.coordinator_options import config_option
from coordinator.configuration import CoordinatorConfiguration, read_configuration
from host.listening import check_local, until_ended


@click.command()
@config_option
@click.option(
    "--listen",
    default="127.0.0.1:8480",
    show_default=True,
    help="Address to listen on: HOST:PORT of this computer, or unix:/path.",
)
def page(path: Path, listen: str) -> None:
    """Serve a read-only status page for browsers on this computer, until you stop the command.

    Example: coordinator page --config coordinator.yaml --listen 127.0.0.1:8480
    """
    configuration = read_configuration(path)
    check_local(listen, "Nothing was started.")
    asyncio.run(_serve(configuration, listen))


async def _serve(configuration: CoordinatorConfiguration, listen: str) -> None:
    import sdnotify

    from coordinator.operations.status_page import StatusPage, serve_page

    server = await serve_page(StatusPage(configuration), listen)
    sdnotify.SystemdNotifier().notify("READY=1")
    await until_ended(server, listen)
