"""Contains `site-agent backup`, which saves a site's whole state in one file, and `site-agent restore`.

The file has the site's keys, its private layers, models and reports. Protect it like patient data. The audit log of a
restored state begins again with a higher generation number. So the coordinator, which may have confirmed later records,
accepts it. The restored log is kept beside it. Others detect an older state by rounds and attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from audit.checkpoint_memory import known_generation
from audit.restarting import restart_log
from host import restoring
from host.backup_archive import read_catalogue, require_readable, write_backup
from host.backup_key import keep_key, key_for_restoring, made_key, sealing_key
from host.command_line import PATH, account
from host.secret_files import hold_directory, make_private_directory, settle_layout
from protos.errors import ConfigurationError
from site_agent.commands.site_options import config_option
from site_agent.hospital import read_hospital
from site_agent.state_folders import audit_log_path, gate_folder

PROGRAM: Final = "site agent"


@click.command()
@click.argument("file", type=PATH)
@config_option
def backup(file: Path, path: Path) -> None:
    """Write the whole state of a stopped site to one backup file. Protect the backup file like patient data.

    Example: site-agent backup /mnt/safe/st-mary.backup --config hospital.yaml
    """
    hospital = read_hospital(path)
    state = hospital.state_path
    restoring.refuse_unfinished(state)
    if not state.is_dir():
        raise ConfigurationError(
            what=f"The state directory {state} does not exist.",
            consequence="No backup was made.",
            remedy="Correct the path of this site's state directory (`state`) in hospital.yaml.",
        )
    make_private_directory(gate_folder(state))
    hold_directory(gate_folder(state), PROGRAM)
    settle_layout(gate_folder(state), PROGRAM)
    made, key = _now().isoformat(timespec="seconds"), sealing_key(made_key(gate_folder(state)))
    catalogue = write_backup(
        file,
        {"state": state},
        program=PROGRAM,
        name=hospital.site,
        made=made,
        software=version("global-layers"),
        key=key,
    )
    total = sum(entry.size for entry in catalogue.entries.values())
    click.echo(f"{len(catalogue.entries)} files and folders, {total / 1e6:.1f} MB, are in {file}.")
    click.echo("It contains this site's secret keys and its models. Protect it like patient data.")
    click.echo("It is sealed. Print the key of the seal with `site-agent backup-key`, and keep the paper elsewhere.")


@click.command("backup-key")
@config_option
def backup_key(path: Path) -> None:
    """Print the key that protects this site's backups against forgery. Keep this key on paper, away from the backups.

    Example: site-agent backup-key --config hospital.yaml
    """
    state = read_hospital(path).state_path
    restoring.refuse_unfinished(state)
    folder = gate_folder(state)
    make_private_directory(folder)
    click.echo(made_key(folder))


@click.command()
@click.argument("file", type=PATH)
@config_option
@click.option("--key-file", type=PATH, help="Text file with the backup key, written exactly as on the printed sheet.")
@click.option("--unauthenticated", is_flag=True, help="Restore a backup even if the program cannot check who made it.")
def restore(file: Path, path: Path, key_file: Path | None, unauthenticated: bool) -> None:
    """Check a backup file, then restore the site's state from the file. A newer state is never replaced.

    Example: site-agent restore /mnt/safe/st-mary.backup --config hospital.yaml
    """
    hospital = read_hospital(path)
    require_readable(file)
    key = key_for_restoring(gate_folder(hospital.state_path), key_file, unauthenticated=unauthenticated)
    catalogue = read_catalogue(file, None if key is None else sealing_key(key))
    if (catalogue.program, catalogue.name) != (PROGRAM, hospital.site):
        raise ConfigurationError(
            what=f"{file} is a backup of {catalogue.name or 'another'} {catalogue.program}, not of {hospital.site}'s.",
            consequence="Nothing was changed.",
            remedy="Use a backup file that `site-agent backup` wrote for this site.",
        )
    state, now = hospital.state_path, _now()
    if gate_folder(state).is_dir():
        hold_directory(gate_folder(state), PROGRAM)

    def mark(staged: Mapping[str, Path]) -> None:
        _mark(staged["state"], hospital.site, catalogue.made)
        if key is not None and gate_folder(staged["state"]).is_dir():
            keep_key(gate_folder(staged["state"]), key)

    before = restoring.restore(file, catalogue, {"state": state}, stamp=f"{now:%Y%m%dT%H%M%S}", mark=mark)
    click.echo(f"Restored the state of {catalogue.made} to {state}.")
    for place in before:
        click.echo(f"The earlier files are in {place}. Remove them when nobody needs them.")
    click.echo(
        "A new audit log begins. The restored log lacks what this site did after the backup, and is kept beside it."
    )
    click.echo("If this site took part in a run after the backup, inform the federation office.")
    if hospital.policy.lost_site_budget:
        click.echo(
            "The restored state does not include the units of lost_site_budget that this site used after the backup. "
            "If the site may have used such units, lower lost_site_budget in hospital.yaml before you start the site."
        )


def _mark(state: Path, site: str, made: str) -> None:
    """Begin a new audit log, which records that the state was restored."""
    place = audit_log_path(state)
    because = f"restored from the backup of {made}"
    known = known_generation(place.parent / "witness")
    restart_log(place, site=site, by=account(), because=because, now=_now, known=known, backup=made)


def _now() -> datetime:
    return datetime.now(UTC)
