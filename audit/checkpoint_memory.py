"""Stores signed positions of audit logs (checkpoints): those of other programs, and this program's own cosigned ones.

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
    """Return the last checkpoint of an owner's audit log that this program cosigned.

    Raises:
        CheckpointRefused: the stored file is no checkpoint.
    """
    return _checkpoint(_path(folder, "kept", owner))


def kept_checkpoints(folder: Path) -> list[LogCheckpoint]:
    """Return the stored checkpoints of all other audit logs, sorted by the owner of the log."""
    found = [_read(path) for path in sorted(folder.glob("kept-*.json"))]
    return [checkpoint_from_facts(facts) for facts in found if facts is not None]


def keep_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Store a checkpoint of another program's audit log, before this program cosigns the checkpoint."""
    _write(_path(folder, "kept", signed.owner), checkpoint_facts(signed))


def put_aside(folder: Path, signed: LogCheckpoint) -> None:
    """Keep an owner's stored checkpoint under another file name, because the owner has a new identity key."""
    _write(_path(folder, "former", signed.owner, signed.key), checkpoint_facts(signed))
    _path(folder, "kept", signed.owner).unlink()


def former_checkpoint(folder: Path, owner: str, key: bytes) -> LogCheckpoint | None:
    """Return an owner's checkpoint that was stored under an earlier identity key (32 raw bytes), or None.

    Raises:
        CheckpointRefused: the stored file is no checkpoint.
    """
    return _checkpoint(_path(folder, "former", owner, key))


def own_checkpoint(folder: Path) -> LogCheckpoint | None:
    """Return the last checkpoint of this program's own audit log that the other program cosigned."""
    return _checkpoint(folder / _OWN)


def known_generation(folder: Path) -> int:
    """Return the generation number of this program's last cosigned checkpoint, or 0 if it cannot be read."""
    try:
        last = own_checkpoint(folder)
    except CheckpointRefused:  # damaged together with the log
        return 0
    return last.generation if last else 0


def keep_own_checkpoint(folder: Path, signed: LogCheckpoint) -> None:
    """Store a cosigned checkpoint of this program's own audit log."""
    _write(folder / _OWN, checkpoint_facts(signed))


def peer_key(folder: Path, owner: str) -> bytes | None:
    """Return the identity key (32 raw bytes) that another program presented at its first connection."""
    facts = _read(_path(folder, "key", owner))
    try:
        return None if facts is None else bytes.fromhex(facts["key"])
    except (KeyError, TypeError, ValueError) as cause:
        raise CheckpointRefused("its stored identity key cannot be read") from cause


def keep_peer_key(folder: Path, owner: str, key: bytes) -> None:
    """Store the identity key that another program presents at its first connection."""
    _write(_path(folder, "key", owner), {"owner": owner, "key": key.hex()})


def kept_budget(folder: Path, owner: str) -> dict[str, Any] | None:
    """Return the stored limit of bytes that an owner can add to this audit log, or None. A damaged file is {}."""
    try:
        return _read(_path(folder, "budget", owner))
    except CheckpointRefused:
        return {}


def keep_budget(folder: Path, owner: str, facts: dict[str, Any]) -> None:
    """Store the limit of bytes that an owner can add to this program's audit log."""
    _write(_path(folder, "budget", owner), facts)


def _path(folder: Path, kind: str, owner: str, key: bytes = b"") -> Path:
    of_key = f"-{key.hex()[:16]}" if key else ""
    return folder / f"{kind}-{owner.replace('/', '-')}{of_key}.json"


def _checkpoint(path: Path) -> LogCheckpoint | None:
    facts = _read(path)
    return None if facts is None else checkpoint_from_facts(facts)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as cause:
        raise CheckpointRefused(f"the file {path.name} with the stored checkpoint cannot be read") from cause
    if not isinstance(facts, dict):
        raise CheckpointRefused(f"the file {path.name} with the stored checkpoint cannot be read")
    return facts


def _write(path: Path, facts: dict[str, Any]) -> None:
    make_folder(path.parent)
    replace_file(path, json.dumps(facts, indent=1).encode())
