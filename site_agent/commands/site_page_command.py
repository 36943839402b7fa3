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
@click.option("--listen", default="127.0.0.1:8481", show_default=True, help="Loopback HOST:PORT, or unix:/path.")
def page(path: Path, listen: str) -> None:
    """Serve this site's page to this computer's own browsers, until it is ended; nothing can be changed there.

    It shows what has left, by the audit log. What the site gained is on the page of `site-agent report`.

    Example: site-agent page --config hospital.yaml --listen 127.0.0.1:8481
    """
    hospital = read_hospital(path)
    check_local(listen, "Nothing was started; nothing left this site.")
    asyncio.run(_serve(hospital, listen))


async def _serve(hospital: Hospital, listen: str) -> None:
    from site_agent.gate.site_page import SitePage, serve_page

    server = await serve_page(SitePage(hospital.site, hospital.state_path), listen)
    await until_ended(server, listen)
