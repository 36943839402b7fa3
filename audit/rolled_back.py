"""Detects that this program's own audit log was cut, rewritten, or copied back from an older state folder.

The other side keeps the last checkpoint that this program signed and the other side cosigned. An own log that differs
from this checkpoint is refused, so the program stops. The other side could report no checkpoint. So this check protects
only while the other side is honest.

A log that a person has restarted is not compared, because both sides see its higher generation number. If `restore`
restarted it, `lacks_confirmed` shows whether the restored backup was older than the checkpoint.
"""

from __future__ import annotations

from audit.own_log import AuditLog
from protos.wire.log_checkpoints import COORDINATOR, CheckpointRefused, LogCheckpoint, check_checkpoint, site_of


class OwnLogRefused(CheckpointRefused):
    """This program's own log differs from a checkpoint of it that the other side presents."""


def confirmed_records(own: AuditLog, kept: LogCheckpoint | None) -> int:
    """Return how many records of this program's own log the program at the other end has confirmed.

    Args:
        own: opened with its identity key.
        kept: the other side's last checkpoint of this log; None if it has none.

    Raises:
        OwnLogRefused: this program did not sign the checkpoint, or its log now differs from it.
    """
    if kept is None or kept.generation < own.generation:
        return 0
    _check_own(own, kept)
    if kept.generation > own.generation or own.position_at(kept.size) != kept.position:
        whose = "the coordinator's audit log" if own.owner == COORDINATOR else f"the audit log of {site_of(own.owner)}"
        raise OwnLogRefused(f"{whose} differs from its signed checkpoint at record {kept.size}")
    return kept.size


def lacks_confirmed(own: AuditLog, kept: LogCheckpoint | None) -> bool:
    """Return whether `restore` restored an older state of this program than the other side has confirmed.

    Args:
        own: opened with its identity key.
        kept: the other side's last checkpoint of this log; None if it has none.

    Raises:
        OwnLogRefused: this program did not sign the checkpoint.
    """
    if kept is None or kept.generation >= own.generation:
        return False
    _check_own(own, kept)
    return own.lacks(kept.generation, kept.position)


def _check_own(own: AuditLog, kept: LogCheckpoint) -> None:
    try:
        check_checkpoint(kept, own.owner, own.identity_key.public_key().public_bytes_raw())
    except CheckpointRefused as refused:
        raise OwnLogRefused(
            f"the other side has a checkpoint of this log that this program did not sign: {refused}"
        ) from refused
