"""Stores the absence that a person announced for this site. The site reports it to the coordinator when it connects.

`site-agent maintenance` writes it to a small file in the state directory. When the file changes, the agent reconnects
and its greeting reports the begin and the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from host.durable import replace_file
from protos.errors import ConfigurationError, UnavailableError, UsageError

FILE: Final = "maintenance.json"
LONGEST_DAYS: Final = 14  # the limit of coordinator/rounds/absences.py
WINDOW_POLL_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Window:
    """A period of absence from begin to end, as aware UTC times. The end is after the beginning."""

    begins: datetime
    ends: datetime

    @property
    def seconds(self) -> tuple[int, int]:
        """Return the begin and the end of the absence, in seconds since 1970."""
        return int(self.begins.timestamp()), int(self.ends.timestamp())


def window_from(begins: str, ends: str, now: datetime) -> Window:
    """Read the begin and the end of an absence from ISO times. A time without a zone is in this computer's time zone.

    Raises:
        UsageError: a time is invalid, or the period is over, has no length, or is longer than LONGEST_DAYS.
    """
    try:
        window = Window(*(datetime.fromisoformat(text).astimezone(UTC) for text in (begins, ends)))
    except (ValueError, OverflowError) as cause:
        raise _unfit("--from and --until have to be times such as 2026-05-01T22:00") from cause
    if not (window.begins < window.ends and now < window.ends):
        raise _unfit("the window is over, or ends before it begins")
    if (window.ends - window.begins).days >= LONGEST_DAYS or (window.begins - now).days >= LONGEST_DAYS:
        raise _unfit(f"a window lasts less than {LONGEST_DAYS} days and begins in less than {LONGEST_DAYS}")
    return window


def keep_window(state: Path, window: Window | None) -> None:
    """Store the announced absence on disk, in place of the previous one. The value None removes the absence.

    Raises:
        UnavailableError: the disk cannot be written.
    """
    content = {} if window is None else {"from": window.begins.isoformat(), "until": window.ends.isoformat()}
    try:
        replace_file(state / FILE, json.dumps(content).encode())
    except OSError as cause:
        raise UnavailableError(
            what=f"The announced absence cannot be written to the disk: {cause.strerror}.",
            consequence="No absence was announced.",
            remedy="Free space on the disk of the state directory, or correct its permissions, and try again.",
        ) from cause


def kept_window(state: Path) -> Window | None:
    """Return the announced absence from the disk, even if the time of this absence is over.

    Raises:
        ConfigurationError: the file is not one of this program's.
    """
    try:
        content = json.loads((state / FILE).read_bytes())
        return Window(*(datetime.fromisoformat(content[key]) for key in ("from", "until"))) if content else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise ConfigurationError(
            what=f"The file {state / FILE} is damaged or was not written by `site-agent maintenance`.",
            consequence="No absence was announced to the coordinator.",
            remedy="Announce the absence again, or cancel it with `site-agent maintenance --cancel`.",
        ) from cause


def window_seconds(state: Path) -> tuple[int, int]:
    """Return the begin and the end of the stored absence in seconds since 1970; 0 and 0 if no absence is stored."""
    window = kept_window(state)
    return (0, 0) if window is None else window.seconds


def require_window(state: Path, told: tuple[int, int]) -> None:
    """Check that the absence on disk is the same as the absence that was reported to the coordinator.

    Raises:
        UnavailableError: the absence has changed; the stream must restart with it.
    """
    if window_seconds(state) == told:
        return
    raise UnavailableError(
        what="A person at this hospital has announced or cancelled an absence of this site.",
        consequence="Nothing is lost. This site reconnects to report the change to the coordinator.",
        remedy="You need not do anything.",
    )


def _unfit(what: str) -> UsageError:
    return UsageError(
        what=f"The absence cannot be announced: {what}.",
        consequence="No absence was announced.",
        remedy="Correct the times of --from and --until, then try again.",
    )
