"""Defines options that many commands of `site-agent` have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from host.audit_log import AuditLog
from host.command_line import PATH, configuration_option
from site_agent.hospital import Hospital
from site_agent.state_folders import gate_store_path

config_option: Final = configuration_option("hospital.yaml")
plan_option: Final = click.option(
    "--plan",
    "plan_path",
    type=PATH,
    help="File of the plan. Without this option, use the plan that was last announced or approved at this site.",
)


def opened_log(hospital: Hospital, *, exists: bool = False) -> AuditLog:
    """Open this site's audit log, so that a person's command can write to the log, or only read one that `exists`.

    Raises StoreError: the log was changed, or cannot be opened.
    """
    path = gate_store_path(hospital.state_path)
    return AuditLog(path, site=hospital.site, now=lambda: datetime.now(UTC), exists=exists)
