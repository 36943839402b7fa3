"""`site-agent curves`: how this site's own models do, round by round, for a browser on this computer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from host.listening import check_local, until_ended
from protos.errors import ConfigurationError
from site_agent.commands.site_options import config_option
from site_agent.hospital import Hospital, read_hospital


@click.command()
@config_option
@click.option(
    "--listen",
    default="127.0.0.1:8482",
    show_default=True,
    help="Address to listen on: HOST:PORT of this computer, or unix:/path.",
)
def curves(path: Path, listen: str) -> None:
    """Serve a live page with this site's losses and metric in each round, until you stop the command.

    Run it as the trainer's user. Nothing leaves this computer. Every user of this computer can open a port. Only
    permitted users can open a Unix socket.

    Example: site-agent curves --config hospital.yaml --listen 127.0.0.1:8482
    """
    hospital = read_hospital(path)
    check_local(listen, "Nothing was started; nothing left this site.")
    asyncio.run(_serve(hospital, listen))


async def _serve(hospital: Hospital, listen: str) -> None:
    from host.local_server import serve_locally
    from site_agent.trainer.live_page import LivePage

    try:
        server = await serve_locally(listen, LivePage(hospital.site, hospital.state_path).respond)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The page cannot be served on {listen}: {cause.strerror or cause}.",
            consequence="Nothing was started. A running study continues.",
            remedy="Name a free port of loopback with --listen, or a Unix socket where this user may write.",
        ) from cause
    await until_ended(server, listen)
