"""`site-agent renew`: this site's next certificate at once, instead of from its thirtieth day on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command()
@config_option
def renew(path: Path) -> None:
    """Replace this site's TLS key and certificate now. Stop its gate first. Certificates also renew by themselves.

    The request goes to the coordinator's enrolment port. The identity key does not change. If the programs run as
    services, run this as root.

    Example: site-agent renew --config hospital.yaml
    """
    hospital = read_hospital(path)

    from site_agent.gate.joining import renew_now

    ends = asyncio.run(renew_now(hospital, path.resolve())).expiry()
    click.echo(f"The certificate of {hospital.site} is renewed, with a new key, until {ends:%Y-%m-%d %H:%M} UTC.")
    click.echo("The one before it is refused as soon as `site-agent join` has connected with this one.")
