"""Contains `site-agent audit`, which reads this site's audit log, and `site-agent restored`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from host.command_line import account, by_option, person
from host.log_commands import LogProgram, LogSource
from host.secret_files import hold_directory
from site_agent.commands.site_options import config_option, opened_log
from site_agent.hospital import read_hospital
from site_agent.state_folders import gate_folder, gate_store_path


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
