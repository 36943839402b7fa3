"""What `coordinator doctor` looks at: authority, state, plans, disk, clock, and how others see its port.

Nothing is changed and nothing is sent but handshakes; every look has a limit of seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coordinator.configuration import CoordinatorConfiguration, read_plans
from coordinator.network.control_socket import control_path
from host import address_checks, computer_checks
from host.diagnosis import Finding, failure, fine, judge_address_rules, judge_clock, judge_disk, warning
from pki import key_checks, store
from pki.authority import Authority, FederationRecord
from protos.errors import OperatorError

_PATIENCE_SECONDS: Final = 5.0


def examine(configuration: CoordinatorConfiguration, environment: Mapping[str, str]) -> list[Finding]:
    """Everything that the coordinator needs, looked at in the order in which it would be missed."""
    now, state, authority = datetime.now(UTC), Path(configuration.state), Path(configuration.authority)
    found = [key_checks.judge_directory(state), judge_disk(computer_checks.free_bytes(state))]
    found += key_checks.judge_authority(authority, now)
    found.append(_plans(configuration))
    found.append(judge_clock(computer_checks.is_clock_synchronised()))
    found.append(judge_address_rules(computer_checks.enforces_address_rules()))
    is_running = control_path(state).is_socket()
    if not is_running:
        found.append(warning("D418", "No coordinator is running here.", "Start it: `systemctl start coordinator`."))
        return found
    found.append(fine("D418", "The coordinator is running."))
    return found + _seen_from_outside(authority, environment)


def _plans(configuration: CoordinatorConfiguration) -> Finding:
    try:
        plans = read_plans(configuration)
    except OperatorError as wrong:
        return failure("D421", wrong.what, wrong.remedy)
    return fine("D421", f"{len(plans)} plans are in order.")


def _seen_from_outside(directory: Path, environment: Mapping[str, str]) -> list[Finding]:
    """The address that invitations name, called as a site would: a load balancer in front has to pass TLS through."""
    try:
        authority = Authority.load(directory)
        record = FederationRecord.from_json(store.read_public(directory / "federation.json"))
        target = address_checks.Target(
            record.coordinator.host.strip("[]"), record.coordinator.port, authority.root_pem().decode("ascii")
        )
    except OperatorError:
        return []  # told by judge_authority already
    return address_checks.findings(target, environment, _PATIENCE_SECONDS)
