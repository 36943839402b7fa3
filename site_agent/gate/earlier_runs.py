"""Reads the sums in which this site took part under other plans, and checks this record against the audit log.

A sum of one plan can be subtracted from a sum of another (docs/privacy.md). So every plan for which this site ever
masked counts, whatever its study is called. The rules:

* if a ledger cannot be read, is missing, or is older than the audit log or `spent/RUN.json`, this site does not mask
  until a person has restored the file;
* only the hospital's policy excludes a run, by its name (`uncounted_runs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from protos.errors import RefusedError
from protos.masking.answered_sets import Answer
from protos.masking.ledger import Ledger, Mark
from protos.masking.masking_refusals import MaskingRefused, Reason
from site_agent.gate.spent import Spent
from site_agent.state_folders import gate_folder

_LEDGERS: Final = "masking"


def ledger_path(state: Path, run: str) -> Path:
    """Return the path of the file that records the sums of a run in which this site took part."""
    return gate_folder(state) / _LEDGERS / f"{run}.json"


def masked_releases(released: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mark]]:  # Any: every JSON type
    """Return the run, the round and the attempt of every masked contribution, from the audit log's records."""
    return [(facts["run"], Mark(facts["round"], facts["attempt"])) for facts in released if facts["masked"]]


def check_ledgers(state: Path, uncounted: tuple[str, ...]) -> int:
    """Read the ledgers of all counted runs, and what was sent in each run. Return the number of files.

    Raises:
        RefusedError: a file cannot be read.
        OSError: a folder cannot be read.
    """
    spent = _files(gate_folder(state) / "spent")
    for path in spent:
        Spent(state, path.stem)
    ledgers = [path for path in _files(ledger_path(state, "").parent) if path.stem not in uncounted]
    for path in ledgers:
        try:
            Ledger.from_text(path.read_text(), path.stem)
        except (OSError, UnicodeDecodeError, MaskingRefused) as cause:
            raise RefusedError(
                what=f"The file {path} cannot be read. It contains the sums in which this site took part.",
                consequence="This site sends nothing. The study waits for this site.",
                remedy="Stop this site's programs, and move the state folder to another place. Copy the newest copy "
                "of the folder back, and declare it with `site-agent restored`.",
            ) from cause
    return len(spent) + len(ledgers)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".json") if folder.exists() else []


class EarlierRuns:
    """Reads the ledgers of all runs at one site."""

    def __init__(self, state: Path, released: Sequence[tuple[str, Mark]], uncounted: tuple[str, ...] = ()) -> None:
        """Store where the ledgers are, and all masked releases of the audit log. The policy excludes some runs."""
        self._state, self._released, self._uncounted = state, released, frozenset(uncounted)

    def answered_beside(self, run: str) -> list[Answer]:
        """Return the sums that this site answered in other runs.

        Raises:
            MaskingRefused: a ledger is unreadable, missing or too old.
        """
        marks = {name: found for name, found in self._witnessed().items() if name not in {run, *self._uncounted}}
        names = {path.stem for path in ledger_path(self._state, "").parent.glob("*.json")} - {run, *self._uncounted}
        found: list[Answer] = []
        for name in sorted(names | marks.keys()):
            ledger = self._read(name)
            for mark in marks.get(name, ()):
                ledger.refuse_if_older(mark)
            found += [ledger.answer] if ledger.answer is not None else []
        return found

    def _read(self, run: str) -> Ledger:
        try:
            return Ledger.from_text(ledger_path(self._state, run).read_text(), run)
        except FileNotFoundError:
            return Ledger(run)
        except (OSError, UnicodeDecodeError) as cause:
            raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause

    def _witnessed(self) -> dict[str, set[Mark]]:
        """Return the newest masked release of each run, from the audit log and from the files of `spent`."""
        found: dict[str, set[Mark]] = {}
        for run, mark in (*self._released, *self._kept()):
            found.setdefault(run, set()).add(mark)
        return {run: {max(marks)} for run, marks in found.items()}

    def _kept(self) -> Iterator[tuple[str, Mark]]:
        for path in sorted((gate_folder(self._state) / "spent").glob("*.json")):
            try:
                newest = Spent(self._state, path.stem).newest
            except RefusedError as cause:
                raise MaskingRefused(Reason.RECORD_UNREADABLE) from cause
            if newest is not None and newest.masked:
                yield path.stem, Mark(newest.round, newest.attempt)
