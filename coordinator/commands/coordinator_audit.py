"""`coordinator audit`: check, read and export the coordinator's log, and write its saved checkpoints.

Nothing here changes a log. With --log instead of --config somebody outside checks a copy, and needs public keys only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protos.errors import UsageError

if TYPE_CHECKING:
    from audit.reading.log_commands import Desk

_PATH = click.Path(path_type=Path)
_config = click.option("--config", "path", type=_PATH, help="The file coordinator.yaml.")
_log = click.option(
    "--log", "log_path", type=_PATH, help="A copy of audit.log, with its older files in the same folder."
)
_since = click.option("--since", help="Show records from this day or time, UTC.")
_until = click.option("--until", help="Show records before this day or time, UTC.")


@click.group()
def audit() -> None:
    """Check, read and export the log of all that the coordinator decided and sent."""


@audit.command()
@_config
@_log
@click.option("--keys", type=_PATH, help="File of public keys, written by `pki keys`.")
@click.option(
    "--checkpoints",
    type=_PATH,
    help="Checkpoints of this log that a site kept, written by `site-agent audit checkpoints`.",
)
def verify(path: Path | None, log_path: Path | None, keys: Path | None, checkpoints: Path | None) -> None:
    """Check all records and signed checkpoints of the log, and compare it with checkpoints kept elsewhere.

    Example: coordinator audit verify --config coordinator.yaml
    """
    from audit.reading.log_commands import lines

    for line in lines(_desk(path, log_path).given(keys, checkpoints).verification()):
        click.echo(line)


@audit.command()
@_config
@_log
@click.option("--event", help="Show only this kind of record, such as round_offered.")
@click.option("--run", help="Show only this run.")
@_since
@_until
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with all facts.")
def show(
    path: Path | None,
    log_path: Path | None,
    event: str | None,
    run: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Show records in plain words.

    Example: coordinator audit show --config coordinator.yaml --event peer_refused
    """
    from audit.reading.log_commands import time_given
    from audit.reading.log_report import Choice, line

    choice = Choice(event=event, run=run, since=time_given(since, "--since"), until=time_given(until, "--until"))
    for number, facts in _desk(path, log_path).shown(choice):
        click.echo(json.dumps({"record": number, **facts}) if as_json else line(number, facts))


@audit.command()
@_config
@_log
@click.option("--study", help="Include only the runs of this study.")
@_since
@_until
@click.option("--output", type=_PATH, required=True, help="Output file. The file name ends with .csv or .html.")
def export(
    path: Path | None, log_path: Path | None, study: str | None, since: str | None, until: str | None, output: Path
) -> None:
    """Write a report about one study and period.

    Example: coordinator audit export --config coordinator.yaml --study heart --output heart.html
    """
    from audit.reading.log_commands import time_given
    from audit.reading.log_report import Choice

    choice = Choice(study=study, since=time_given(since, "--since"), until=time_given(until, "--until"))
    count = _desk(path, log_path).export(output, choice, "Audit log of the coordinator")
    click.echo(f"{count} records written to {output}.")


@audit.command()
@_config
@click.option("--output", type=_PATH, required=True, help="Output file for the checkpoints.")
def checkpoints(path: Path | None, output: Path) -> None:
    """Write the newest cosigned checkpoint of each site's log to a file. A person who verifies a log needs this file.

    Example: coordinator audit checkpoints --config coordinator.yaml --output checkpoints.json
    """
    from audit.checkpoint_memory import kept_checkpoints
    from audit.reading.log_keys import checkpoints_text
    from pki.store import write_public

    if path is None:
        raise _unclear()

    from coordinator.configuration import read_configuration

    found = kept_checkpoints(Path(read_configuration(path).state) / "witness")
    write_public(output, checkpoints_text(found).encode())
    click.echo(f"{len(found)} checkpoints written to {output}.")


def _desk(path: Path | None, log_path: Path | None) -> Desk:
    """The log of a configuration, or a copy of one."""
    from audit.reading.log_commands import Desk
    from audit.reading.log_verification import KnownKeys
    from protos.wire.log_checkpoints import COORDINATOR, owner_of_site

    if (path is None) == (log_path is None):
        raise _unclear()
    if path is None:
        assert log_path is not None
        return Desk(log_path, COORDINATOR, KnownKeys())

    from audit.checkpoint_memory import own_checkpoint
    from coordinator.configuration import read_configuration
    from coordinator.operations.coordinator_log import log_path as own_log
    from pki.authority import Authority
    from pki.register import Register
    from pki.signatures import public_bytes

    configuration = read_configuration(path)
    authority, state = Authority.load(Path(configuration.authority)), Path(configuration.state)
    with Register(authority.register_path) as register:
        keys = {owner_of_site(site.name): site.identity_key for site in register.sites() if site.identity_key}
    last = own_checkpoint(state / "witness")
    known = KnownKeys({**keys, COORDINATOR: public_bytes(authority.identity_key())})
    return Desk(own_log(state), COORDINATOR, known, (last,) if last else ())


def _unclear() -> UsageError:
    return UsageError(
        what="The options do not show which log to use.",
        consequence="Nothing was read or written.",
        remedy="Give either --config coordinator.yaml, or --log with a copy of the log.",
    )
