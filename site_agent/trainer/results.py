"""Files that a person asked for by name: never in the place of the hospital's own, whole, readable by their owner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protos.errors import UsageError
from site_agent.config import Hospital
from site_agent.trainer.files import write_whole


def write_result(path: Path, content: bytes) -> None:
    """Write it with mode 0600, replacing an earlier one; `check_place` was asked before the work began."""
    write_whole(path, content)


def check_place(path: Path, option: str, hospital: Hospital, others: Sequence[Path] = ()) -> None:
    """Whether a result may be written there, before anything is computed.

    Args:
        path: as it was given.
        option: the option that gave it, such as --html.
        hospital: its table and contract are never overwritten.
        others: further files that are read, and must not be overwritten.

    Raises:
        UsageError: it would replace what is read, is no file, or lies in no folder.
    """
    kept = [*others, Path(hospital.data.table), Path(hospital.data.contract)]
    is_kept = any(one.exists() and path.exists() and path.samefile(one) for one in kept)
    if is_kept or (path.exists() and not path.is_file()):
        reason = "is this site's own table or contract, or a table to be read" if is_kept else "is not a file"
    elif not path.name or not path.parent.is_dir():
        reason = "lies in no folder that exists"
    else:
        return
    raise UsageError(
        what=f"Nothing can be written to {path.name or path}: it {reason}.",
        consequence="Nothing was predicted or overwritten, and nothing left this site.",
        remedy=f"Name another file with {option}.",
    )
