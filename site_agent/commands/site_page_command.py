"""`site-agent page`: where the agent stands and what has left, for a browser on this computer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from host.listening import check_local, until_ended
from site_agent.commands.site_options import config_option
from site_agent.hospital import Hospital, read_hospital


@click.command()
@config_option
@click.option(
    "--listen",
    default="127.0.0.1:8481",
    show_default=True,
    help="Address to listen on: HOST:PORT of this computer, or unix:/path.",
)
def page(path: Path, listen: str) -> None:
    """Serve a read-only page about this site for browsers on this computer, until you stop the command.

    It shows what left this site, from the audit log. `site-agent report` shows what the site gained.

    Example: site-agent page --config hospital.yaml --listen 127.0.0.1:8481
    """
    hospital = read_hospital(path)
    check_local(listen, "Nothing was started; nothing left this site.")
    asyncio.run(_serve(hospital, listen))


async def _serve(hospital: Hospital, listen: str) -> None:
    from site_agent.gate.site_page import SitePage, serve_page

    server = await serve_page(SitePage(hospital.site, hospital.state_path), listen)
    await until_ended(server, listen)
