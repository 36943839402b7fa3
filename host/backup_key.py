"""Makes and reads the key that seals backups. People keep this key on paper, in case the computer is lost.

A backup has everything except this key. So a person who can write to the place of the backups cannot make one that is
restored without a question. The rules:

* the key is 20 random bytes, written as 32 letters and digits that can be read aloud, mode 0600;
* `restore` finds the key beside the present state, or in a file that a person wrote from the paper;
* without the key a backup is restored only if a person uses the option `--unauthenticated`.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from host.durable import opened_folder, replace_file
from protos.errors import ConfigurationError
from protos.fingerprints import grouped

NAME: Final = "backup.seal"  # excluded from every backup (backup_archive.py)
_BYTES: Final = 20
_CONTEXT: Final = b"global-layers 2026-11 seal of a backup"


def made_key(folder: Path) -> str:
    """Return the backup key in a state's folder, as text that people can copy. The first call creates the key.

    Raises:
        ConfigurationError: the file was changed, or others can read it.
        OSError: the disk cannot be written.
    """
    known = kept_key(folder)
    if known is None:
        keep_key(folder, grouped(secrets.token_bytes(_BYTES)))
        known = kept_key(folder)
    assert known is not None
    return known


def keep_key(folder: Path, words: str) -> None:
    """Write a given backup key into the folder of a state, for example after a restore."""
    replace_file(folder / NAME, f"{words}\n".encode())


def kept_key(folder: Path) -> str | None:
    """Return the backup key beside a state directory, or None if there is no key."""
    if not (folder / NAME).exists():
        return None
    with opened_folder(folder) as opened:
        descriptor = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
            raise _refused(f"Other user accounts can read {folder / NAME}", f"Run `chmod 600 {folder / NAME}`.")
        return _words(file.read(100), str(folder / NAME))


def typed_key(path: Path) -> str:
    """Read the key that a person copied from paper. Raises ConfigurationError for an unreadable file or key."""
    try:
        return _words(path.read_bytes()[:100], str(path))
    except OSError as cause:
        raise _refused(f"{path} cannot be read: {cause.strerror}", "Check the path and its permissions.") from cause


def key_for_restoring(folder: Path, key_file: Path | None, *, unauthenticated: bool) -> str | None:
    """Return the backup key for a restore, or None if a person accepts that the backup may have no seal.

    Args:
        key_file: a file that a person wrote from the paper.

    Raises:
        ConfigurationError: there is no key, and nobody has confirmed a restore without it.
    """
    if unauthenticated:
        return None
    key = kept_key(folder) if key_file is None else typed_key(key_file)
    if key is None:
        raise _refused(
            f"There is no backup key in {folder}, so nobody can tell who made this backup",
            "Write the key of the paper into a file and name it with --key-file. If the paper is lost, and you know "
            "that nobody could change the backup, add --unauthenticated.",
        )
    return key


def sealing_key(words: str) -> bytes:
    """Derive the 32-byte key that authenticates backups from the text of the backup key."""
    return hmac.digest(_bytes(words), _CONTEXT, "sha256")


def _words(raw: bytes, source: str) -> str:
    try:
        return grouped(_bytes(raw.decode("ascii")))
    except ValueError as cause:
        raise _refused(f"{source} has no backup key", "Write the 32 letters and digits of the paper.") from cause


def _bytes(words: str) -> bytes:
    found = base64.b32decode("".join(words.replace("-", "").split()).upper())
    if len(found) != _BYTES:
        raise ValueError("a backup key has 32 letters and digits")
    return found


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what=f"{what}.", consequence="Nothing was changed.", remedy=remedy)
