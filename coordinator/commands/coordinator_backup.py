"""Implements `coordinator backup`, which writes a coordinator's whole state to one file, and `coordinator restore`.

The file contains the authority's keys. An existing authority is never replaced, because its register may have newer
revocations than the backup. An unfinished run is marked as restored: its attempts and key sessions continue with much
higher numbers. So sites with newer rounds either return together with the run or refuse, and never accept a number
twice. The audit log begins again with a higher generation number, because the sites may have confirmed later records.
The restored log is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from audit.checkpoint_memory import known_generation
from audit.restarting import restart_log
from coordinator.commands.operator_commands import config_option
from coordinator.configuration import CoordinatorConfiguration, read_configuration
from coordinator.operations.coordinator_log import log_path
from coordinator.storage.history import History
from coordinator.storage.journal import Journal, read_journal
from host import restoring
from host.backup_archive import read_catalogue, require_readable, write_backup
from host.backup_key import keep_key, key_for_restoring, made_key, sealing_key
from host.command_line import PATH, account
from host.secret_files import hold_directory, settle_layout
from pki.authority import Authority
from pki.register import Register
from protos.errors import ConfigurationError

PROGRAM: Final = "coordinator"


@click.command()
@click.argument("file", type=PATH)
@config_option
def backup(file: Path, path: Path) -> None:
    """Write the whole state of a stopped coordinator to one file. The file also contains the certificate authority and
    secret keys.

    Example: coordinator backup /mnt/safe/coordinator.backup --config coordinator.yaml
    """
    configuration = read_configuration(path)
    state, authority = _existing(configuration)
    hold_directory(state, PROGRAM)
    settle_layout(state, PROGRAM)
    roots = {"state": state, "authority": authority}
    with _still(authority):
        made, key = _now().isoformat(timespec="seconds"), sealing_key(made_key(state))
        catalogue = write_backup(
            file, roots, program=PROGRAM, name="", made=made, software=version("global-layers"), key=key
        )
    total = sum(entry.size for entry in catalogue.entries.values())
    click.echo(f"{len(catalogue.entries)} files and folders, {total / 1e6:.1f} MB, are in {file}.")
    click.echo("It contains the authority's secret keys. Keep it where only you can read it.")
    click.echo("It is sealed. Print the key of the seal with `coordinator backup-key`, and keep the paper elsewhere.")


@click.command("backup-key")
@config_option
def backup_key(path: Path) -> None:
    """Print the key that protects this coordinator's backups against forgery. Keep this key on paper,
    away from the backups.

    Example: coordinator backup-key --config coordinator.yaml
    """
    state, _ = _existing(read_configuration(path))
    click.echo(made_key(state))


@click.command()
@click.argument("file", type=PATH)
@config_option
@click.option("--key-file", type=PATH, help="Text file with the backup key, written exactly as on the printed sheet.")
@click.option(
    "--unauthenticated", is_flag=True, help="Restore the backup even if the program cannot check who made the backup."
)
def restore(file: Path, path: Path, key_file: Path | None, unauthenticated: bool) -> None:
    """Check a backup file, then restore its state. A newer state or an existing certificate authority is never
    replaced.

    Example: coordinator restore /mnt/safe/coordinator.backup --config coordinator.yaml
    """
    configuration = read_configuration(path)
    require_readable(file)
    key = key_for_restoring(Path(configuration.state), key_file, unauthenticated=unauthenticated)
    catalogue = read_catalogue(file, None if key is None else sealing_key(key))
    if catalogue.program != PROGRAM:
        raise ConfigurationError(
            what=f"{file} is a backup of {catalogue.program}, not of a coordinator.",
            consequence="Nothing was changed.",
            remedy="Use a backup file that `coordinator backup` wrote.",
        )
    roots = {"state": Path(configuration.state), "authority": Path(configuration.authority)}
    for root in roots.values():
        if root.is_dir():
            hold_directory(root, PROGRAM)
    has_authority = roots["authority"].exists()
    if has_authority:
        del roots["authority"]
    now = _now()

    def mark(staged: Mapping[str, Path]) -> None:
        _mark(staged["state"], catalogue.made)
        if key is not None:
            keep_key(staged["state"], key)

    before = restoring.restore(file, catalogue, roots, stamp=f"{now:%Y%m%dT%H%M%S}", mark=mark)
    click.echo(f"Restored the state of {catalogue.made} to {configuration.state}.")
    for place in before:
        click.echo(f"The earlier files are in {place}. Remove them when nobody needs them.")
    if has_authority:
        click.echo("The existing authority was not changed.")
    else:
        click.echo(
            "Restored the authority too. Read `pki list`, and revoke again each site that was revoked since then."
        )
    click.echo("A new audit log begins. The restored log is kept beside it.")


def _mark(state: Path, made: str) -> None:
    """Record in the journal of every unfinished run that the state was restored, and begin a new audit log."""
    for place in sorted(state.glob("runs/*/journal.jsonl")):
        journal, history = Journal(place, _now), History()
        for entry in read_journal(place):
            history.take(entry)
        if not history.is_over:
            journal.add("restored", made=made)
            journal.sync()
        journal.close()
    if log_path(state).exists():  # a state without a log was never started
        because = f"restored from the backup of {made}"
        known = known_generation(state / "witness")
        restart_log(log_path(state), site=None, by=account(), because=because, now=_now, known=known, backup=made)


@contextmanager
def _still(authority: Path) -> Iterator[None]:
    """Prevent every `pki` command from changing the register of sites until the block ends."""
    place = Authority.load(authority).register_path
    Register(place).close()  # Closing moves the content of the write-ahead file into the register's file.
    with Register(place) as register, register.changing():
        yield


def _existing(configuration: CoordinatorConfiguration) -> tuple[Path, Path]:
    state, authority = Path(configuration.state), Path(configuration.authority)
    for place in (state, authority):
        restoring.refuse_unfinished(place)
        if not place.is_dir():
            raise ConfigurationError(
                what=f"The directory {place} does not exist.",
                consequence="No backup was made.",
                remedy="Correct the paths of the coordinator's directories in coordinator.yaml.",
            )
    return state, authority


def _now() -> datetime:
    return datetime.now(UTC)
