"""`site-agent move-state`: part the folders of a state that version 0.1 has written."""

from __future__ import annotations

from pathlib import Path

import click

from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital


@click.command("move-state")
@config_option
@click.option("--give-up-run", "gives_up", is_flag=True, help="Give up a run that is under way; needs --by.")
@click.option("--by", help="The name of the person who gives the run up, as the audit log has it.")
def move_state(path: Path, gives_up: bool, by: str | None) -> None:
    """Give each of the three programs its own folder, in a state that version 0.1 has written.

    At a terminal `site-agent join` does this by itself. Where the programs run as services, run this as root after the
    services of 0.1 have stopped and the packages have made the folders `agent` and `gate`.

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
