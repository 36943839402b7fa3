"""`site-agent move-state`: part the folders of a state that version 0.1 has written."""

from __future__ import annotations

from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command("move-state")
@config_option
@click.option("--give-up-run", "gives_up", is_flag=True, help="Give up the current run. This needs --by.")
@click.option("--by", help="Name of the person who gives up the run, for the audit log.")
def move_state(path: Path, gives_up: bool, by: str | None) -> None:
    """Divide a state of version 0.1 into one folder for each of the three programs.

    At a terminal, `site-agent join` does this by itself. If the programs run as services, stop the services of 0.1
    and install the packages first. Then run this as root.

    Example: site-agent move-state --config hospital.yaml
    """
    from protos.errors import UsageError
    from site_agent.gate.state_moves import move_old_state

    hospital = read_hospital(path)
    if gives_up != bool(by and by.strip() and by.isprintable()):
        raise UsageError(
            what="--give-up-run and --by belong together.",
            consequence="Nothing was moved.",
            remedy="Give both, or neither.",
        )
    if move_old_state(hospital.state_path, hospital.site, gives_up_by=by):
        click.echo("The state of version 0.1 is parted into the folders agent and gate.")
    else:
        click.echo("This state has parted folders already; nothing was moved.")
