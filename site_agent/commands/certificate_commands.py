"""Contains `site-agent renew`, which replaces this site's certificate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command()
@config_option
def renew(path: Path) -> None:
    """Replace this site's TLS key and certificate now. Stop this site's gate process first. The site also renews its
    certificate by itself.

    The command sends a request to the coordinator's enrolment port. The site's identity key does not change. If the
    programs run as services, run this command as root.

    Example: site-agent renew --config hospital.yaml
    """
    hospital = read_hospital(path)

    from site_agent.service.joining import renew_now

    ends = asyncio.run(renew_now(hospital, path.resolve())).expiry()
    click.echo(f"The certificate of {hospital.site} is renewed, with a new key, until {ends:%Y-%m-%d %H:%M} UTC.")
    click.echo("When `site-agent join` has connected with it, the coordinator refuses the previous certificate.")
