"""An attacker who changes an audit log, and a member that sends its witness another log than its own.

A chain of hashes shows a changed line. Only checkpoints that somebody else has signed detect a cut end, or a chain that
was made again from its beginning. The attacker wants a changed log to verify, or its witness to cosign it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import audit.cosigning
import audit.log_files
import audit.reading.log_verification
import protos.wire.log_chain
from audit import checkpoint_memory
from audit.cosigning import LogSession
from audit.log_files import BrokenFile
from audit.own_log import AuditError
from audit.reading.log_verification import KnownKeys
from protos.wire.log_chain import LogPosition, Record, append
from protos.wire.log_checkpoints import COORDINATOR, CheckpointRefused
from protos.wire.upkeep_messages import LogGrowth, LogStanding
from tests.audit.audit_sides import PUBLIC, SITE, Side, meet
from tests.hostile.attack import Attack, in_copy, scratch

Lines = list[bytes]
Weakened = Callable[[], AbstractContextManager[Any]]


@contextmanager
def patched(owner: Any, **changes: Any) -> Iterator[None]:
    """Replace some checks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setattr(owner, name, value)
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """The check that is missing."""


@contextmanager
def met(folder: Path) -> Iterator[tuple[Side, Side]]:
    """A site and a coordinator that have met once, each with a few records."""
    both = Side(folder / "site", SITE), Side(folder / "coordinator", COORDINATOR)
    try:
        for side in both:
            side.work()
        meet(*both)
        yield both
    finally:
        for side in both:
            side.log.close()


def changed_log(weakened: bool, change: Callable[[Lines], Lines], without: Weakened) -> bool:
    """Change the lines of a site's log; an officer verifies it with public keys and the witness's checkpoints."""
    with scratch() as folder, met(folder) as (site, coordinator), in_copy(weakened, without):
        kept = checkpoint_memory.kept_checkpoints(coordinator.party.folder)
        site.path.write_bytes(b"".join(change(site.path.read_bytes().splitlines(keepends=True))))
        try:
            audit.reading.log_verification.verify_log(site.path, owner=SITE, keys=KnownKeys(PUBLIC), kept=kept)
        except (BrokenFile, AuditError):
            return False
        return True


def _made_again(lines: Lines) -> Lines:
    """A chain with another fact, made again from its beginning without the records about checkpoints."""
    position, made = LogPosition(), []
    for line in lines:
        facts = json.loads(line)["facts"]
        if facts["event"] == "contribution_released":
            position, _, new = append(position, facts | {"round": 99}, os.urandom(16))
            made.append(new)
    return made


@contextmanager
def without_the_chain() -> Iterator[None]:
    """A record counts with the hash that it names itself."""

    def step(position: LogPosition, line: bytes, number: int) -> Record:
        record = json.loads(line)
        return Record(position, LogPosition(position.sequence + 1, record["hash"]), bytes(32), record["facts"])

    with patched(protos.wire.log_chain, _step=step):
        yield


def without_kept_checkpoints() -> AbstractContextManager[None]:
    """Nobody has stored a checkpoint of the log."""
    return patched(audit.reading.log_verification, _check_kept=_nothing)


def forked_log(weakened: bool) -> bool:
    """Show the witness a second future of a log, after it has cosigned the first."""
    with scratch() as folder, met(folder) as (site, coordinator):
        shutil.copytree(site.path.parent, folder / "fork")
        fork = Side(folder / "fork", SITE)
        start = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
        assert start is not None
        site.work(3)
        fork.work(7)
        meet(site, coordinator)
        grown = LogGrowth(fork.party.signed(fork.log.position), start.size, tuple(fork.log.leaves(start.size, 1000)))
        fork.log.close()
        return _cosigned(weakened, coordinator, grown, lambda: patched(audit.cosigning, follow=_nothing))


def checkpoint_of_another(weakened: bool) -> bool:
    """Show the witness a checkpoint that the owner of the log has not signed."""
    with scratch() as folder, met(folder) as (site, coordinator):
        start = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
        assert start is not None
        site.work()
        grown = LogGrowth(site.party.signed(site.log.position), start.size, tuple(site.log.leaves(start.size, 1000)))
        forged = replace(grown, checkpoint=replace(grown.checkpoint, signature=bytes(64)))
        return _cosigned(weakened, coordinator, forged, lambda: patched(audit.cosigning, check_checkpoint=_nothing))


def _cosigned(weakened: bool, witness: Side, grown: LogGrowth, without: Weakened) -> bool:
    with in_copy(weakened, without):
        try:
            return bool(witness.party.witness(grown, SITE, PUBLIC[SITE]).given.signature)
        except CheckpointRefused:
            assert [facts["owner"] for facts in witness.log.records("log_refused")] == [SITE]
            return False


def rolled_back_log(weakened: bool) -> bool:
    """Restore yesterday's log from a backup, and continue as if nothing had happened since."""

    def stand(self: LogSession, standing: LogStanding) -> None:
        self._confirmed = 0

    @contextmanager
    def without_own_checkpoints() -> Iterator[None]:
        with patched(LogSession, _stand=stand), patched(audit.cosigning, follow=_nothing):
            yield

    with scratch() as folder, met(folder) as (site, coordinator):
        shutil.copytree(site.path.parent, folder / "backup")
        site.work()
        meet(site, coordinator)
        old = Side(folder / "backup", SITE)
        with in_copy(weakened, without_own_checkpoints):
            try:
                old.work(2)
                meet(old, coordinator)
            except CheckpointRefused:
                return False
            finally:
                old.log.close()
        kept = checkpoint_memory.kept_checkpoint(coordinator.party.folder, SITE)
        return kept is not None and kept.position != site.log.position_at(kept.size)


ATTACKS = (
    *(
        Attack(
            name=f"log-{name}",
            tries=f"somebody {tries} in an audit log",
            without=missing,
            run=partial(changed_log, change=change, without=without),
        )
        for name, tries, change, missing, without in (
            (
                "with-a-changed-digit",
                "changes a digit",
                lambda lines: [lines[0], lines[1], lines[2].replace(b'"round":2', b'"round":3'), *lines[3:]],
                "the chain of hashes",
                without_the_chain,
            ),
            (
                "with-a-field-more",
                "adds a field beside those that are hashed",
                lambda lines: [lines[0].replace(b'{"facts"', b'{"approved":true,"facts"'), *lines[1:]],
                "the chain of hashes",
                without_the_chain,
            ),
            (
                "with-a-cut-tail",
                "removes the last records",
                lambda lines: lines[:3],
                "the checkpoints that a witness keeps",
                without_kept_checkpoints,
            ),
            (
                "made-again",
                "changes a record and makes the whole chain again",
                _made_again,
                "the checkpoints that a witness keeps",
                without_kept_checkpoints,
            ),
        )
    ),
    Attack(
        name="forked-log",
        tries="a site shows its witness a second future of its audit log",
        without="the witness's memory",
        run=forked_log,
    ),
    Attack(
        name="checkpoint-of-another",
        tries="somebody shows a witness a checkpoint that the log's owner has not signed",
        without="the signature of a checkpoint",
        run=checkpoint_of_another,
    ),
    Attack(
        name="rolled-back-log",
        tries="a site restores an older audit log and goes on from there",
        without="the comparison with the last cosigned checkpoint, on both sides",
        run=rolled_back_log,
    ),
)
