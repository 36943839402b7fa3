"""Implements the commands `audit verify`, `show`, `export` and `heads` of both programs. They never change the log.

A log is read from the program's store, or from a file of lines that `audit export` wrote. Anybody can check such a file
without a key: its chain detects a changed, lost or exchanged line. A head that the other program kept (`audit heads`)
also detects a cut end, or a log that was rewritten from its beginning.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import click

from host.audit_log import AuditLog, Facts
from host.command_line import PATH
from host.durable import new_file
from host.record_store import StoreError
from protos.errors import ConfigurationError, UsageError
from protos.wire.log_chain import BrokenChain, LogHead, checked
from protos.wire.upkeep_messages import KeptHead

_READING: Final = "The log proves nothing after that place. Nothing was changed."
_LARGEST_HEADS_BYTES: Final = 4 << 20
_LARGEST_LINE_BYTES: Final = 16 << 20  # a longer line is an incomplete record
_SHOWN_APART: Final = ("event", "time", "software")


@dataclass(frozen=True)
class LogSource:
    """An audit log to read: the store of a program, or an exported file.

    Attributes:
        owner: the site's name, or `coordinator`; None if a reader did not name it.
    """

    path: Path
    owner: str | None
    is_export: bool = False

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all records, oldest first, without a check. Raises StoreError, ConfigurationError."""
        if not self.is_export:
            with closing(AuditLog(self.path, site=self.owner, now=_now, exists=True)) as log:
                yield from log.lines()
            return
        try:
            with self.path.open("rb") as file:
                yield from iter(partial(file.readline, _LARGEST_LINE_BYTES), b"")
        except OSError as cause:
            raise ConfigurationError(
                what=f"{self.path} cannot be read: {cause.strerror}.",
                consequence="Nothing was verified.",
                remedy="Name a file that `audit export` wrote.",
            ) from cause

    def records(self) -> Iterator[tuple[int, Facts]]:
        """Check and yield the number and the facts of each record. Raises StoreError at the first fault."""
        try:
            for number, record in enumerate(checked(self.lines())):
                yield number, record.facts
        except BrokenChain as broken:
            raise self._damaged(f"record {broken.line - 1}: {broken.reason}") from broken

    def verify(self, heads: Path | None) -> str:
        """Check all records, and compare them with the head that the other program kept. Return the last hash.

        Raises:
            StoreError: at the first fault.
        """
        kept, head = _head_in(heads, self.owner) if heads else KeptHead(), LogHead()
        try:
            for record in checked(self.lines()):
                head = record.head
                if self.is_export and self.owner not in (None, "coordinator", record.facts.get("site")):
                    raise self._damaged(f"record {head.count - 1} is of another site than {self.owner}")
                if head.count == kept.count and head.hash != kept.hash.hex():
                    raise self._damaged(f"it was rewritten: after {kept.count} records it has another hash than before")
        except BrokenChain as broken:
            raise self._damaged(f"record {broken.line - 1}: {broken.reason}") from broken
        if head.count < kept.count:
            raise self._damaged(f"it has {head.count} records, and the other side knows {kept.count}")
        return f"{head.count} records, unbroken. The hash of the last one is {head.hash}."

    def _damaged(self, finding: str) -> StoreError:
        return StoreError(
            what=f"The audit log is damaged or was changed: {finding}.",
            consequence=_READING,
            remedy="Do not change the log. Call the security officer.",
        )

    def export(self, output: Path) -> int:
        """Write the unchanged lines of all records to a new file (mode 0600). Return their number.

        Raises:
            StoreError: the log is damaged.
            UsageError: the file exists.
        """
        self.verify(None)
        found = [text.decode() for text in self.lines()]
        _write_new(output, "".join(found))
        return len(found)


def _write_new(output: Path, content: str) -> None:
    try:
        file = new_file(output)
    except FileExistsError as cause:
        raise UsageError(
            what=f"{output} exists already.",
            consequence="The existing file is unchanged.",
            remedy="Choose another name for --output.",
        ) from cause
    with os.fdopen(file, "w", encoding="utf-8", newline="") as opened:
        opened.write(content)


