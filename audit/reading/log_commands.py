"""Implements the commands `audit verify`, `audit show` and `audit export` of both programs.

They never change the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from audit.log_files import BrokenFile
from audit.own_log import broken_log
from audit.reading.log_keys import read_checkpoints, read_keys
from audit.reading.log_page import as_html
from audit.reading.log_report import Choice, Facts, as_csv, chosen, line, moment
from audit.reading.log_verification import KnownKeys, Verification, facts_in, verify_log
from host.command_line import PATH
from host.durable import new_file
from protos.errors import UsageError
from protos.wire.log_checkpoints import COORDINATOR, LogCheckpoint, owner_of_site

_READING: Final = "The log proves nothing after that place. Nothing was changed."


@dataclass(frozen=True)
class Desk:
    """An audit log, with the public keys and checkpoints that the reader of the log has.

    Attributes:
        kept: checkpoints stored outside the log.
    """

    path: Path
    owner: str
    keys: KnownKeys
    kept: tuple[LogCheckpoint, ...] = ()

    def given(self, keys: Path | None, checkpoints: Path | None) -> Desk:
        """Return a copy of this object that uses the reader's own files of public keys and of checkpoints."""
        return replace(
            self,
            keys=self.keys if keys is None else read_keys(keys),
            kept=self.kept if checkpoints is None else (*self.kept, *read_checkpoints(checkpoints)),
        )

    def verification(self) -> Verification:
        """Verify the audit log. Raises AuditError at the first fault."""
        try:
            return verify_log(self.path, owner=self.owner, keys=self.keys, kept=self.kept)
        except BrokenFile as broken:
            raise broken_log(str(broken), _READING) from broken

    def shown(self, choice: Choice) -> Iterator[tuple[int, Facts]]:
        """Yield the number and the facts of each selected record. Raises AuditError at the first fault in the log."""
        try:
            yield from chosen(facts_in(self.path), choice)
        except BrokenFile as broken:
            raise broken_log(str(broken), _READING) from broken

    def export(self, output: Path, choice: Choice, title: str) -> int:
        """Write a report about records to a new file (mode 0600). Return the number of records.

        Raises:
            UsageError: the file exists, or its name ends with neither .csv nor .html.
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
                consequence="The existing file is unchanged.",
                remedy="Choose another name for --output.",
            ) from cause
        with os.fdopen(file, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        return len(records)


def time_given(text: str | None, option: str) -> datetime | None:
    """Parse a day or time that a person typed. Raises UsageError for any other text."""
    try:
        return None if text is None else moment(text)
    except ValueError as cause:
        raise UsageError(
            what=f"{option} {text!a} is not a day or a time.",
            consequence="Nothing was read or written.",
            remedy="Use the form 2026-03-01 or 2026-03-01T14:30, in UTC.",
        ) from cause


def lines(found: Verification) -> Iterator[str]:
    """Yield the result of an audit log's verification as lines for a terminal."""
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
    """Return the result of an audit log's verification as names and texts for a page."""
    period = f"{choice.since or 'the beginning'} to {choice.until or 'the end'}"
    return [("Study", choice.study or "all"), ("Period", period), *(("Log", text) for text in lines(found))]


_since: Final = click.option("--since", help="Show records from this day or time, UTC.")
_until: Final = click.option("--until", help="Show records before this day or time, UTC.")


because_option: Final = click.option(
    "--because", required=True, help="Reason for the restart in a few words, written to the audit log."
)


def restarted(generation: int, by: str) -> str:
    """Return the line that a command prints after a person has restarted an audit log."""
    return f"{by} restarted the log. It is generation {generation}. The earlier files are kept beside it."


