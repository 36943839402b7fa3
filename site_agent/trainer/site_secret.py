"""The site's secret, the source of its private random draws. It is created once, beside its models.

First values of private layers, the order of batches and dropout follow from it and from the plan. So a run repeats to
the bit at its own site, and nobody who has the plan alone can compute what this site drew. The rules:

* it is made from the operating system's random numbers, once, with mode 0600, in the trainer's own folder;
* it is in the site's backups and in no message, log, report or export;
* a file that others may read, or of another length, is refused and never replaced.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError
from site_agent.trainer.trainer_files import write_whole

SECRET_BYTES: Final = 32
_NAME: Final = "site.secret"


def site_secret(folder: Path) -> bytes:
    """Return the secret in the trainer's folder, 32 bytes. The first call creates it.

    Raises:
        ConfigurationError: others may read it, or it is no such file.
        UnavailableError: the disk does not take it.
    """
    path = folder / _NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        write_whole(path, secrets.token_bytes(SECRET_BYTES))
        return site_secret(folder)
    except OSError as cause:
        raise _refused(path, f"cannot be read: {cause.strerror}") from cause
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
            raise _refused(path, "can be read by other accounts, or is not a regular file")
        content = file.read(SECRET_BYTES + 1)
    if len(content) != SECRET_BYTES:
        raise _refused(path, f"has another length than {SECRET_BYTES} bytes")
    return content


def _refused(path: Path, because: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"The site's secret {path} {because}.",
        consequence="Nothing was trained and nothing left this site.",
        remedy=f"Run `chmod 600 {path}` if you trust its content, or restore the file from the newest backup.",
    )
