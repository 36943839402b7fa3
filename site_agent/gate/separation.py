"""What keeps the patients from the process with the network, said as the kernel has it and not as it was meant.

Two users keep them apart: the trainer's user owns the table, and the agent's user may not open it. Where a person
starts both by hand they are one user, and then the kernel keeps nothing from the agent: only its own code does,
which has nothing to read a table with. The trainer says in its own log whether it has lost the network.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from site_agent.approvals_guard import is_one_user, require_guarded
from site_agent.hospital import Hospital


def may_read(table: Path) -> bool:
    """Whether the kernel would let this process open a file for reading; it is opened and closed, never read."""
    try:
        os.close(os.open(table, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as refused:
        # A table that this user cannot even find is out of reach as well.
        return refused.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT)
    return True


def guard_of(hospital: Hospital) -> Callable[[Path], None]:
    """What looks at approvals before they count: at a terminal nothing, since one user runs everything."""
    return (lambda _: None) if hospital.gate_socket is None else require_guarded


def tell_guard(hospital: Hospital) -> None:
    """Refuse approvals that a service could have written; at a terminal, say once that this user could.

    Raises:
        ConfigurationError: a service could have written them; the message has the command that mends it.
    """
    guard_of(hospital)(hospital.state_path)
    if is_one_user(hospital.state_path):
        structlog.get_logger().warning(
            "gate_may_write_approvals",
            enforced_by="nobody: one user runs the programs and approves, and only the program itself keeps away",
            remedy="run the programs as services, as docs/operator.md says",
        )


def tell_separation(hospital: Hospital) -> bool:
    """Say in the program's log whether the kernel keeps the table from this process; whether it does."""
    log = structlog.get_logger()
    if may_read(Path(hospital.data.table)):
        log.warning(
            "agent_may_read_patients",
            enforced_by="nobody: agent and trainer are one user, and only the program itself keeps away",
            remedy="run the trainer as a user of its own, as docs/operator.md says",
        )
        return False
    log.info("agent_kept_from_patients", enforced_by="the kernel: the table belongs to another user")
    return True