@dataclass(frozen=True, kw_only=True)
class LogProgram:
    """A program with commands that read its audit log. These commands change nothing.

    With --log instead of --config a person outside checks a copy. That needs only public keys.

    Attributes:
        command: the program's name, such as `site-agent`.
        file: the name of its configuration.
        desk_of: a function that returns the log of a configuration, given the configuration's path.
        is_site: a copy may be the log of any site, so --site must name the site.
    """

    command: str
    file: str
    desk_of: Callable[[Path], Desk]
    is_site: bool

    def group(self, purpose: str) -> click.Group:
        """Return the command group `audit` with this help text."""
        return click.Group("audit", commands=[_verify(self), _show(self), _export(self)], help=purpose)

    def reading(self, command: Callable[..., None]) -> Callable[..., None]:
        """Add to a command the options with which a person selects an audit log."""
        if self.is_site:
            command = click.option("--site", help="Name of the site that wrote the log.")(command)
        copy = click.option(
            "--log", "copy", type=PATH, help="A copy of audit.log. The older files of the log are in the same folder."
        )
        return click.option("--config", "path", type=PATH, help=f"The file {self.file}.")(copy(command))

    def opened(self, path: Path | None, copy: Path | None, site: str | None) -> Desk:
        """Return the audit log that these options select. Raises UsageError if they select no log or two."""
        if path is not None and copy is None and site is None:
            return self.desk_of(path)
        if path is not None or copy is None or (site is None) == self.is_site:
            named = " and --site" * self.is_site
            raise UsageError(
                what="The options do not show which log to use.",
                consequence="Nothing was read or written.",
                remedy=f"Give either --config {self.file}, or --log with a copy of the log{named}.",
            )
        return Desk(copy, COORDINATOR if site is None else owner_of_site(site), KnownKeys())


def _verify(program: LogProgram) -> click.Command:
    @click.command(
        help="Check all records and signed checkpoints of the log, and compare the log with checkpoints that another "
        f"program stored.\n\nExample: {program.command} audit verify --config {program.file}"
    )
    @program.reading
    @click.option("--keys", type=PATH, help="File of public keys, written by `pki keys`.")
    @click.option(
        "--checkpoints",
        type=PATH,
        help="File with the checkpoints of this log that the other program (coordinator or site) stored. The command "
        "`audit checkpoints` of that "
        "program writes this file.",
    )
    def verify(
        path: Path | None, copy: Path | None, keys: Path | None, checkpoints: Path | None, site: str | None = None
    ) -> None:
        for text in lines(program.opened(path, copy, site).given(keys, checkpoints).verification()):
            click.echo(text)

    return verify


def _show(program: LogProgram) -> click.Command:
    @click.command(
        help="Show records in plain words.\n\n"
        f"Example: {program.command} audit show --config {program.file} --since 2026-03-01"
    )
    @program.reading
    @click.option("--event", help="Show only this kind of record, such as state_restored.")
    @click.option("--run", help="Show only this run.")
    @_since
    @_until
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with all facts.")
    def show(
        path: Path | None,
        copy: Path | None,
        event: str | None,
        run: str | None,
        since: str | None,
        until: str | None,
        as_json: bool,
        site: str | None = None,
    ) -> None:
        choice = Choice(event=event, run=run, since=time_given(since, "--since"), until=time_given(until, "--until"))
        for number, facts in program.opened(path, copy, site).shown(choice):
            click.echo(json.dumps({"record": number, **facts}) if as_json else line(number, facts))

    return show


def _export(program: LogProgram) -> click.Command:
    @click.command(
        help="Write a report about one study and period for the data protection officer.\n\n"
        f"Example: {program.command} audit export --config {program.file} --study heart --output heart.html"
    )
    @program.reading
    @click.option("--study", help="Include only the runs and plans of this study.")
    @_since
    @_until
    @click.option("--output", type=PATH, required=True, help="Output file. The file name ends with .csv or .html.")
    def export(
        path: Path | None,
        copy: Path | None,
        study: str | None,
        since: str | None,
        until: str | None,
        output: Path,
        site: str | None = None,
    ) -> None:
        choice = Choice(study=study, since=time_given(since, "--since"), until=time_given(until, "--until"))
        desk = program.opened(path, copy, site)
        owner = "the coordinator" if desk.owner == COORDINATOR else desk.owner.rpartition("/")[2]
        count = desk.export(output, choice, f"Audit log of {owner}")
        click.echo(f"{count} record{'s' * (count != 1)} written to {output}.")

    return export
