"""Records outside the audit log how much this site sent in each run. So limits still work if log files are deleted.

There is one small file per run, written before the announced step happens. Its first line has everything until this
process started, and each further line one contribution. The step of an incomplete last line did not happen. A line is
synced after its contribution was sent. So only a power failure can remove this line. The audit log then still has the
record of this contribution, which was synced before the contribution was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from host.durable import append_record, keep_record, on_disk, sync_file
from host.record_store import StoreError
from protos.errors import RefusedError
from protos.plan.documents import Document
from site_agent.state_folders import gate_folder


class Release(Document):
    """The newest contribution that was sent, with the facts of the audit log."""

    round: int
    attempt: int
    position: str
    stage: str
    offered_layers: str
    masked: bool = False


class _Kept(Document):
    rounds: dict[str, int]
    finished: str | None = None
    newest: Release | None = None


class _Sent(Document):
    bytes: int
    release: Release


class Spent:
    """Reads and writes the file that records what one run has sent.

    Attributes:
        finished: when the run was finished here, as an aware time, or None.
        newest: the contribution that was sent last, or None.
    """

    def __init__(self, state: Path, run: str) -> None:
        """Read the file of a run in the site's state directory. Raises RefusedError if the file cannot be read."""
        self._path = gate_folder(state) / "spent" / f"{run}.json"
        self._bytes: dict[int, int] = {}
        self.finished: datetime | None = None
        self.newest: Release | None = None
        self._read_releases: list[Release] = []  # those that the file still lists one by one
        try:
            self._read(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as cause:
            raise RefusedError(
                what=f"The file {self._path} cannot be read. This file counts the bytes that this site sent in a run.",
                consequence="Nothing of this run is sent.",
                remedy="Restore this site's state from a backup, and inform the data protection officer.",
            ) from cause
        self._takes_lines = False  # true only if this process has written the whole file
        self._is_synced = True

    @property
    def bytes_by_round(self) -> dict[int, int]:
        """Return how many bytes this site sent in each round. A repeated contribution counts once."""
        return dict(self._bytes)

    def beyond(self, released: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: every type that JSON has
        """Return the facts of sent contributions that the given records of the audit log do not contain.

        A power failure can remove the newest record. A person can set aside a log with damaged records.
        """
        known = {(facts["round"], facts["attempt"]) for facts in released}
        kept = [*self._read_releases, *([self.newest] if self.newest else [])]
        missing = {(release.round, release.attempt): release for release in kept}
        return [release.model_dump() for place, release in missing.items() if place not in known]

    def take(self, count: int, release: Release) -> None:
        """Record how many bytes this site will send, before it sends them.

        Raises:
            StoreError: the release cannot be recorded, so nothing may leave.
        """
        is_counted = self._bytes.get(release.round, -1) >= count
        if is_counted and self.newest == release:
            return
        sent = _Sent(bytes=count, release=release)
        self._count(sent)
        with on_disk(
            what="The number of bytes that this site will send cannot be recorded",
            consequence="Nothing was sent after this error.",
            kind=StoreError,
        ):
            self._write(sent)

    def sync(self) -> None:
        """Sync the newest line to disk, after its contribution was sent. Raises StoreError: the disk failed."""
        if not self._is_synced:
            with on_disk(
                what="The number of bytes that this site has sent cannot be stored on disk",
                consequence="The contribution of this round was already sent. The audit log has its record. This site "
                "sends nothing more.",
                kind=StoreError,
            ):
                sync_file(self._path)
            self._is_synced = True

    def finish(self, at: datetime) -> None:
        """Record that the run ended at an aware time. Raises StoreError: the end cannot be recorded."""
        self.finished = at
        with on_disk(
            what="The end of this run cannot be recorded",
            consequence="The contributions that this site already sent stay valid. Nothing more was sent.",
            kind=StoreError,
        ):
            self._write()

    def _read(self, content: bytes) -> None:
        first, *lines = content.split(b"\n")
        kept = _Kept.model_validate_json(first)
        self._bytes = {int(number): count for number, count in kept.rounds.items()}
        self.finished = None if kept.finished is None else datetime.fromisoformat(kept.finished)
        self.newest = kept.newest
        self._read_releases = [] if kept.newest is None else [kept.newest]
        for line in lines[:-1]:
            sent = _Sent.model_validate_json(line)
            self._count(sent)
            self._read_releases.append(sent.release)

    def _count(self, sent: _Sent) -> None:
        self._bytes[sent.release.round] = max(sent.bytes, self._bytes.get(sent.release.round, 0))
        self.newest = sent.release

    def _write(self, sent: _Sent | None = None) -> None:
        """Append one contribution if possible, else replace the file. Replacing a large file would slow each round."""
        takes_lines, self._takes_lines = self._takes_lines, False  # after a partial line, the whole file is replaced
        if takes_lines and sent is not None:
            append_record(self._path, _line(sent), syncs=False)
            self._is_synced = False
        else:
            rounds = {str(number): count for number, count in sorted(self._bytes.items())}
            finished = self.finished.isoformat() if self.finished else None
            keep_record(self._path, _line(_Kept(rounds=rounds, finished=finished, newest=self.newest)))
        self._takes_lines = True


def _line(content: Document) -> bytes:
    return content.model_dump_json().encode() + b"\n"
