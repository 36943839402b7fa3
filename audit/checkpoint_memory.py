"""What one program remembers of checkpoints: those that it cosigned for others, and its own that were.

A folder of small JSON files, each replaced whole and synced. A witness that lost them would cosign a rollback;
so they stand beside the log, and what they say is in the log too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from host.durable import make_folder, replace_file
from protos.wire.log_checkpoints import CheckpointRefused, LogCheckpoint, checkpoint_facts, checkpoint_from_facts

_OWN: Final = "own.json"


def kept_checkpoint(folder: Path, owner: str) -> LogCheckpoint | None:
    """The last checkpoint of this owner's log that was cosigned here.

    Raises:
        CheckpointRefused: the file in its place is no head.
    """
    facts = _read(_kept_path(folder, owner))
    return None if facts is None else checkpoint_from_facts(facts)


def kept_checkpoints(folder: Path) -> list[LogCheckpoint]:
    """Every checkpoint that was kept of others' logs, sorted by owner."""
    found = [_read(path) for path in sorted(folder.glob("kept-*.json"))]
    return [checkpoint_from_facts(facts) for facts in found if facts is not None]


def keep_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Keep a checkpoint that is about to be cosigned."""
    _write(_kept_path(folder, signed.owner), checkpoint_facts(signed))


def put_aside(folder: Path, signed: LogCheckpoint) -> None:
    """Keep the checkpoint of a former identity key under that key's name, beside the one of the new key."""
    _write(_former_path(folder, signed.owner, signed.key), checkpoint_facts(signed))
    _kept_path(folder, signed.owner).unlink()


def former_checkpoint(folder: Path, owner: str, key: bytes) -> LogCheckpoint | None:
    """The checkpoint that was put aside of this owner's log under this identity key (raw, 32 bytes), if there is one.

    Raises:
        CheckpointRefused: the file in its place is no head.
    """
    facts = _read(_former_path(folder, owner, key))
    return None if facts is None else checkpoint_from_facts(facts)


def own_checkpoint(folder: Path) -> LogCheckpoint | None:
    """The last checkpoint of the own log that somebody cosigned."""
    facts = _read(folder / _OWN)
    return None if facts is None else checkpoint_from_facts(facts)


def keep_own_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Keep a checkpoint of the own log that was cosigned."""
    _write(folder / _OWN, checkpoint_facts(signed))


def peer_key(folder: Path, owner: str) -> bytes | None:
    """The identity key that a peer has shown here first, raw, 32 bytes."""
    facts = _read(_key_path(folder, owner))
    try:
        return None if facts is None else bytes.fromhex(facts["key"])
    except (KeyError, TypeError, ValueError) as cause:
        raise CheckpointRefused("the key that was kept of it cannot be read") from cause


def keep_peer_key(folder: Path, owner: str, key: bytes) -> None:
    """Keep the identity key that a peer shows for the first time."""
    _write(_key_path(folder, owner), {"owner": owner, "key": key.hex()})


def _kept_path(folder: Path, owner: str) -> Path:
    return folder / f"kept-{owner.replace('/', '-')}.json"


def _former_path(folder: Path, owner: str, key: bytes) -> Path:
    return folder / f"former-{owner.replace('/', '-')}-{key.hex()[:16]}.json"


def _key_path(folder: Path, owner: str) -> Path:
    return folder / f"key-{owner.replace('/', '-')}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as cause:
        raise CheckpointRefused(f"{path.name}, where it was kept, cannot be read") from cause
    if not isinstance(facts, dict):
        raise CheckpointRefused(f"{path.name}, where it was kept, cannot be read")
    return facts


def _write(path: Path, facts: dict[str, Any]) -> None:
    make_folder(path.parent)
    replace_file(path, json.dumps(facts, indent=1).encode())
