"""`site-agent maintenance`: tell the federation beforehand that this site will be away."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from protos.errors import UsageError
from site_agent.commands.site_options import config_option
from site_agent.state_folders import audit_log_path, gate_folder


@click.command()
@config_option
@click.option("--from", "begins", help="Start of the absence, such as 2026-05-01T22:00, in this computer's time zone.")
@click.option("--until", "ends", help="End of the absence.")
@click.option("--cancel", is_flag=True, help="Cancel the announced absence.")
def maintenance(path: Path, begins: str | None, ends: str | None, cancel: bool) -> None:
    """Announce a time in which this site may be absent. The coordinator waits and does not treat it as lost.

    Example: site-agent maintenance --config hospital.yaml --from 2026-05-01T22:00 --until 2026-05-02T06:00
    """
    from site_agent.gate.announced_absence import keep_window, window_from
    from site_agent.gate.site_log import AuditLog
    from site_agent.hospital import read_hospital

    hospital, now = read_hospital(path), datetime.now(UTC)
    if cancel == bool(begins or ends) or bool(begins) != bool(ends):
        raise UsageError(
            what="Give --from and --until, or give --cancel.",
            consequence="Nothing was announced.",
            remedy="Read `site-agent maintenance --help`.",
        )
    window = window_from(begins, ends, now) if begins and ends else None
    log = AuditLog(audit_log_path(hospital.state_path), site=hospital.site, now=lambda: datetime.now(UTC))
    if window is None:
        log.write("maintenance_cancelled")
    else:
        log.write("maintenance_announced", begins=window.begins.isoformat(), ends=window.ends.isoformat())
    log.close()
    keep_window(gate_folder(hospital.state_path), window)
    if window is None:
        click.echo("The window is cancelled; a running agent tells it at once.")
    else:
        click.echo(f"Announced: {window.begins:%Y-%m-%d %H:%M} to {window.ends:%Y-%m-%d %H:%M} UTC.")
        click.echo("A running agent tells it at once, another one when it calls next.")
