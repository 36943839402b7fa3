"""How long an audit log's files are, and how long they are kept; the same key in both configurations."""

from __future__ import annotations

from pydantic import Field

from audit.audit_log import Limits
from protos.plan.documents import Document


class AuditSettings(Document):
    """Rotation and retention of the audit log.

    Attributes:
        largest_megabytes: of one file, in units of 1,000,000 bytes; a fuller one is put aside.
        keep_days: after so many days without a change a full file is deleted, with a record of it.
    """

    largest_megabytes: float = Field(default=64.0, ge=0.01, le=1000)
    keep_days: int = Field(default=3653, ge=30)

    @property
    def limits(self) -> Limits:
        """As the log takes them."""
        return Limits(largest_bytes=int(self.largest_megabytes * 1_000_000), keep_days=self.keep_days)
