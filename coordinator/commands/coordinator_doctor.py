"""Implements `coordinator doctor`, which checks authority, plans, disk, audit log and program, and changes nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from coordinator.commands.configuration import CoordinatorConfiguration, read_configuration, read_plans
from coordinator.network.control_socket import ask
from coordinator.storage.history import store_path
from host.command_line import configuration_option, json_option, report_findings
from host.diagnosis import Finding, failure, fine, judge_disk, judge_log, warning
from pki import key_checks
from protos.errors import OperatorError, UnavailableError

config_option: Final = configuration_option("coordinator.yaml")


@click.command()
@config_option
@json_option
def doctor(path: Path, as_json: bool) -> None:
    """Check whether the coordinator has everything that it needs to run.

    You can run this command at any time. The command changes nothing.

    The exit status is 0 if no problem was found, 3 if there are only warnings, and 1 if a check failed.

    Example: coordinator doctor --config coordinator.yaml
    """
    report_findings(_examine(path), as_json=as_json)


def _examine(path: Path) -> list[Finding]:
    """Return the findings of all checks, in the order in which the coordinator needs the checked parts at its start."""
    try:
        configuration = read_configuration(path)
    except OperatorError as wrong:
        return [failure("D401", wrong.what, wrong.remedy)]
    state = Path(configuration.state)
    return [
        fine("D401", f"{path.name} has no mistakes."),
        judge_disk(state),
        *key_checks.judge_authority(Path(configuration.authority), datetime.now(UTC)),
        _plans(configuration),
        judge_log(store_path(state), None),
        _program(state),
    ]


def _program(state: Path) -> Finding:
    """Check whether a coordinator answers. Its socket remains after a crash, so a connection is necessary."""
    try:
        asyncio.run(ask(state))
    except UnavailableError as silent:
        return warning("D418", silent.what, silent.remedy)
    return fine("D418", "The coordinator is running.")


def _plans(configuration: CoordinatorConfiguration) -> Finding:
    try:
        plans = read_plans(configuration)
    except OperatorError as wrong:
        return failure("D421", wrong.what, wrong.remedy)
    return fine("D421", f"{len(plans)} plans were checked and have no mistakes.")
