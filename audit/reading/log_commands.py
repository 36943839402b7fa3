"""The common parts of `audit verify`, `audit show` and `audit export` in both programs.

Reads a log and writes a report; never the log itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from audit.audit_log import Consequences, broken_log
from audit.log_files import BrokenFile
from audit.reading.log_keys import read_checkpoints, read_keys
from audit.reading.log_page import as_html
from audit.reading.log_report import Choice, as_csv, chosen, moment
from audit.reading.log_verification import KnownKeys, Verification, facts_in, verify_log
from host.durable import new_file
from protos.errors import UsageError
from protos.wire.log_checkpoints import LogCheckpoint

_READING: Final = Consequences(of_damage="The log proves nothing after that place. Nothing was changed.", of_no_room="")


@dataclass(frozen=True)
class Desk:
    """One log as its reader has it.

    Attributes:
        path: the log's present file.
        owner: whose log it is.
        keys: public keys that are known.
        kept: checkpoints that were kept outside the log.
    """

    path: Path
    owner: str
    keys: KnownKeys
    kept: tuple[LogCheckpoint, ...] = ()

    def given(self, keys: Path | None, checkpoints: Path | None) -> Desk:
        """Return the desk with the reader's own files of public keys and of checkpoints."""
        return replace(
            self,
            keys=self.keys if keys is None else read_keys(keys),
            kept=self.kept if checkpoints is None else (*self.kept, *read_checkpoints(checkpoints)),
        )

    def verification(self) -> Verification:
        """Check the log. An AuditError names the first fault."""
        try:
            return verify_log(self.path, owner=self.owner, keys=self.keys, kept=self.kept)
        except BrokenFile as broken:
            raise broken_log(str(broken), _READING) from broken

    def shown(self, choice: Choice) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield number and facts of the chosen records. An AuditError names the first fault."""
        try:
            yield from ((number, dict(facts)) for number, facts in chosen(facts_in(self.path), choice))
        except BrokenFile as broken:
            raise broken_log(str(broken), _READING) from broken

    def export(self, output: Path, choice: Choice, title: str) -> int:
        """Write a report with mode 0600, complete or not at all. Return the number of records.

        Raises:
            UsageError: the file exists, or its name says neither CSV nor HTML.
        """
        if output.suffix not in (".csv", ".html"):
            raise UsageError(
                what=f"{output} does not end with .csv or .html.",
                consequence="Nothing was written.",
                remedy="The name of --output must end with .csv or .html.",
            )
        records = list(self.shown(choice))
        if output.suffix == ".csv":
            text = as_csv(records)
        else:
            text = as_html(title, summary(self.verification(), choice), records)
        try:
            file = new_file(output)
        except FileExistsError as cause:
            raise UsageError(
                what=f"{output} exists already.",
                consequence="It is unchanged.",
                remedy="Choose another name for --output.",
            ) from cause
        with os.fdopen(file, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        return len(records)


def time_given(text: str | None, option: str) -> datetime | None:
    """Return the day or time that a person typed. Raises UsageError for anything else."""
    try:
        return None if text is None else moment(text)
    except ValueError as cause:
        raise UsageError(
            what=f"{option} {text!a} is not a day or a time.",
            consequence="Nothing was read or written.",
            remedy="Use the form 2026-03-01 or 2026-03-01T14:30, in UTC.",
        ) from cause


def lines(found: Verification) -> Iterator[str]:
    """Yield the result of a verification, for a terminal."""
    gone = f"; the first {found.first} were deleted when their time was over" if found.first else ""
    yield f"{found.position.sequence} records in {found.files} file{'s' * (found.files != 1)}, unbroken{gone}."
    yield f"Checkpoint {found.position.hash}."
    if found.witnesses:
        waiting = found.position.sequence - found.cosigned
        by = ", ".join(found.witnesses)
        yield f"Cosigned by {by} up to record {found.cosigned}. Later records, not cosigned yet: {waiting}."
    else:
        yield "The other side has not cosigned this log yet. Only `--checkpoints` can detect that it was rewritten."
    if found.kept_checkpoints:
        yield f"Checkpoints kept outside the log that agree with it: {found.kept_checkpoints}."
    if found.unchecked:
        yield f"Not compared with a known key (give --keys): {', '.join(found.unchecked)}."


def summary(found: Verification, choice: Choice) -> list[tuple[str, str]]:
    """Return the result of a verification, for a page."""
    period = f"{choice.since or 'the beginning'} to {choice.until or 'the end'}"
    return [
        ("Study", choice.study or "all"),
        ("Period", period),
        *(("Log", line) for line in lines(found)),
    ]
