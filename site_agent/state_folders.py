"""Where each process of a site keeps what is its own, below the state directory.

`agent` has the TLS key, certificates and addresses. `gate` has the identity key, the audit log, announced plans and
everything that masking and limits remember. `approvals` is written by a person's command alone. The other folders
are the trainer's.
"""

from __future__ import annotations

from pathlib import Path


def agent_folder(state: Path) -> Path:
    """The folder of the process with the network."""
    return state / "agent"


def gate_folder(state: Path) -> Path:
    """The folder of the process with the keys."""
    return state / "gate"


def approvals_folder(state: Path) -> Path:
    """What persons here have said to plans; no service writes it."""
    return state / "approvals"


def audit_log_path(state: Path) -> Path:
    """The audit log's present file."""
    return gate_folder(state) / "audit.log"
