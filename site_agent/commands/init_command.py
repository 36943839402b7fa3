"""Runs `site-agent init`, which writes hospital.yaml and a draft contract for a new hospital."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from host.command_line import PATH
from protos.errors import UsageError
from protos.plan.documents import parse_document
from protos.plan.methods import METHOD_NAMES
from site_agent.commands.data_commands import concepts_option, drafted, query_option, sheet_option
from site_agent.hospital import Hospital
from site_agent.trainer.isolation import give_up_network

# For each policy's name: the purpose of the policy and its keys.
POLICIES: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "strict": (
        "Masked sums over five hospitals or more, one method, two persons approve each plan.",
        {"methods": ["global-layers"], "secure_aggregation": "required", "smallest_sites": 5, "largest_rounds": 200,
         "largest_megabytes": 200.0, "largest_clipping_range": 8.0, "smallest_training_rows": 100, "approvers": 2},
    ),
    "usual": (
        "Masked sums over three hospitals or more, one person approves each plan.",
        {"methods": ["global-layers", "fedavg", "federated-prior", "local"], "secure_aggregation": "required",
         "smallest_sites": 3, "largest_rounds": 1000, "largest_megabytes": 2000.0, "largest_clipping_range": 8.0},
    ),
    "open": (
        "For rehearsals without real patients: every method, masked or not, three hospitals or more.",
        {"methods": list(METHOD_NAMES), "secure_aggregation": "not-required", "smallest_sites": 3,
         "largest_rounds": 20000, "largest_megabytes": 20000.0, "largest_clipping_range": 64.0},
    ),
}  # fmt: skip


@click.command()
@click.option("--site", prompt="Name of this hospital", help="Name of this hospital, exactly as in the invitation.")
@click.option("--table", prompt="Path of the table", type=PATH, help="Path of the table with this hospital's patients.")
@click.option(
    "--policy",
    prompt="Policy (strict, usual, open)",
    default="usual",
    type=click.Choice(list(POLICIES)),
    help=" ".join(f"{name}: {words}" for name, (words, _) in POLICIES.items()),
)
@click.option("--invitation", type=PATH, help="Path of the invitation file, if the file is already on this computer.")
@sheet_option
@query_option
@concepts_option
def init(
    site: str,
    table: Path,
    policy: str,
    invitation: Path | None,
    sheet: str | None,
    query: Path | None,
    plan: Path | None,
) -> None:
    """Write hospital.yaml and a draft of contract.yaml for a new hospital into this folder.

    The command asks for each option that you omit. The command never replaces an existing file.

    Example: site-agent init --site st-mary --table patients.csv --policy usual
    """
    give_up_network()  # before anything starts a thread

    files = (Path("hospital.yaml"), Path("contract.yaml"))
    for file in files:
        if file.exists():
            raise UsageError(
                what=f"The file {file} already exists.",
                consequence="No file was written, and nothing was sent.",
                remedy=f"Move {file} away, or run this command in another folder.",
            )
    draft = drafted(table, sheet, query, plan)
    text = hospital_text(site, table, policy, invitation)
    parse_document(text.encode(), Hospital, source="hospital.yaml", consequence="No file was written.")
    files[0].write_text(text)
    files[1].write_text(draft.text)
    click.echo(f"Wrote hospital.yaml with the policy {policy}: {POLICIES[policy][0]}")
    click.echo(f"Wrote contract.yaml, drafted from {draft.rows} rows. Every line is a guess: correct this file.")
    click.echo("Then run `site-agent data check --config hospital.yaml`.")


def hospital_text(site: str, table: Path, policy: str, invitation: Path | None) -> str:
    """Return the text of a new file hospital.yaml with one of the prepared policies."""
    words, keys = POLICIES[policy]
    invited = [] if invitation is None else [f"invitation: {json.dumps(str(invitation))}"]
    lines = [
        "# Written by `site-agent init`. All keys are explained in deploy/examples/hospital.yaml.",
        f"site: {json.dumps(site)}",
        *invited,
        "state: state",
        f"# {policy}: {words} Whatever a plan says, this wins.",
        "policy:",
        *(f"  {key}: {json.dumps(value)}" for key, value in keys.items()),
        "data:",
        f"  table: {json.dumps(str(table))}",
        "  contract: contract.yaml",
        "  split: {seed: 0}",
    ]
    return "\n".join(lines) + "\n"
