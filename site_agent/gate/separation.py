"""Checks if the operating system prevents the gate process, which has the keys, from reading patients' data.

As services, agent (network), gate (keys) and trainer (patients) run under three user accounts. The trainer's user owns
the table, and the kernel refuses it to the others. In a terminal one user starts all three. Then only the programs' own
code keeps them apart: agent and gate have no code that reads a table. The gate also checks that no service could have
written an approval (approvals.py). The trainer's own log states whether the trainer has given up the network.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import structlog

from site_agent.hospital import Hospital


def may_read(table: Path) -> bool:
    """Return whether the operating system lets this process open a file. The file is opened, but not read."""
    try:
        os.close(os.open(table, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as refused:
        # A table that this user cannot find is also unreadable.
        return refused.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT)
    return True


def tell_separation(hospital: Hospital) -> bool:
    """Log and return whether the operating system prevents this process from reading the patients' table."""
    log = structlog.get_logger()
    if may_read(Path(hospital.data.table)):
        log.warning(
            "agent_may_read_patients",
            enforced_by="only the programs' own code: agent, gate and trainer run under one user account",
            remedy="run the three programs as services, as docs/hospital.md describes",
        )
        return False
    log.info("agent_kept_from_patients", enforced_by="the kernel: the table belongs to another user")
    return True
