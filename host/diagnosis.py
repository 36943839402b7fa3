"""Defines the findings of `doctor`, and decides from measured values which finding applies.

A finding is one line: its severity, the subject, the result, and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final

from host.audit_log import AuditLog
from host.record_store import StoreError
from protos.errors import ConfigurationError

_SUBJECTS: Final = {
    "D401": "configuration",
    "D404": "certificate",
    "D405": "disk",
    "D411": "connection",
    "D412": "table",
    "D414": "trainer's isolation",
    "D417": "invitation",
    "D418": "program",
    "D420": "authority",
    "D421": "plans",
    "D422": "audit log",
}

FEW_BYTES: Final = 1 << 30
TOO_FEW_BYTES: Final = 64 << 20
TOO_FEW_FILES: Final = 1000  # a run creates a few files for each saved round


class Severity(IntEnum):
    """The severity of a finding."""

    FINE = 0
    WARNING = 1
    FAILURE = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check of `doctor`: an identifier, a sentence, and a remedy, which is empty if all is well."""

    identifier: str
    severity: Severity
    says: str
    remedy: str = ""

    @property
    def subject(self) -> str:
        """Return the subject of the check in words, such as the clock or the disk."""
        return _SUBJECTS[self.identifier]

    @property
    def line(self) -> str:
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.severity.name.lower():<7} {self.identifier} {self.subject}: {self.says}{remedy}"

    def facts(self) -> dict[str, object]:
        return asdict(self) | {"severity": self.severity.name.lower(), "subject": self.subject}


def fine(identifier: str, says: str) -> Finding:
    """Return a finding that reports no problem."""
    return Finding(identifier=identifier, severity=Severity.FINE, says=says)


def warning(identifier: str, says: str, remedy: str) -> Finding:
    """Return a finding of severity `warning`: the program works, but a person should check the finding."""
    return Finding(identifier=identifier, severity=Severity.WARNING, says=says, remedy=remedy)


def failure(identifier: str, says: str, remedy: str) -> Finding:
    """Return a finding of severity `failure`: the program does not work, or will soon stop working."""
    return Finding(identifier=identifier, severity=Severity.FAILURE, says=says, remedy=remedy)


def exit_status(findings: Sequence[Finding]) -> int:
    """Return the exit status for these findings: 0 without a problem, 3 for warnings, 1 for a failure."""
    worst = max((finding.severity for finding in findings), default=Severity.FINE)
    return {Severity.FINE: 0, Severity.WARNING: 3, Severity.FAILURE: 1}[worst]


def judge_disk(place: Path) -> Finding:
    """Check free space and files on the disk of a path, or of the nearest existing folder above it."""
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    if disk.f_flag & os.ST_RDONLY:  # as after an error of the disk
        says = "The disk of the state directory is read-only, so nothing can be recorded."
        return failure("D405", says, "Ask the administrator for the reason, and make it writable again.")
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_files and disk.f_favail < TOO_FEW_FILES:  # some file systems have no limit of files
        says = f"Only {disk.f_favail} more files can be created on the disk of the state directory (free inodes)."
        return failure("D405", says, "Delete files that nobody needs from this disk, but none in the state directory.")
    says = f"{free_bytes / 1e9:.1f} GB are free on the disk of the state directory."
    if free_bytes < TOO_FEW_BYTES:
        return failure("D405", says, "Free disk space now. If less than 1 MB is free, nothing is sent.")
    if free_bytes < FEW_BYTES:
        return warning("D405", says, "Free space, or move the state to a larger disk.")
    return fine("D405", says)


def judge_log(path: Path, site: str | None) -> Finding:
    """Check the structure of a store and all records of its audit log. `site` is None for the coordinator's log."""
    try:
        with closing(AuditLog(path, site=site, now=lambda: datetime.now(UTC), exists=True)) as log:
            for _ in log.checked():
                pass
    except (StoreError, ConfigurationError) as fault:
        return failure("D422", fault.what, fault.remedy)
    return fine("D422", "No record of the audit log was changed or damaged.")
