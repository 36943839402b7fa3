"""Writes result files to places that a person chose, and protects the hospital's own files from being replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protos.errors import UnavailableError, UsageError
from site_agent.hospital import Hospital
from site_agent.trainer.disk import write_whole


def write_result(path: Path, content: bytes) -> None:
    """Write a file after `check_place`. Raise UnavailableError if the disk can't, ConfigurationError at a link."""
    try:
        write_whole(path, content)
    except UnavailableError as error:
        raise UnavailableError(
            what=error.what,
            consequence="The file was not written, an earlier file of this name is unchanged, and nothing was sent.",
            remedy="Free space on this disk, or name a folder to which you may write. Then start the command again.",
        ) from error


def check_place(path: Path, option: str, hospital: Hospital, others: Sequence[Path] = ()) -> None:
    """Check that a result can be written to a path, and replaces no input. Raise UsageError if it can't."""
    kept = [*others, Path(hospital.data.table), Path(hospital.data.contract)]
    is_kept = any(one.exists() and path.exists() and path.samefile(one) for one in kept)
    if path.resolve().is_relative_to(hospital.state_path.resolve()):
        reason = "lies in this site's state folder, where keys, audit log and models are"
    elif is_kept or (path.exists() and not path.is_file()):
        reason = "is read by this command, or this site's own table or contract" if is_kept else "is not a file"
    elif not path.name or not path.parent.is_dir():
        reason = "lies in no folder that exists"
    else:
        return
    raise UsageError(
        what=f"The result cannot be written to {path.name or path}: this path {reason}.",
        consequence="Nothing was computed or overwritten, and nothing was sent.",
        remedy=f"Give another file name with the option {option}.",
    )
