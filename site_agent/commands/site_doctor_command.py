"""Contains `site-agent doctor`, which lists problems that prevent this site from taking part, each with its remedy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypeAlias

import click

from host.command_line import json_option, report_findings
from host.diagnosis import Finding, Severity, failure, fine
from protos.errors import OperatorError
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital

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
            identifier=facts["identifier"],
            severity=Severity[facts["severity"].upper()],
            says=facts["says"],
            remedy=facts["remedy"],
        )
        for facts in json.loads(done.stdout)
    ]
