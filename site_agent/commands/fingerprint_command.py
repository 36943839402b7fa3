"""`site-agent fingerprints`: the sheet of identity keys that two persons compare with the other hospitals and sign."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from protos.errors import RefusedError
from site_agent.commands.approval_commands import own_fingerprint, read_plan
from site_agent.commands.site_options import config_option, plan_option
from site_agent.desk.fingerprint_sheet import SIGNATURES, own_line, sheet_sections
from site_agent.desk.plan_review import as_lines
from site_agent.desk.review_page import review_page
from site_agent.hospital import read_hospital


@click.command()
@config_option
@plan_option
@click.option("--html", "page", type=click.Path(path_type=Path), help="Also write the sheet as a page for printing.")
def fingerprints(path: Path, plan_path: Path | None, page: Path | None) -> None:
    """Print the sheet of all sites' identity keys, to compare with the other hospitals and to sign.

    The exit status is 77 if the plan does not list this computer's own key for this site.

    Example: site-agent fingerprints --config hospital.yaml --plan plan.yaml --html fingerprints.html
    """
    hospital = read_hospital(path)
    plan, own = read_plan(hospital, plan_path), own_fingerprint(hospital)
    sections = list(sheet_sections(plan, site=hospital.site, own=own))
    for line in as_lines(sections):
        click.echo(line)
    if page is not None:
        from pki.store import write_public

        title = f"{plan.study}, version {plan.version}: identity keys, compared by {hospital.site}"
        write_public(page, review_page(title, sections, signatures=SIGNATURES).encode())
        click.echo(f"Written to {page}.")
    if own_line(plan, site=hospital.site, own=own).endswith("Do not approve it."):
        sys.exit(RefusedError.exit_status)