def _head_in(path: Path, owner: str | None) -> KeptHead:
    """Return the kept head of an owner's log in a file that `audit heads` wrote. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_HEADS_BYTES))
        (head,) = found.values() if owner is None else (found[owner],)
        return KeptHead(head["count"], bytes.fromhex(head["hash"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise ConfigurationError(
            what=f"{path} has no head of this log.",
            consequence="Nothing was verified.",
            remedy="Ask the other side for the file that `audit heads` writes, and name the log's site with --site.",
        ) from cause


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class LogProgram:
    """A program with commands that read its audit log.

    Attributes:
        command: the program's name, such as `site-agent`.
        file: the name of its configuration.
        source_of: returns the log of a configuration, given the configuration's path.
    """

    command: str
    file: str
    source_of: Callable[[Path], LogSource]

    def group(self, purpose: str) -> click.Group:
        return click.Group("audit", commands=[_verify(self), _show(self), _export(self), _heads(self)], help=purpose)

    def reading(self, command: Callable[..., None]) -> Callable[..., None]:
        """Add to a command the options with which a person selects an audit log."""
        command = click.option("--log", "copy", type=PATH, help="A file .jsonl that `audit export` wrote.")(command)
        return click.option("--config", "path", type=PATH, help=f"The file {self.file}.")(command)

    def opened(self, path: Path | None, copy: Path | None, site: str | None = None) -> LogSource:
        """Return the audit log that these options select. Raises UsageError if they select no log or two."""
        if (path is None) == (copy is None):
            raise UsageError(
                what="The options do not show which log to use.",
                consequence="Nothing was read or written.",
                remedy=f"Give either --config {self.file}, or --log with an exported file.",
            )
        return self.source_of(path) if path is not None else LogSource(Path(str(copy)), site, is_export=True)


def in_words(facts: Facts) -> str:
    """Return a record as one sentence: the event, and its facts by name."""
    name, number = str(facts.get("event", "record")).replace("_", " "), facts.get("round")
    shown = {**facts, "round": number + 1} if isinstance(number, int) else facts  # people count rounds from 1
    rest = ", ".join(f"{key.replace('_', ' ')} {_shown(shown[key])}" for key in shown if key not in _SHOWN_APART)
    return f"{name[:1].upper()}{name[1:]}{': ' if rest else ''}{rest}."


def _line(number: int, facts: Facts) -> str:
    """Return one line about a record for a terminal. Replace control characters in texts from other programs."""
    text = f"{number:>7}  {facts.get('time', ''):<29}  {in_words(facts)}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return json.dumps(value, sort_keys=True)
        case _:
            return str(value)


def _verify(program: LogProgram) -> click.Command:
    @click.command(
        help="Check all records of the log, and compare the log with the head that the other program kept."
        f"\n\nExample: {program.command} audit verify --config {program.file}"
    )
    @program.reading
    @click.option("--heads", type=PATH, help="File that `audit heads` of the other program wrote.")
    @click.option("--site", help="The site that wrote an exported log.")
    def verify(path: Path | None, copy: Path | None, heads: Path | None, site: str | None) -> None:
        click.echo(program.opened(path, copy, site).verify(heads))
        if heads is None:
            click.echo("Only `--heads` can detect that the end was cut or the whole log rewritten.")
        else:
            click.echo("The log contains the head that the other side kept.")

    return verify


def _show(program: LogProgram) -> click.Command:
    @click.command(
        help="Show records on one line each.\n\n"
        f"Example: {program.command} audit show --config {program.file} --event run_joined"
    )
    @program.reading
    @click.option("--event", help="Show only this kind of record, such as state_restored.")
    @click.option("--run", help="Show only this run.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with all facts.")
    def show(path: Path | None, copy: Path | None, event: str | None, run: str | None, as_json: bool) -> None:
        for number, facts in program.opened(path, copy).records():
            if event not in (None, facts.get("event")) or run not in (None, facts.get("run")):
                continue
            click.echo(json.dumps({"record": number, **facts}) if as_json else _line(number, facts))

    return show


def _export(program: LogProgram) -> click.Command:
    @click.command(
        help="Write the log as JSON lines, which `audit verify --log` checks.\n\n"
        f"Example: {program.command} audit export --config {program.file} --output heart.jsonl"
    )
    @program.reading
    @click.option("--output", type=PATH, required=True, help="Output file, which must not exist.")
    def export(path: Path | None, copy: Path | None, output: Path) -> None:
        count = program.opened(path, copy).export(output)
        click.echo(f"{count} record{'s' * (count != 1)} written to {output}.")

    return export


def _heads(program: LogProgram) -> click.Command:
    @click.command(
        help="Write the heads of the other programs' logs that this program keeps, for `audit verify --heads`.\n\n"
        f"Example: {program.command} audit heads --config {program.file} --output heads.json"
    )
    @click.option("--config", "path", type=PATH, required=True, help=f"The file {program.file}.")
    @click.option("--output", type=PATH, required=True, help="Output file, which must not exist.")
    def heads(path: Path, output: Path) -> None:
        source = program.source_of(path)
        with closing(AuditLog(source.path, site=source.owner, now=_now, exists=True)) as log:
            found = {owner: {"count": one.count, "hash": one.hash.hex()} for owner, one in log.kept_heads().items()}
        _write_new(output, json.dumps(found, indent=2) + "\n")
        click.echo(f"{len(found)} heads written to {output}.")

    return heads
