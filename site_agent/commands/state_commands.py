"""Contains `site-agent status`, `doctor`, `privacy`, `audit` and `restored`: this site's state and log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from host.command_line import account, by_option, json_option, metrics_option, person, report_findings
from host.diagnosis import Finding, Severity, failure, fine
from host.log_commands import LogProgram, LogSource
from host.secret_files import hold_directory
from protos.errors import OperatorError
from site_agent.commands.site_options import config_option, opened_log
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder, gate_store_path

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@config_option
@json_option
@metrics_option
def status(path: Path, as_json: bool, as_metrics: bool) -> None:
    """Show what the running agent of this site does, and what this site has sent.

    Example: site-agent status --config hospital.yaml --json
    """
    hospital = read_hospital(path)

    from site_agent.service.status_socket import read_status, site_metrics

    facts = asyncio.run(read_status(hospital.state_path))
    if as_metrics:
        click.echo(site_metrics(facts, hospital.state_path), nl=False)
    elif as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        from rich.console import Console

        Console().print(_table(facts))


def _table(facts: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    days, rounds, error = facts["certificate_days_left"], facts["rounds"], facts["last_error"]
    at = "none" if facts["round"] is None else f"{facts['round']} of {rounds}"
    left, audit = facts["left"], facts["audit"]
    epsilons = ", ".join(f"{one:g}" for one in facts.get("privacy_spent", ()))
    for name, value in (
        ("site", facts["site"]),
        ("phase", facts["phase"]),
        ("run", facts["run"] or "none"),
        ("round", at),
        ("coordinator", facts["coordinator"] or "not called yet"),
        ("connected since", facts["connected_since"] or "not connected"),
        ("trainer", facts["trainer"]),
        ("certificate", "none yet" if days is None else f"{days:.0f} days left"),
        ("has left", f"{left['bytes']} bytes in {left['contributions']} contributions"),
        ("privacy spent", f"epsilon {epsilons}; see `site-agent privacy`" if epsilons else "nothing"),
        ("audit log", f"{audit['records']} records"),
        ("own void", facts.get("void") or "none"),
        ("last error", f"{error['at']} [{error['identifier']}] {error['what']}" if error else "none"),
    ):
        table.add_row(name, str(value))
    return table


@click.command()
@config_option
@json_option
def privacy(path: Path, as_json: bool) -> None:
    """Show how much of the patients' privacy budget (epsilon) was spent on which study, and the limits.

    Run this command under the gate's user account or as root.

    Example: site-agent privacy --config hospital.yaml --json
    """
    facts = _facts(read_hospital(path))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table("study", "spent at", "epsilon", "delta")
    for one in facts["payments"]:
        study, at = f"{one['study']} version {one['version']}", one["at"][:16].replace("T", " ")
        table.add_row(escape(study), at, f"{one['epsilon']:g}", f"{one['delta']:g}")
    console.print(table)
    if (until := facts["spent_until"]) is not None:
        console.print(f"An older state was restored here. A year's budget is spent until {until}.")
    if (limits := facts["limits"]) is None:
        console.print("The policy has no limits of epsilon (its key privacy), so no private study runs here.")
        return
    for study, epsilon in facts["studies"].items():
        console.print(f"{study}: epsilon {epsilon:.3g} of {limits['largest_epsilon_per_study']:g}")
    console.print(f"last 365 days: epsilon {facts['year']:.3g} of {limits['largest_epsilon_per_year']:g}")
    console.print(f"Epsilons of several runs are together, at delta {limits['delta']:g}. No command gives any back.")


def _facts(hospital: Hospital) -> dict[str, Any]:  # Any: JSON
    from site_agent.gate.privacy_ledger import PrivacyLedger, standing

    now, limits = datetime.now(UTC), hospital.policy.privacy
    ledger = PrivacyLedger(opened_log(hospital))
    payments = ledger.payments()
    until = ledger.spent_until()
    facts: dict[str, Any] = {
        "payments": [payment.model_dump() for payment in payments],
        "spent_until": None if until is None else f"{until:%F}",
        "limits": None,
    }
    if limits is not None:
        studies = sorted({payment.study for payment in payments})
        facts["limits"] = limits.model_dump()
        facts["studies"] = {study: standing(limits, study, payments, now).of_study for study in studies}
        facts["year"] = standing(limits, "", payments, now).of_year
    return facts


def _source_of(path: Path) -> LogSource:
    hospital = read_hospital(path)
    return LogSource(gate_store_path(hospital.state_path), hospital.site)


audit = LogProgram(command="site-agent", file="hospital.yaml", source_of=_source_of).group(
    "Check, read and export the log of everything that this site sent and received.\n\n"
    "With --config, run the command as the gate's user or as root. With --log, any user can check an exported log."
)


@click.command()
@config_option
@by_option
@click.option("--because", required=True, help="Reason in a few words, written to the audit log.")
def restored(path: Path, by: str, because: str) -> None:
    """Declare that an older copy of this site's state folder is in use. The coordinator sees this declaration, and
    accepts the older log. The privacy budget of one year counts as spent.

    Example: site-agent restored --config hospital.yaml --by "Anna Jones" --because "disk failed"
    """
    hospital, by, because = read_hospital(path), person(by), person(because, "--because")
    hold_directory(gate_folder(hospital.state_path), "site agent")
    with closing(opened_log(hospital)) as log:
        log.declare_restored(by=by, because=because, account=account())
    click.echo("Recorded. Payments since that copy may be missing, so the privacy budget of one year counts as spent.")


Side: TypeAlias = Literal["all", "agent", "gate", "trainer"]
_TRAINER_SECONDS = 600.0


@click.command()
@config_option
@json_option
@click.option(
    "--side",
    type=click.Choice(("all", "agent", "gate", "trainer")),
    default="all",
    show_default=True,
    help="Process to check. As services, the three processes run under three user accounts. Check each process under "
    "its own account, or all three as root.",
)
def doctor(path: Path, as_json: bool, side: Side) -> None:
    """Check whether this site has everything that it needs to take part.

    You can run this command at any time. The command changes nothing. For a test of the
    connection, it opens a stream and sends nothing on it.

    The exit status is 0 if no problem was found, 3 if there are only warnings, and 1 if a check failed.

    Example: site-agent doctor --config hospital.yaml
    """
    report_findings(_examine(path, side), as_json=as_json)


def _examine(path: Path, side: Side) -> list[Finding]:
    try:
        hospital = read_hospital(path)
    except OperatorError as wrong:
        return [failure("D401", wrong.what, wrong.remedy)]
    found = [fine("D401", f"{path.name} has no mistakes.")]
    if side in ("all", "gate"):
        from site_agent.service.site_doctor import examine_gate

        found += asyncio.run(examine_gate(hospital))
    if side in ("all", "agent"):
        from site_agent.service.site_doctor import examine_agent

        found += asyncio.run(examine_agent(hospital))
    if side in ("all", "trainer"):
        found += _trainer(path)
    return found


def _trainer(path: Path) -> list[Finding]:
    """Run the trainer's checks in a separate process, because this process has used the network."""
    words = [sys.executable, "-P", "-m", "site_agent.desk.trainer_doctor", "--config", str(path.resolve())]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=_TRAINER_SECONDS)
    if done.returncode:
        remedy = "Read its message above. If there is no message, check whether memory ran out."
        return [failure("D412", "The process that reads this hospital's table ended too early.", remedy)]
    return [
        Finding(
            **{key: one[key] for key in ("identifier", "says", "remedy")}, severity=Severity[one["severity"].upper()]
        )
        for one in json.loads(done.stdout)
    ]
