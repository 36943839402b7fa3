"""Detects that this program's own audit log was cut, rewritten or restored from an older backup.

The other side keeps the last checkpoint that this program signed and the other side cosigned. An own log that differs
from this checkpoint is refused, so the program stops. The other side could report no checkpoint. So this check protects
only while the other side is honest.
"""

from __future__ import annotations

from audit.own_log import AuditLog
from protos.wire.log_checkpoints import CheckpointRefused, LogCheckpoint, check_checkpoint


def confirmed_records(own: AuditLog, kept: LogCheckpoint | None) -> int:
    """Return how many records of this program's own log the program at the other end has confirmed.

    Args:
        own: opened with its identity key.
        kept: the other side's last checkpoint of this log; None if it has none.

    Raises:
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
        raise CheckpointRefused(f"this program's own log differs from its signed checkpoint at record {kept.size}")
    return kept.size
