"""Records in the audit log which hospitals' own authorities are accepted, and each change of this list.

The list is stored on disk, so that the next coordinator reports a change that was made while none ran.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from host.durable import on_disk, replace_file

FILE: Final = "own-authorities.json"


class CountingAuthorities:
    """Stores the accepted authorities, by the SHA-256 of their certificates, each with its site."""

    def __init__(self, path: Path | None, record: Callable[..., None]) -> None:
        """Read the stored list of authorities. `record` writes an event into the audit log."""
        self._path, self._record = path, record
        self._said = _read(path) if path else {}

    def note(self, counting: Mapping[str, str]) -> None:
        """Record which authorities are accepted now, and which are no longer accepted.

        Raises:
            AuditError: the log cannot be written.
            UnavailableError: the list cannot be written to the disk; it is recorded again at the next start.
        """
        for sha256 in sorted(counting.keys() - self._said.keys()):
            self._record("own_authority_counts", site=counting[sha256], authority_sha256=sha256)
        for sha256 in sorted(self._said.keys() - counting.keys()):
            self._record("own_authority_removed", site=self._said[sha256], authority_sha256=sha256)
        if counting != self._said:
            self._said = dict(counting)
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        with on_disk(
            what="The list of accepted hospital authorities cannot be written",
            consequence="The register of sites and its record are unchanged. The coordinator stopped.",
        ):
            replace_file(self._path, json.dumps(self._said, indent=2, sort_keys=True).encode())


def _read(path: Path) -> dict[str, str]:
    """Read the list of an earlier process. A lost, damaged or unreadable list counts as empty."""
    try:
        return {str(sha256): str(site) for sha256, site in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        return {}
