"""Starts a new audit log in place of one that is damaged, or that was restored from a backup. A person causes this.

The new log has a higher generation number, which each witness receives with the next checkpoint. The earlier files stay
beside the new log under other names, and the program still reads their undamaged records.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from audit.log_files import RESTARTED, RESTORED_FROM, set_aside
from audit.own_log import AuditError, AuditLog
from host.computer_checks import free_on_disk
from host.durable import RECORDS_RESERVE_BYTES, make_folder, require_room

_COUNTED_SINCE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_FIRST_RECORDS_BYTES: Final = 1 << 16


def restart_log(
    path: Path,
    *,
    site: str | None,
    by: str,
    because: str,
    now: Callable[[], datetime],
    known: int = 0,
    backup: str | None = None,
) -> int:
    """Rename all files of an audit log, and start a new log. Return the new log's generation number.

    Args:
        path: the current file of the log.
        site: None for the coordinator's log.
        by: the person, or the user account that restored a backup.
        now: returns aware UTC times.
        known: the highest generation number of this log that a stored checkpoint has.
        backup: when the restored backup was made; None if nothing was restored.

    Raises:
        AuditError: the new log cannot be written. If the disk is full, the files of the log keep their names. If
            only the renaming succeeded, a program could begin a log without a higher generation. The witness refuses
            such a log.
    """
    try:
        make_folder(path.parent)
        require_room(path.parent, _FIRST_RECORDS_BYTES, RECORDS_RESERVE_BYTES)
        if free_on_disk(path.parent)[1] == 0:
            raise OSError(errno.ENOSPC, "its disk can hold no more files (free inodes)")
        generation = set_aside(path, now(), least=max(known, _counted(now()) - 1))
    except OSError as cause:
        raise AuditError(
            what=f"The audit log cannot be restarted: {cause.strerror}.",
            consequence="No new log was started.",
            remedy="Free space on the disk of the state directory, or correct its permissions. Then run this command "
            "again before you start the program.",
        ) from cause
    log = AuditLog(path, site=site, now=now)
    restored = {} if backup is None else {RESTORED_FROM: backup}
    log.write(RESTARTED, generation=generation, by=by, reason=because, **restored)
    if backup is not None:
        log.write("state_restored", made=backup)
    log.close()
    return generation


def _counted(now: datetime) -> int:
    """Return the seconds since 2020, as the lowest generation number of a log that starts now.

    After a loss nobody can read which generation the lost log had. The witness refuses a number that is not higher. The
    seconds since 2020 fit into a checkpoint's generation number until the year 2088.
    """
    return int((now - _COUNTED_SINCE).total_seconds())
