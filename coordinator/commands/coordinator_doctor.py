"""Implements `coordinator doctor`, which looks for problems.

The checks cover authority, state, plans, disk, clock, and how others see the coordinator's port. They change nothing
and send nothing but handshakes. Each has a limit in seconds.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from coordinator.commands.configuration import CoordinatorConfiguration, read_configuration, read_plans
from coordinator.network.control_socket import ask, status_path
from coordinator.storage.history import store_path
from host import address_checks, diagnosis, secret_files
from host.command_line import configuration_option, json_option, report_findings
from host.diagnosis import (
    Finding,
    Severity,
    failure,
    fault_of,
    fine,
    judge_clock,
    judge_directory,
    judge_disk,
    warning,
)
from host.secret_files import NotRunning
from pki import key_checks
from pki.authority import Authority, FederationRecord
from protos.errors import OperatorError, UnavailableError

config_option: Final = configuration_option("coordinator.yaml")
_PATIENCE_SECONDS: Final = 5.0


@click.command()
@config_option
@json_option
def doctor(path: Path, as_json: bool) -> None:
    """Check whether the coordinator has everything that it needs to run.

    You can run this command at any time. The command changes nothing. For a test of a connection,
    it sends only a TLS handshake.

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
    state, authority = Path(configuration.state), Path(configuration.authority)
    found = [
        fine("D401", f"{path.name} has no mistakes."),
        judge_directory(state),
        judge_disk(*diagnosis.free_on_disk(state)),
        *key_checks.judge_authority(authority, datetime.now(UTC)),
        _plans(configuration),
        _audit(state),
        judge_clock(diagnosis.is_clock_synchronised()),
    ]
    if (program := _program(state)).severity is Severity.FINE:
        return [*found, program, *_seen_from_outside(authority)]
    return [*found, program]


def _program(state: Path) -> Finding:
    """Check whether a coordinator answers. Its socket remains after a crash, so a connection is necessary."""
    try:
        asyncio.run(ask(status_path(state)))
    except NotRunning:
        remedy = "Start the coordinator: `systemctl start coordinator`, or `coordinator start` in a terminal."
        return warning("D418", "No coordinator is running with this configuration.", remedy)
    except UnavailableError as silent:
        return failure("D418", silent.what, silent.remedy)
    return fine("D418", "The coordinator is running.")


def _plans(configuration: CoordinatorConfiguration) -> Finding:
    try:
        plans = read_plans(configuration)
    except OperatorError as wrong:
        return failure("D421", wrong.what, wrong.remedy)
    return fine("D421", f"{len(plans)} plans were checked and have no mistakes.")


def _audit(state: Path) -> Finding:
    if (fault := fault_of(store_path(state), None)) is not None:
        return failure("D422", fault.what, fault.remedy)
    return fine("D422", "No record of the audit log was changed or damaged.")


def _seen_from_outside(directory: Path) -> list[Finding]:
    """Check the address in invitations by connecting as a site does. A load balancer must pass TLS through."""
    try:
        authority = Authority.load(directory)
        record = FederationRecord.from_json(secret_files.read_public(directory / "federation.json"))
        target = address_checks.Target(
            record.coordinator.host.strip("[]"),
            record.coordinator.port,
            authority.root_pem().decode("ascii"),
            when_refused="Start the coordinator, and check `listen` in coordinator.yaml.",
        )
    except OperatorError:
        return []  # judge_authority has already reported it
    return address_checks.findings(target, None, _PATIENCE_SECONDS)
