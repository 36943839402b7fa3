"""`site-agent audit`: check, read and export the audit log, and restart it after its loss.

All but `restart` change nothing. With --log instead of --config somebody outside the hospital checks a
copy of the log, and needs public keys only.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protos.errors import UsageError
from site_agent.commands.site_options import config_option
from site_agent.state_folders import audit_log_path, gate_folder

if TYPE_CHECKING:
    from audit.reading.log_commands import Desk

_PATH = click.Path(path_type=Path)
_config = click.option("--config", "path", type=_PATH, help="The file hospital.yaml.")
_log = click.option(
    "--log", "log_path", type=_PATH, help="A copy of audit.log, with its older files in the same folder."
)
_site = click.option("--site", help="Name of the site that wrote the log.")
_keys = click.option("--keys", type=_PATH, help="File of public keys, written by `pki keys`.")
_checkpoints = click.option(
    "--checkpoints",
    type=_PATH,
    help="Checkpoints that the coordinator kept, written by `coordinator audit checkpoints`.",
)
_since = click.option("--since", help="Show records from this day or time, UTC.")
_until = click.option("--until", help="Show records before this day or time, UTC.")


@click.group()
def audit() -> None:
    """Check, read and export the log of everything that this site sent and received.

    With --config, run the command as the gate's user or as root. With --log, any user can check a copy of the log.
    """


@audit.command()
@_config
@_log
@_site
@_keys
@_checkpoints
def verify(
    path: Path | None, log_path: Path | None, site: str | None, keys: Path | None, checkpoints: Path | None
) -> None:
    """Check all records and signed checkpoints of the audit log, and compare it with checkpoints kept elsewhere.

    Example: site-agent audit verify --config hospital.yaml
    """
    from audit.reading.log_commands import lines

    for line in lines(_desk(path, log_path, site).given(keys, checkpoints).verification()):
        click.echo(line)


@audit.command()
@_config
@_log
@_site
@click.option("--event", help="Show only this kind of record, such as contribution_released.")
@click.option("--run", help="Show only this run.")
@_since
@_until
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with all facts.")
def show(
    path: Path | None,
    log_path: Path | None,
    site: str | None,
    event: str | None,
    run: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Show records in plain words.

    Example: site-agent audit show --config hospital.yaml --since 2026-03-01
    """
    from audit.reading.log_commands import time_given
    from audit.reading.log_report import Choice, line

    choice = Choice(event=event, run=run, since=time_given(since, "--since"), until=time_given(until, "--until"))
    for number, facts in _desk(path, log_path, site).shown(choice):
        click.echo(json.dumps({"record": number, **facts}) if as_json else line(number, facts))


@audit.command()
@_config
@_log
@_site
@click.option("--study", help="Include only the runs and plans of this study.")
@_since
@_until
@click.option("--output", type=_PATH, required=True, help="Output file. The file name ends with .csv or .html.")
def export(
    path: Path | None,
    log_path: Path | None,
    site: str | None,
    study: str | None,
    since: str | None,
    until: str | None,
    output: Path,
) -> None:
    """Write a report about one study and period for the data protection officer.

    Example: site-agent audit export --config hospital.yaml --study heart --output heart.html
    """
    from audit.reading.log_commands import time_given
    from audit.reading.log_report import Choice

    desk = _desk(path, log_path, site)
    choice = Choice(study=study, since=time_given(since, "--since"), until=time_given(until, "--until"))
    count = desk.export(output, choice, f"Audit log of {desk.owner.rpartition('/')[2]}")
    click.echo(f"{count} record{'s' * (count != 1)} written to {output}.")


@audit.command()
@_config
@click.option("--output", type=_PATH, required=True, help="Output file for the checkpoints.")
def checkpoints(path: Path | None, output: Path) -> None:
    """Write the last checkpoint of the coordinator's log that this site cosigned. A verifier needs this file.

    Example: site-agent audit checkpoints --config hospital.yaml --output checkpoints.json
    """
    from audit.checkpoint_memory import kept_checkpoints
    from audit.reading.log_keys import checkpoints_text
    from pki.store import write_public

    state = _state(path)
    write_public(output, checkpoints_text(kept_checkpoints(gate_folder(state) / "witness")).encode())
    click.echo(f"Written to {output}.")


@audit.command(name="restart")
@config_option
@click.option("--by", required=True, help="Name of the person who decided this.")
@click.option("--because", required=True, help="Reason in a few words, for the audit log.")
def restart_log(path: Path, by: str, because: str) -> None:
    """Rename a lost or damaged log and start a new one. The coordinator and every reader can see this.

    Example: site-agent audit restart --config hospital.yaml --by "A. Jones" --because "disk failed"
    """
    if not all(text.strip() and text.isprintable() for text in (by, because)):
        raise UsageError(
            what="--by or --because is empty.",
            consequence="The log is unchanged.",
            remedy="Enter the person's name and the reason for the audit log.",
        )

    from audit.log_files import set_aside
    from pki.identity_key import read_identity_key
    from pki.store import hold_directory
    from site_agent.gate.site_log import AuditLog
    from site_agent.hospital import read_hospital

    hospital = read_hospital(path)
    hold_directory(gate_folder(hospital.state_path), "site agent")
    log_path = audit_log_path(hospital.state_path)
    generation = set_aside(log_path, datetime.now(UTC), least=_witnessed_generation(hospital.state_path))
    key = read_identity_key(gate_folder(hospital.state_path))
    log = AuditLog(log_path, site=hospital.site, now=lambda: datetime.now(UTC), identity_key=key)
    log.write("log_began_anew", generation=generation, by=by, reason=because)
    log.close()
    click.echo(f"{by} restarted the log. It is generation {generation}. The earlier files are kept beside it.")


def _witnessed_generation(state: Path) -> int:
    from audit.checkpoint_memory import own_checkpoint

    known = own_checkpoint(gate_folder(state) / "witness")
    return known.generation if known else 0


def _state(path: Path | None) -> Path:
    if path is None:
        raise UsageError(
            what="No configuration was named.",
            consequence="Nothing was read or written.",
            remedy="Give --config hospital.yaml.",
        )

    from site_agent.hospital import read_hospital

    return read_hospital(path).state_path


def _desk(path: Path | None, log_path: Path | None, site: str | None) -> Desk:
    """The log of a configuration, or a copy of one."""
    from audit.checkpoint_memory import own_checkpoint, peer_key
    from audit.reading.log_commands import Desk
    from audit.reading.log_verification import KnownKeys
    from protos.wire.log_checkpoints import COORDINATOR, owner_of_site

    if (path is None) == (log_path is None) or (log_path is None) != (site is None):
        raise UsageError(
            what="The options do not show which log to use.",
            consequence="Nothing was read or written.",
            remedy="Give either --config hospital.yaml, or --log with --site.",
        )
    if path is None:
        assert log_path is not None
        assert site is not None
        return Desk(log_path, owner_of_site(site), KnownKeys())

    from pki.identity_key import has_identity_key, read_identity_key
    from pki.signatures import public_bytes
    from site_agent.hospital import read_hospital

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
