"""Reads and writes files of public keys and of stored checkpoints, with which anybody can verify a log.

Both are small JSON files without secrets. A verifier must not get them from the owner of the log. People compare the
fingerprints of the keys, and the witness sends the checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from audit.reading.log_verification import KnownKeys
from protos.errors import ConfigurationError
from protos.wire.log_checkpoints import CheckpointRefused, LogCheckpoint, checkpoint_facts, checkpoint_from_facts

_LARGEST_BYTES: Final = 4 << 20
_FORMAT: Final = 1


def keys_text(by_owner: Mapping[str, bytes]) -> str:
    """Return the text of a file with the public identity key of each owner. `by_owner` has raw keys of 32 bytes."""
    keys = {owner: key.hex() for owner, key in sorted(by_owner.items())}
    return json.dumps({"format": _FORMAT, "identity_keys": keys}, indent=2) + "\n"


def checkpoints_text(checkpoints: Iterable[LogCheckpoint]) -> str:
    """Return the text of a file with signed log checkpoints that another program (the witness) stored."""
    facts = [checkpoint_facts(signed) for signed in checkpoints]
    return json.dumps({"format": _FORMAT, "checkpoints": facts}, indent=2) + "\n"


def read_keys(path: Path) -> KnownKeys:
    """Read public keys from a file. Raises ConfigurationError if the file contains anything else."""
    try:
        keys = {str(owner): bytes.fromhex(key) for owner, key in _read(path)["identity_keys"].items()}
        if any(len(key) != 32 for key in keys.values()):
            raise ValueError("not 32 bytes")
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise _wrong(path, "public keys", "`pki keys`") from cause
    return keys


def read_checkpoints(path: Path) -> tuple[LogCheckpoint, ...]:
    """Read stored log checkpoints from a file. Raises ConfigurationError if the file contains anything else."""
    try:
        return tuple(checkpoint_from_facts(facts) for facts in _read(path)["checkpoints"])
    except (KeyError, TypeError, ValueError, CheckpointRefused) as cause:
        raise _wrong(path, "checkpoints", "`audit checkpoints`") from cause


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as cause:
        raise ConfigurationError(
            what=f"{path} cannot be read: {cause.strerror}.",
            consequence="Nothing was verified.",
            remedy="Check the path and its permissions.",
        ) from cause
    if len(content) > _LARGEST_BYTES:
        raise ValueError("too large")
    value = json.loads(content)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise ValueError("another format")
    return value


def _wrong(path: Path, what: str, maker: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"{path} is not a file of {what}.",
        consequence="Nothing was verified.",
        remedy=f"Ask for the file that {maker} writes.",
    )
