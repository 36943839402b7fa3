"""Implements `pki own-authority`, which accepts a hospital's own certificate authority for its site only."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from host.command_line import PATH
from pki import store
from pki.authority import Authority
from pki.names import site_name
from pki.own_authority import OwnAuthority
from pki.own_register import OwnAuthorities
from pki.register import Register

directory_option = click.option(
    "--directory",
    type=PATH,
    required=True,
    help="Directory of the federation's certificate authority, made by `pki init`.",
)
_site = click.option(
    "--site", required=True, help="The site for which the certificate authority may issue certificates."
)


@click.group("own-authority", epilog="Example: pki own-authority list --directory /var/lib/coordinator/pki")
def own_authority() -> None:
    """Manage certificate authorities of hospitals that issue the certificate of their own site."""


@own_authority.command(
    epilog="Example: pki own-authority add --site st-mary --directory /var/lib/coordinator/pki "
    "--fingerprint abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567 st-mary-authority.pem"
)
@click.argument("certificate", type=PATH)
@_site
@directory_option
@click.option("--fingerprint", required=True, help="Fingerprint of CERTIFICATE, as the hospital read it to you.")
def add(certificate: Path, site: str, directory: Path, fingerprint: str) -> None:
    """Trust the authority in CERTIFICATE for one site. The site must be a member. No restart is needed.

    The hospital runs `pki inspect CERTIFICATE` and reads the fingerprint of the certificate to you. The site's current
    certificate stays valid until the site connects with a certificate of its own authority.
    """
    authority = Authority.load(directory)
    with Register(authority.register_path) as register:
        added = OwnAuthorities(register).add(
            site_name(site),
            store.read_public(certificate),
            fingerprint,
            federation=authority.federation,
            kin=authority.authorities(),
            now=datetime.now(UTC),
        )
    ends = added.certificate.not_valid_after_utc
    click.echo(f"This authority is accepted for {site}, and for no other site, until {ends:%Y-%m-%d %H:%M} UTC.")


@own_authority.command(
    epilog="Example: pki own-authority remove --site st-mary --directory /var/lib/coordinator/pki "
    "--fingerprint abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567"
)
@_site
@directory_option
@click.option(
    "--fingerprint",
    help="Remove only the certificate authority with this fingerprint. Without this option, remove all certificate "
    "authorities of the site.",
)
def remove(site: str, directory: Path, fingerprint: str | None) -> None:
    """Stop trusting a site's own authority. A running coordinator applies the change within a second.

    Certificates of this authority are no longer accepted, and streams with these certificates are closed. The site
    stays a member. With `site-agent renew` the site receives a certificate of the federation.
    """
    with Register(Authority.load(directory).register_path) as register:
        gone = OwnAuthorities(register).remove(site_name(site), fingerprint)
    for one in gone:
        click.echo(f"The authority {one.fingerprint} and its certificates are no longer accepted for {site}.")


@own_authority.command(name="list", epilog="Example: pki own-authority list --directory /var/lib/coordinator/pki")
@directory_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_authorities(directory: Path, as_json: bool) -> None:
    """List the trusted certificate authorities of hospitals, each with its site and its expiry date."""
    with Register(Authority.load(directory).register_path) as register:
        own = OwnAuthorities(register)
        found, in_use = own.all(), own.sites_in_use()
    if as_json:
        click.echo(json.dumps([_facts(one) | {"in_use": one.site in in_use} for one in found], indent=2))
        return
    for one in found:
        ends = one.certificate.not_valid_after_utc
        used = "in use" if one.site in in_use else "not in use yet"
        click.echo(f"{one.site}  {one.fingerprint}  until {ends:%Y-%m-%d}  {used}")
    if not found:
        click.echo("No hospital has registered its own authority.")


def _facts(one: OwnAuthority) -> dict[str, object]:
    return {
        "site": one.site,
        "fingerprint": one.fingerprint,
        "sha256": one.sha256,
        "name": one.certificate.subject.rfc4514_string(),
        "ends": one.certificate.not_valid_after_utc.isoformat(),
    }
