"""Detects that this program's own audit log was cut, rewritten or restored from an older backup.

The other side keeps the last checkpoint that this program signed and the other side cosigned. An own log that differs
from this checkpoint is refused, so the program stops. The other side could report no checkpoint. So this check protects
only while the other side is honest.
"""

from __future__ import annotations

from audit.own_log import AuditLog
from protos.wire.log_checkpoints import CheckpointRefused, LogCheckpoint, check_checkpoint


class OwnLogOlder(CheckpointRefused):
    """This program's own log lacks records that it signed, because an older state was restored."""


def confirmed_records(own: AuditLog, kept: LogCheckpoint | None) -> int:
    """Return how many records of this program's own log the program at the other end has confirmed.

    Args:
        own: opened with its identity key.
        kept: the other side's last checkpoint of this log; None if it has none.

    Raises:
        OwnLogOlder: this program's log ends before the checkpoint, or was restored from a backup.
        CheckpointRefused: this program did not sign the checkpoint, or its log now differs from it.
    """
    if kept is None or kept.generation < own.generation:
        return 0
    try:
        check_checkpoint(kept, own.owner, own.identity_key.public_key().public_bytes_raw())
    except CheckpointRefused as refused:
        raise CheckpointRefused(
            f"the other side has a checkpoint of this log that this program did not sign: {refused}"
        ) from refused
    if kept.generation > own.generation or own.position_at(kept.size) != kept.position:
        if kept.generation == own.generation and kept.size > own.position.sequence:
            ends = f"it has {own.position.sequence} records, and the checkpoint has {kept.size}"
            raise OwnLogOlder(f"this program's own log differs from its signed checkpoint: {ends}")
        if kept.generation == own.generation and any(own.records("state_restored")):
            ends = f"it was restored from a backup, and differs at record {kept.size}"
            raise OwnLogOlder(f"this program's own log differs from its signed checkpoint: {ends}")
        raise CheckpointRefused(f"this program's own log differs from its signed checkpoint at record {kept.size}")
    return kept.size
