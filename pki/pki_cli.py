"""Implements the command `pki`: create a federation's certificate authority, and decide which sites belong to it.

In this package only this file reads the clock, the terminal and the command line. An operator never sees a traceback:
every failure is three sentences on standard error and a documented exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from host import secret_files
from host.command_line import PATH, finish
from pki.authority import Authority, FederationRecord, new_passphrase
from pki.certificates import is_renewal_due
from pki.enrolment_decisions import invite_site
from pki.invitation import Invitation
from pki.names import Address, federation_name, site_name
from pki.register import Register, SiteRecord, SiteState
from protos.errors import ConfigurationError

_directory = click.option(
    "--directory",
    type=PATH,
    required=True,
    help="Directory of the federation's certificate authority, made by `pki init`.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(finish("pki", commands, arguments))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="global-layers")
def commands() -> None:
    """Manage a federation's certificate authority, invitations and register of sites."""


@commands.command(
    epilog="Example: pki init --federation heart-study --address coordinator.example.org:8443 "
    "--enrolment-address coordinator.example.org:8444 --directory /var/lib/coordinator/pki"
)
@click.option("--federation", required=True, help="Lowercase letters, digits and hyphens.")
@click.option("--address", required=True, help="HOST:PORT to which sites connect during runs.")
@click.option("--enrolment-address", required=True, help="HOST:PORT where sites enrol.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Another name or IP address of the coordinator. Repeat the option for more names.",
)
@_directory
def init(federation: str, address: str, enrolment_address: str, hosts: tuple[str, ...], directory: Path) -> None:
    """Create the certificate authority, the coordinator's certificate and an empty register of sites.

    The program creates a passphrase for the root key and prints it once.
    """
    record = FederationRecord(
        federation=federation_name(federation),
        coordinator=Address.parse(address),
        enrolment=Address.parse(enrolment_address),
        hosts=hosts,
    )
    passphrase = new_passphrase()
    authority = Authority.create(directory, record, passphrase=passphrase, now=_now())
    click.echo(f"Created the authority of federation {federation} in {directory}.")
    click.echo(f"Passphrase of the root key, shown only once: {passphrase}")
    click.echo(f"Move {authority.sealed_root_key_path} to a place that is not on this computer.")


@commands.command(epilog="Example: pki invite st-mary --directory /var/lib/coordinator/pki --output st-mary.invitation")
@click.argument("site")
@_directory
@click.option("--output", type=PATH, required=True, help="Output file for the invitation, mode 0600.")
@click.option("--valid-hours", type=click.FloatRange(min=0, min_open=True, max=24 * 30), default=72, show_default=True)
@click.option(
    "--pre-approved",
    is_flag=True,
    help="Skip `pki approve`. Then anyone who has this invitation file can get the certificate.",
)
def invite(site: str, directory: Path, output: Path, valid_hours: float, pre_approved: bool) -> None:
    """Invite SITE: write the invitation file for the site's operator, and record the invitation in the register."""
    if output.exists():
        raise ConfigurationError(
            what=f"{output} exists already.",
            consequence="The existing file is unchanged, and no invitation was made.",
            remedy="Choose another path for --output.",
        )
    authority = Authority.load(directory)
    name, valid_for = site_name(site), timedelta(hours=valid_hours)
    with Register(authority.register_path) as register:
        invitation = invite_site(
            authority, register, name, valid_for=valid_for, is_pre_approved=pre_approved, now=_now(), output=output
        )
    click.echo(f"Invitation of site {site} written to {output}, valid until {invitation.expires:%Y-%m-%d %H:%M} UTC.")
    click.echo(f"Fingerprint to read aloud: {invitation.fingerprint}")


@commands.command(
    epilog="Example: pki approve st-mary --directory /var/lib/coordinator/pki "
    "--fingerprint abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567"
)
@click.argument("site")
@_directory
@click.option(
    "--fingerprint", required=True, help="Fingerprint of the site's identity key, that the site's operator read to you."
)
def approve(site: str, directory: Path, fingerprint: str) -> None:
    """Approve the certificate of SITE, after the site's operator read the fingerprint to you."""
    with Register(Authority.load(directory).register_path) as register:
        register.approve(site_name(site), fingerprint, _now())
    click.echo(f"Approved site {site}. The site receives its certificate at its next request.")


@commands.command(name="list", epilog="Example: pki list --directory /var/lib/coordinator/pki --plan")
@_directory
@click.option(
    "--plan", "as_plan", is_flag=True, help="Print the `sites:` section of a plan, with active and approved sites."
)
def list_sites(directory: Path, as_plan: bool) -> None:
    """Show every site with its state and the fingerprint of its identity key."""
    with Register(Authority.load(directory).register_path) as register:
        sites = register.sites()
    if as_plan:
        click.echo(_plan_snippet(sites))
    else:
        width = max((len(site.name) for site in sites), default=0)
        for site in sites:
            click.echo(f"{site.name:<{width}}  {site.state:<9}  {site.identity_fingerprint or '-'}")
        if not sites:
            click.echo("No site has been invited yet.")


@commands.command(epilog="Example: pki revoke st-mary --directory /var/lib/coordinator/pki")
@click.argument("site")
@_directory
def revoke(site: str, directory: Path) -> None:
    """Remove SITE from the federation. A running coordinator applies the removal within a second."""
    with Register(Authority.load(directory).register_path) as register:
        register.revoke(site_name(site), _now())
    click.echo(f"Revoked site {site}. Its certificates are no longer accepted.")


@commands.command(epilog="Example: pki renew --directory /var/lib/coordinator/pki --authority passphrase")
@_directory
@click.option(
    "--authority",
    "passphrase_file",
    type=PATH,
    help="File (mode 0600) with the root key's passphrase. Also renew the issuing certificate.",
)
def renew(directory: Path, passphrase_file: Path | None) -> None:
    """Renew the coordinator's certificate. With --authority, also renew the issuing certificate of the authority."""
    authority = Authority.load(directory)
    if passphrase_file is None:
        authority.renew_coordinator(_now())
    else:
        passphrase = secret_files.read_secret(passphrase_file).decode("utf-8", "replace").strip()
        authority.renew_issuing(passphrase, _now())
    leaf = authority.coordinator_leaf()
    click.echo(f"The coordinator's certificate is valid until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.")
    if is_renewal_due(leaf, _now()):
        click.echo("The issuing certificate expires then. Run `pki renew --authority FILE`.")


@commands.command(epilog="Example: pki inspect st-mary.invitation")
@click.argument("file", type=PATH)
def inspect(file: Path) -> None:
    """Explain an invitation in plain words. Its token is not shown."""
    invitation = Invitation.from_json(secret_files.read_public(file))
    click.echo(f"Invitation of site {invitation.site} to federation {invitation.federation}")
    click.echo(f"  coordinator  {invitation.coordinator}")
    click.echo(f"  enrolment    {invitation.enrolment}")
    expired = " (expired)" if _now() >= invitation.expires else ""
    click.echo(f"  expires      {invitation.expires:%Y-%m-%d %H:%M} UTC{expired}")
    click.echo(f"  fingerprint  {invitation.fingerprint}")


def _now() -> datetime:
    return datetime.now(UTC)


def _plan_snippet(sites: Sequence[SiteRecord]) -> str:
    # A site that is not approved yet is omitted, because nobody has compared its key.
    listed = [site for site in sites if site.state in (SiteState.ACTIVE, SiteState.APPROVED)]
    lines = [f"  - name: {site.name}\n    identity: {site.identity_fingerprint}" for site in listed]
    return "\n".join(["sites:", *lines]) if lines else "sites: []"
