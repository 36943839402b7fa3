"""Implements `coordinator audit`, which reads the coordinator's audit log, and `coordinator restored`."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click

from coordinator.commands.operator_commands import config_option
from coordinator.configuration import read_configuration
from coordinator.storage.history import store_path
from host.audit_log import AuditLog
from host.command_line import account, by_option, person
from host.log_commands import LogProgram, LogSource
from host.secret_files import hold_directory


def _source_of(path: Path) -> LogSource:
    return LogSource(store_path(Path(read_configuration(path).state)), None)


audit = LogProgram(command="coordinator", file="coordinator.yaml", source_of=_source_of).group(
    "Check, read and export the log of all that the coordinator decided and sent."
)


@click.command()
@config_option
@by_option
@click.option("--because", required=True, help="Reason in a few words, written to the audit log.")
def restored(path: Path, by: str, because: str) -> None:
    """Declare that an older copy of the coordinator's state folder is in use. All sites see this declaration, and
    accept the older log.

    Example: coordinator restored --config coordinator.yaml --by "Anna Jones" --because "disk failed"
    """
    state, by, because = Path(read_configuration(path).state), person(by), person(because, "--because")
    hold_directory(state, "coordinator")
    with closing(AuditLog(store_path(state), site=None, now=lambda: datetime.now(UTC))) as log:
        log.declare_restored(by=by, because=because, account=account())
    click.echo("Recorded. Unfinished runs continue with much higher numbers of attempts and key sessions.")
