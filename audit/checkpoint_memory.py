"""Stores checkpoints: checkpoints that this program cosigned, and its own checkpoints that other programs cosigned.

They are small JSON files in one folder, each replaced as a whole and synced. A witness without its checkpoints would
cosign a rolled-back log. So the program also records them in its log. The folder also has the number of bytes that each
other member can still make this program record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from host.durable import make_folder, replace_file
from protos.wire.log_checkpoints import CheckpointRefused, LogCheckpoint, checkpoint_facts, checkpoint_from_facts

_OWN: Final = "own.json"


def kept_checkpoint(folder: Path, owner: str) -> LogCheckpoint | None:
    """Return the last checkpoint of this owner's log that this program cosigned.

    Raises:
        CheckpointRefused: the stored file is no checkpoint.
    """
    facts = _read(_kept_path(folder, owner))
    return None if facts is None else checkpoint_from_facts(facts)


def kept_checkpoints(folder: Path) -> list[LogCheckpoint]:
    """Return every stored checkpoint of other logs, sorted by owner."""
    found = [_read(path) for path in sorted(folder.glob("kept-*.json"))]
    return [checkpoint_from_facts(facts) for facts in found if facts is not None]


def keep_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Store a checkpoint of another log before it is cosigned."""
    _write(_kept_path(folder, signed.owner), checkpoint_facts(signed))


def put_aside(folder: Path, signed: LogCheckpoint) -> None:
    """Rename the stored checkpoint of an owner whose identity key was replaced, so that it is kept."""
    _write(_former_path(folder, signed.owner, signed.key), checkpoint_facts(signed))
    _kept_path(folder, signed.owner).unlink()


def former_checkpoint(folder: Path, owner: str, key: bytes) -> LogCheckpoint | None:
    """Return the stored checkpoint of this owner's log under a former identity key (raw, 32 bytes), if any.

    Raises:
        CheckpointRefused: the stored file is no checkpoint.
    """
    facts = _read(_former_path(folder, owner, key))
    return None if facts is None else checkpoint_from_facts(facts)


def own_checkpoint(folder: Path) -> LogCheckpoint | None:
    """Return the last checkpoint of this program's own log that the other side cosigned."""
    facts = _read(folder / _OWN)
    return None if facts is None else checkpoint_from_facts(facts)


def keep_own_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Store a cosigned checkpoint of this program's own log."""
    _write(folder / _OWN, checkpoint_facts(signed))


def peer_key(folder: Path, owner: str) -> bytes | None:
    """Return the identity key that a peer presented at its first connection, raw, 32 bytes."""
    facts = _read(_key_path(folder, owner))
    try:
        return None if facts is None else bytes.fromhex(facts["key"])
    except (KeyError, TypeError, ValueError) as cause:
        raise CheckpointRefused("the key that was kept of it cannot be read") from cause


def keep_peer_key(folder: Path, owner: str, key: bytes) -> None:
    """Store the identity key that a peer presents for the first time."""
    _write(_key_path(folder, owner), {"owner": owner, "key": key.hex()})


def kept_budget(folder: Path, owner: str) -> dict[str, Any] | None:
    """Return the stored budget of bytes that this owner can make this program record, or None. A damaged file is {}."""
    try:
        return _read(_budget_path(folder, owner))
    except CheckpointRefused:
        return {}


def keep_budget(folder: Path, owner: str, facts: dict[str, Any]) -> None:
    """Store the budget of bytes that this owner can make this program record."""
    _write(_budget_path(folder, owner), facts)


def _kept_path(folder: Path, owner: str) -> Path:
    return folder / f"kept-{owner.replace('/', '-')}.json"


def _former_path(folder: Path, owner: str, key: bytes) -> Path:
    return folder / f"former-{owner.replace('/', '-')}-{key.hex()[:16]}.json"


def _key_path(folder: Path, owner: str) -> Path:
    return folder / f"key-{owner.replace('/', '-')}.json"


def _budget_path(folder: Path, owner: str) -> Path:
    return folder / f"budget-{owner.replace('/', '-')}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as cause:
        raise CheckpointRefused(f"{path.name}, where it was kept, cannot be read") from cause
    if not isinstance(facts, dict):
        raise CheckpointRefused(f"{path.name}, where it was kept, cannot be read")
    return facts


def _write(path: Path, facts: dict[str, Any]) -> None:
    make_folder(path.parent)
    replace_file(path, json.dumps(facts, indent=1).encode())
