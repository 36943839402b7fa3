"""Implements `coordinator audit`, which checks, prints and exports the coordinator's audit log, or starts a new one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from audit.checkpoint_memory import kept_checkpoints, known_generation, own_checkpoint
from audit.reading.log_commands import Desk, LogProgram, because_option, restarted
from audit.reading.log_keys import checkpoints_text
from audit.reading.log_verification import KnownKeys
from audit.restarting import restart_log
from coordinator.commands.operator_commands import config_option
from coordinator.configuration import read_configuration
from coordinator.operations.coordinator_log import log_path
from host.command_line import PATH, by_option, person
from host.restoring import refuse_unfinished
from host.secret_files import hold_directory, write_public
from pki.authority import Authority
from pki.identity_key import public_bytes
from pki.register import Register
from protos.wire.log_checkpoints import COORDINATOR, owner_of_site


def _desk_of(path: Path) -> Desk:
    configuration = read_configuration(path)
    authority, state = Authority.load(Path(configuration.authority)), Path(configuration.state)
    with Register(authority.register_path) as register:
        keys = {owner_of_site(site.name): site.identity_key for site in register.sites() if site.identity_key}
    last = own_checkpoint(state / "witness")
    known = KnownKeys({**keys, COORDINATOR: public_bytes(authority.identity_key())})
    return Desk(log_path(state), COORDINATOR, known, (last,) if last else ())


audit = LogProgram(command="coordinator", file="coordinator.yaml", desk_of=_desk_of, is_site=False).group(
    "Check, read and export the log of all that the coordinator decided and sent."
)


@audit.command()
@config_option
@click.option("--output", type=PATH, required=True, help="File to which the command writes the checkpoints.")
def checkpoints(path: Path, output: Path) -> None:
    """Write a file with the newest cosigned checkpoint of each site's audit log. A person needs this file to
    verify a log.

    Example: coordinator audit checkpoints --config coordinator.yaml --output checkpoints.json
    """
    found = kept_checkpoints(Path(read_configuration(path).state) / "witness")
    write_public(output, checkpoints_text(found).encode())
    click.echo(f"{len(found)} checkpoints written to {output}.")


@audit.command()
@config_option
@by_option
@because_option
def restart(path: Path, by: str, because: str) -> None:
    """Rename a damaged audit log, and start a new one. All sites and every reader of the log see this restart.

    Example: coordinator audit restart --config coordinator.yaml --by "Anna Jones" --because "disk failed"
    """
    by, because = person(by), person(because, "--because")
    state = Path(read_configuration(path).state)
    refuse_unfinished(state)
    hold_directory(state, "coordinator")
    known = known_generation(state / "witness")
    click.echo(restarted(restart_log(log_path(state), site=None, by=by, because=because, now=_now, known=known), by))


def _now() -> datetime:
    return datetime.now(UTC)
