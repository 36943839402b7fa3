"""Contains `site-agent renew`, `request-certificate` and `install-certificate`, which replace this site's certificate.

`request-certificate` and `install-certificate` are for a certificate of the hospital's own authority, and open no
connection. The agent sends the new certificate to the coordinator on its stream. If no agent runs, `site-agent renew`
sends it.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from host.command_line import PATH
from pki import own_keys, store
from pki.names import site_name, site_uri
from pki.own_authority import authority_fingerprint
from pki.site_keys import SiteKeys
from protos.errors import ConfigurationError, UsageError
from site_agent.commands.site_options import config_option
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import agent_folder


@click.command("request-certificate")
@config_option
@click.option("--output", type=PATH, required=True, help="File to which the command writes the certificate request.")
@click.option("--new-key", "has_new_key", is_flag=True, help="Make a new key, and delete the earlier request.")
def request_certificate(path: Path, output: Path, has_new_key: bool) -> None:
    """Write a certificate request for the hospital's own certificate authority. The private key stays at this site.

    The site's current key and certificate do not change. A second request uses the same new key as the first request.
    Run this command under the agent's user account or as root.

    Example: site-agent request-certificate --config hospital.yaml --output st-mary.request
    """
    hospital = read_hospital(path)
    if output.is_symlink() or output.exists():  # checked before a key is created or, with --new-key, deleted
        raise UsageError(
            what=f"{output} exists already.",
            consequence="The existing file is unchanged, and no request was made.",
            remedy="Choose another name for --output, or move the existing file away.",
        )
    keys = _keys_of(hospital)
    request = own_keys.waiting_request(keys, site_name(hospital.site), has_new_key=has_new_key)
    store.write_public(output, request)
    click.echo(f"The request is in {output}. Send it to your hospital's authority. The certificate must have:")
    click.echo(f"  one name, the URI {site_uri(keys.federation(), hospital.site)}, and no other")
    click.echo("  only the usage digital signature, only the extended usage client authentication, at most 398 days")
    click.echo("Then run `site-agent install-certificate` with the whole certificate chain.")


@click.command("install-certificate")
@config_option
@click.argument("chain", type=PATH)
def install_certificate(path: Path, chain: Path) -> None:
    """Install a certificate for this site that the hospital's own certificate authority issued.

    CHAIN is a PEM file: first the site's certificate, last the authority's certificate.

    The running agent starts to use the new certificate by itself, without interrupting a study. If the agent is not
    running, use `site-agent renew`. The current certificate stays in use until the agent uses the new certificate.

    Example: site-agent install-certificate --config hospital.yaml st-mary.chain
    """
    hospital = read_hospital(path)
    found = own_keys.stage(_keys_of(hospital), store.read_public(chain), site_name(hospital.site), datetime.now(UTC))
    ends = found.leaf.not_valid_after_utc
    click.echo(f"The certificate of {hospital.site} is in order, until {ends:%Y-%m-%d %H:%M} UTC.")
    click.echo(f"Fingerprint of its authority, to read aloud to the office: {authority_fingerprint(found.authority)}")
    click.echo("A running agent sends it to the coordinator. If no agent runs, run `site-agent renew`.")


def _keys_of(hospital: Hospital) -> SiteKeys:
    directory = agent_folder(hospital.state_path)
    if not SiteKeys.exists(directory) or not SiteKeys(directory).is_enrolled():
        raise ConfigurationError(
            what="This site has no certificate of the federation yet.",
            consequence="Nothing was written.",
            remedy="First run `site-agent join` with the invitation. The federation office then receives this site's "
            "identity key.",
        )
    # The keys are not loaded, because loading them would complete a renewal that a running agent has begun.
    return SiteKeys(directory)


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
