"""`site-agent status`: where the agent of this site stands, asked over its socket."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from protos.errors import UnavailableError
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital

_SEPARATION: Final = {
    False: "kept from the agent by the kernel: the table belongs to another user",
    True: "the agent's user may read the table; only the program itself keeps away",
    None: "not known",
}


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(path: Path, as_json: bool) -> None:
    """Show the state of the running agent, and what left this site.

    Example: site-agent status --config hospital.yaml --json
    """
    hospital = read_hospital(path)

    from site_agent.gate.status_socket import read_status

    answer = asyncio.run(read_status(hospital.state_path))
    if answer is None:
        raise UnavailableError(
            what="No site agent is running under this configuration, or this user may not ask it.",
            consequence="Nothing was changed.",
            remedy="Start it with `site-agent join`, or ask as the user that it runs as.",
            code="E030",
        )
    facts: dict[str, Any] = json.loads(answer)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        Console().print(_table(facts))


def _table(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None)
    days, rounds, error = facts["certificate_days_left"], facts["rounds"], facts["last_error"]
    at = "none" if facts["round"] is None else f"{facts['round'] + 1} of {rounds}"
    left, audit, pace = facts["left"], facts["audit"], facts.get("seconds_a_round")
    for name, value in (
        ("site", facts["site"]),
        ("phase", _phase(facts)),
        ("run", facts["run"] or "none"),
        ("round", at),
        ("coordinator", facts["coordinator"] or "not called yet"),
        ("connected since", facts["connected_since"] or "not connected"),
        ("last contact", _ago(facts.get("last_contact"))),
        ("pace", "not known yet" if pace is None else f"{pace:.3g} seconds a round"),
        ("ends about", facts.get("ends") or "not known"),
        ("trainer", facts["trainer"]),
        ("patients", _SEPARATION[facts.get("agent_may_read_patients")]),
        ("certificate", "none yet" if days is None else f"{days:.0f} days left"),
        ("has left", f"{left['bytes']} bytes in {left['contributions']} contributions"),
        ("audit log", f"{audit['records']} records, {audit['not_cosigned']} not cosigned"),
        ("last error", f"{error['at']} [{error['identifier']}] {error['what']}" if error else "none"),
    ):
        table.add_row(name, str(value))
    return table


def _phase(facts: dict[str, Any]) -> str:
    since = facts.get("concluding_since")
    if since is None:
        return str(facts["phase"])
    return f"concluding: all rounds are made, and the trainer compares the models since {_ago(since)}"


def _ago(at: str | None) -> str:
    """A time with its age, both as they are told."""
    if at is None:
        return "none since the agent started"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    age = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"{at}, {age} ago"
