"""`site-agent privacy`: what was spent of patients' privacy, on what, and what the policy leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from site_agent.commands.site_options import config_option
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import audit_log_path


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def privacy(path: Path, as_json: bool) -> None:
    """Show the epsilon that each run has spent of this hospital's patients, and the limits.

    Run this as the gate's user or as root.

    Example: site-agent privacy --config hospital.yaml --json
    """
    facts = _facts(read_hospital(path))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    console = Console()
    table = Table("study", "version", "run", "spent at", "epsilon", "delta")
    for one in facts["payments"]:
        table.add_row(*(f"{one[key]}" for key in ("study", "version", "run", "at", "epsilon", "delta")))
    console.print(table)
    limits = facts["limits"]
    if limits is None:
        console.print("The policy has no limits of epsilon (its key privacy), so no private study runs here.")
        return
    for study, epsilon in facts["studies"].items():
        console.print(f"{study}: epsilon {epsilon:.3g} of {limits['largest_epsilon_per_study']:g}")
    console.print(f"last 365 days: epsilon {facts['year']:.3g} of {limits['largest_epsilon_per_year']:g}")
    console.print(f"Epsilons of several runs are together, at delta {limits['delta']:g}. Nothing gives any back.")


def _facts(hospital: Hospital) -> dict[str, Any]:  # Any: JSON
    from site_agent.gate.privacy_ledger import PrivacyLedger, standing
    from site_agent.gate.site_log import AuditLog

    now, limits = datetime.now(UTC), hospital.policy.privacy
    log = AuditLog(audit_log_path(hospital.state_path), site=hospital.site, now=lambda: now)
    payments = PrivacyLedger(hospital.state_path, log).payments()
    facts: dict[str, Any] = {"payments": [payment.model_dump() for payment in payments], "limits": None}
    if limits is not None:
        studies = sorted({payment.study for payment in payments})
        facts["limits"] = limits.model_dump()
        facts["studies"] = {study: standing(limits, study, payments, now).of_study for study in studies}
        facts["year"] = standing(limits, "", payments, now).of_year
    return facts
