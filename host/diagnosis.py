"""Defines the findings of `doctor`, and decides from measured values which finding applies.

A finding is one line: its severity, the subject, the result, and the remedy.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final

from host.audit_log import AuditLog
from host.clock_words import COMPARE_CLOCK, SET_CLOCK, clocks_apart, outside
from host.record_store import StoreError
from host.secret_files import check_secret
from protos.errors import ConfigurationError, OperatorError

_SUBJECTS: Final = {
    "D401": "configuration",
    "D402": "state directory",
    "D403": "keys",
    "D404": "certificate",
    "D405": "disk",
    "D406": "clock",
    "D407": "name",
    "D408": "proxy",
    "D409": "port",
    "D410": "TLS",
    "D411": "membership",
    "D412": "table",
    "D414": "trainer's isolation",
    "D416": "policy",
    "D417": "invitation",
    "D418": "program",
    "D419": "trainer's socket",
    "D420": "authority",
    "D421": "plans",
    "D422": "audit log",
}

FEW_BYTES: Final = 1 << 30
TOO_FEW_BYTES: Final = 64 << 20
TOO_FEW_FILES: Final = 1000  # a run creates a few files for each saved round
RENEWAL_IS_LATE_DAYS: Final = 14.0  # renewed from day 30 of 90, so usually 60 days remain
WIDEST_CLOCK_DIFFERENCE_SECONDS: Final = 60.0
_TIME_ERROR: Final = 5  # adjtimex: the clock is not synchronised


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
        """Return the finding as one line for people."""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.severity.name.lower():<7} {self.identifier} {self.subject}: {self.says}{remedy}"

    def facts(self) -> dict[str, object]:
        """Return the finding as facts for programs."""
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


def judge_directory(place: Path) -> Finding:
    """Check that a private directory exists, and that only its user can write to it."""
    try:
        state = place.stat()
    except FileNotFoundError:
        return warning("D402", f"{place} does not exist yet.", "The first start of the program creates this directory.")
    except PermissionError:
        return failure("D402", f"This user cannot open {place}.", "Run this command under the program's user account.")
    if not stat.S_ISDIR(state.st_mode):
        return failure("D402", f"{place} is not a directory.", "Set `state` to a directory.")
    if state.st_mode & 0o022:
        return failure("D402", f"Other user accounts can write to {place}.", f"Run `chmod go-w {place}`.")
    if not os.access(place, os.W_OK | os.X_OK):
        remedy = f"Run this as the owner of {place}, or `chown` it to the user that the program runs as."
        return failure("D402", f"This user cannot write to {place}.", remedy)
    return fine("D402", f"This user owns {place}, as required.")


def judge_secrets(places: Iterable[Path]) -> list[Finding]:
    """Check that only the owner can read secret files. Return a finding for each unsafe file, or one."""
    wrong, number = [], 0
    for place in places:
        try:
            with place.open("rb") as file:
                check_secret(place, os.fstat(file.fileno()))
            number += 1
        except FileNotFoundError:
            continue
        except OperatorError as unsafe:
            wrong.append(failure("D403", unsafe.what, unsafe.remedy))
        except OSError as cause:
            remedy = "Run this as the user that the program runs as, or correct the file's owner."
            wrong.append(failure("D403", f"{place} cannot be read: {cause.strerror}.", remedy))
    return wrong or [fine("D403", f"{number} secret files can be read only by their owner, as required.")]


def judge_disk(free_bytes: int, free_files: int | None = None) -> Finding:
    """Check whether the disk of the state directory has enough free space, and can hold more files.

    `free_files` is the number of files that can still be created. None means that the file system has no limit.
    """
    if free_files is not None and free_files < TOO_FEW_FILES:
        says = f"Only {free_files} more files can be created on the disk of the state directory (free inodes)."
        remedy = (
            "Delete files that nobody needs from this disk, but none in the state directory. `df -i` shows the free "
        )
        return failure("D405", says, remedy + "inodes.")
    says = f"{free_bytes / 1e9:.1f} GB are free on the disk of the state directory."
    if free_bytes < TOO_FEW_BYTES:
        return failure("D405", says, "Free disk space now. If less than 1 MB is free, nothing is sent.")
    if free_bytes < FEW_BYTES:
        return warning("D405", says, "Free space, or move the state to a larger disk.")
    return fine("D405", says)


def judge_validity(
    owner: str,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    renewal: str,
    late_days: float = RENEWAL_IS_LATE_DAYS,
) -> Finding:
    """Check how many days remain before a certificate expires, by this computer's clock. Times have a time zone.

    `owner` is the sentence's subject. `renewal` explains how to get a new certificate. With fewer than `late_days`
    left, the owner is warned.
    """
    if now < start:
        return failure("D404", f"{owner} is not valid yet. {outside(start, end, now)}", SET_CLOCK)
    if now >= end:
        return failure("D404", f"{owner} has expired. {outside(start, end, now)}", f"{COMPARE_CLOCK} {renewal}")
    days_left = (end - now).total_seconds() / 86400
    if days_left < late_days:
        return warning("D404", f"{owner} expires in {days_left:.0f} days.", renewal)
    return fine("D404", f"{owner} is valid for {days_left:.0f} more days.")


def judge_clock(is_synchronised: bool | None, seconds_apart: float | None = None) -> Finding:
    """Check this computer's clock: whether a time server sets it, and how far it is from the coordinator's clock."""
    remedy = "Run `timedatectl set-ntp true`, or ask the administrator of the time server."
    if seconds_apart is not None and abs(seconds_apart) > WIDEST_CLOCK_DIFFERENCE_SECONDS:
        return failure(
            "D406",
            (f"This computer's clock is not the same as the coordinator's clock. It is {clocks_apart(seconds_apart)}."),
            remedy,
        )
    if seconds_apart is not None:
        return fine("D406", f"This computer's clock and the coordinator's clock differ by {abs(seconds_apart):.1f} s.")
    if is_synchronised is False:
        return warning("D406", "No time server sets this computer's clock.", remedy)
    return fine(
        "D406",
        "A time server sets the clock."
        if is_synchronised
        else "The kernel does not report whether a time server sets the clock.",
    )


def fault_of(path: Path, site: str | None) -> StoreError | ConfigurationError | None:
    """Check the structure of a store and all records of its audit log. Return the error, or None if it is whole."""
    try:
        with closing(AuditLog(path, site=site, now=lambda: datetime.now(UTC), exists=True)) as log:
            for _ in log.checked():
                pass
    except (StoreError, ConfigurationError) as fault:
        return fault
    return None


def free_on_disk(place: Path) -> tuple[int, int | None]:
    """Return the free bytes and the number of files that can still be created, on the disk of a path.

    If the path does not exist, the nearest existing folder above it counts. Some file systems have no limit of files;
    for them the number is None.
    """
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else None


def is_clock_synchronised() -> bool | None:
    """Return whether a time server sets this computer's clock, or None if the kernel does not report this."""
    buffer = ctypes.create_string_buffer(512)  # larger than struct timex everywhere; zeros only read the state
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None
    return None if state < 0 else state != _TIME_ERROR
