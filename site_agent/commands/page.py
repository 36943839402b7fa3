"""`site-agent page`: where the agent stands and what has left, for a browser on this computer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from pydantic import TypeAdapter, ValidationError

from protos.errors import UsageError
from protos.fields import LocalAddress
from site_agent.commands.options import config_option
from site_agent.config import Hospital, read_hospital


@click.command()
@config_option
@click.option("--listen", default="127.0.0.1:8481", show_default=True, help="Loopback HOST:PORT, or unix:/path.")
def page(path: Path, listen: str) -> None:
    """Serve this site's page to this computer's own browsers, until it is ended; nothing can be changed there.

    It shows what has left, by the audit log. What the site gained is on the page of `site-agent report`.

    Example: site-agent page --config hospital.yaml --listen 127.0.0.1:8481
    """
    hospital = read_hospital(path)
    try:
        TypeAdapter(LocalAddress).validate_python(listen)
    except ValidationError as cause:
        raise UsageError(
            what=f"--listen {listen} is no address of this computer alone.",
            consequence="Nothing was started; nothing left this site.",
            remedy="Give 127.0.0.1:PORT, [::1]:PORT or unix:/path; others come in by the institution's own proxy.",
        ) from cause
    asyncio.run(_serve(hospital, listen))


async def _serve(hospital: Hospital, listen: str) -> None:
    from site_agent.boundary.page import SitePage, serve_page

    server = await serve_page(SitePage(hospital.site, hospital.state_path), listen)
    shown = listen if listen.startswith("unix:") else f"http://{listen}/"
    click.echo(f"The page is at {shown}", err=True)
    async with server:
        await server.serve_forever()
