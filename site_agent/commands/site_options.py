"""Defines options that many commands of `site-agent` have, and checks the names that people type for these options."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from typing import Final

import click

from audit.own_log import AuditLog
from host.command_line import PATH, configuration_option
from protos.errors import UsageError
from site_agent.hospital import Hospital
from site_agent.state_folders import audit_log_path

config_option: Final = configuration_option("hospital.yaml")
plan_option: Final = click.option(
    "--plan",
    "plan_path",
    type=PATH,
    help="File of the plan. Without this option, use the plan that was last announced or approved at this site.",
)
by_option: Final = click.option("--by", required=True, help="Name of the person who decides, for the audit log.")
run_option: Final = click.option(
    "--run",
    "run_name",
    help="Name of the run whose model is used. If this site has adopted a model, the model must be from this run.",
)
_MEANT: Final = {"--by": "name of the person", "--to": "recipient and the purpose"}


def person(by: str, option: str = "--by") -> str:
    """Return the text that a person typed for an option, with single blanks. Raises UsageError: the text is empty."""
    if not by.strip() or not by.isprintable():
        meant = _MEANT.get(option, "reason in a few words")
        raise UsageError(
            what=f"{option} is empty.",
            consequence="Nothing was changed. Nothing was sent.",
            remedy=f"Enter the {meant} for the audit log.",
        )
    return " ".join(by.split())


def account() -> str:
    """Return the name of the user account that runs the command. Environment variables cannot change this name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def audit_log_of(hospital: Hospital) -> AuditLog:
    """Open this site's audit log, so that a person's command can write to the log."""
    return AuditLog(audit_log_path(hospital.state_path), site=hospital.site, now=lambda: datetime.now(UTC))
