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
    """Replace this site's TLS key and certificate now, while its agent does not run; it also happens by itself.

    It asks at the coordinator's enrolment port, and proves itself with the identity key, which stays the same.

    Example: site-agent renew --config hospital.yaml
    """
    hospital = read_hospital(path)

    from site_agent.agent.joining import renew_now

    keys = asyncio.run(renew_now(hospital))
    click.echo(
        f"The certificate of {hospital.site} is renewed, with a new key, until {keys.expiry():%Y-%m-%d %H:%M} UTC."
    )
    click.echo("The one before it is refused as soon as `site-agent join` has connected with this one.")
