"""Contains `site-agent audit`, which checks, prints and exports this site's audit log, or starts a new audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from audit.checkpoint_memory import kept_checkpoints, known_generation, own_checkpoint, peer_key
from audit.reading.log_commands import Desk, LogProgram, because_option, restarted
from audit.reading.log_keys import checkpoints_text
from audit.reading.log_verification import KnownKeys
from audit.restarting import restart_log
from host.command_line import PATH, by_option, person
from host.restoring import refuse_unfinished
from host.secret_files import hold_directory, write_public
from pki.identity_key import has_identity_key, public_bytes, read_identity_key
from protos.wire.log_checkpoints import COORDINATOR, owner_of_site
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital
from site_agent.state_folders import audit_log_path, gate_folder


def _desk_of(path: Path) -> Desk:
    hospital = read_hospital(path)
    folder = gate_folder(hospital.state_path)
    keys, witness = {}, folder / "witness"
    if has_identity_key(folder):
        keys[owner_of_site(hospital.site)] = public_bytes(read_identity_key(folder))
    coordinator = peer_key(witness, COORDINATOR)
    if coordinator is not None:
        keys[COORDINATOR] = coordinator
    last = own_checkpoint(witness)
    kept = (last,) if last else ()
    return Desk(audit_log_path(hospital.state_path), owner_of_site(hospital.site), KnownKeys(keys), kept)


audit = LogProgram(command="site-agent", file="hospital.yaml", desk_of=_desk_of, is_site=True).group(
    "Check, read and export the log of everything that this site sent and received.\n\n"
    "With --config, run the command as the gate's user or as root. With --log, any user can check a copy of the log."
)


@audit.command()
@config_option
@click.option("--output", type=PATH, required=True, help="File to which the command writes the checkpoints.")
def checkpoints(path: Path, output: Path) -> None:
    """Write the newest checkpoint of the coordinator's audit log that this site has cosigned to a file.

    A person needs this file to verify the log.

    Example: site-agent audit checkpoints --config hospital.yaml --output checkpoints.json
    """
    found = kept_checkpoints(gate_folder(read_hospital(path).state_path) / "witness")
    write_public(output, checkpoints_text(found).encode())
    click.echo(f"Written to {output}.")


@audit.command(name="restart")
@config_option
@by_option
@because_option
def restart(path: Path, by: str, because: str) -> None:
    """Rename a damaged audit log, and start a new one. The coordinator and every reader of the log see this restart.

    Example: site-agent audit restart --config hospital.yaml --by "Anna Jones" --because "disk failed"
    """
    by, because = person(by), person(because, "--because")
    hospital = read_hospital(path)
    refuse_unfinished(hospital.state_path)
    hold_directory(gate_folder(hospital.state_path), "site agent")
    log_path = audit_log_path(hospital.state_path)
    known = known_generation(log_path.parent / "witness")
    generation = restart_log(log_path, site=hospital.site, by=by, because=because, now=_now, known=known)
    click.echo(restarted(generation, by))


def _now() -> datetime:
    return datetime.now(UTC)
