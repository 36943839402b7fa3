"""A member of a federation that sends checkpoints of its audit log, or requests certificates, as fast as it can.

Its log is invented: each checkpoint is signed with its true identity key and continues the one before. So the witness
has no reason to refuse one of them.

Usage: python -m tests.hostile.log_floods. Prints how much each side's log grows in two days.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.own_log import AuditLog
from audit.recording_budget import EACH_DAY_BYTES, RecordingBudget
from coordinator.network.coordinator_upkeep import SiteUpkeep as CoordinatorUpkeep
from protos.wire.log_chain import LogPosition, relink
from protos.wire.log_checkpoints import COORDINATOR, owner_of_site, sign_checkpoint
from protos.wire.messages import PROTOCOL_VERSION, CoordinatorReason, Hello
from protos.wire.upkeep_messages import UPKEEP_VERSION, LogCosignature, LogGrowth, LogStanding, Upkeep
from site_agent.gate.site_upkeep import SiteUpkeep
from tests.rehearsal.federation import Office
from tests.rehearsal.relayed_stream import certificates_in_process

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP_SECONDS = 10.0
MOST_IN_A_STEP = 500  # what a coordinator accepts of one site in ten seconds


class InventedLog:
    """A log that consists of checkpoints only; each has one record more than the one before."""

    def __init__(self, owner: str, key: Ed25519PrivateKey) -> None:
        self.owner, self.key = owner, key
        self.position = LogPosition()

    def growth(self) -> LogGrowth:
        """The next checkpoint with its leaf, signed."""
        start, leaf = self.position.sequence, secrets.token_bytes(32)
        self.position = relink(self.position, [leaf])
        return LogGrowth(sign_checkpoint(self.owner, 1, self.position, START.isoformat(), self.key), start, (leaf,))


@dataclass
class Clock:
    """The time of day of the program that is flooded."""

    time: datetime = START

    def now(self) -> datetime:
        """The time now."""
        return self.time

    def step(self) -> None:
        """Let some seconds pass."""
        self.time += timedelta(seconds=STEP_SECONDS)


class Victim:
    """One program with its log in a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock

    def size(self) -> int:
        """The bytes of its log, over all files."""
        return sum(file.stat().st_size for file in self.folder.glob("audit.log*"))


class FloodedSite(Victim):
    """A hospital's gate without rounds; the sender is its coordinator."""

    def start(self) -> None:
        """Start the program and open a stream to it."""
        office = self._office()
        key = office.keys("a").identity_key()
        self.log = AuditLog(self.folder / "audit.log", site="a", now=self.clock.now, identity_key=key)
        self._upkeep = SiteUpkeep(
            site="a",
            identity_key=key,
            certificates=certificates_in_process(office.keys("a")),
            audit=self.log,
            witness=self.folder / "witness",
            now=self.clock.now,
        )
        self._runner = asyncio.Runner()
        self._upkeep.begin()
        self.hear(LogStanding(office.authority.identity_key().public_key().public_bytes_raw(), None))

    def _office(self) -> Office:
        if not (self.folder / "office").exists():
            self.office = Office.found(self.folder / "office", now=START)
            self.office.enrol("a", now=START)
            (self.folder / "witness").mkdir()
        return self.office

    def sender(self) -> InventedLog:
        """The coordinator's invented log."""
        return InventedLog(COORDINATOR, self.office.authority.identity_key())

    def hear(self, message: Upkeep) -> list[Upkeep]:
        """Pass a message to the program."""
        return self._runner.run(self._upkeep.heard(message))

    def pulse(self) -> list[Upkeep]:
        """Let the program do what is due."""
        return self._runner.run(self._upkeep.due())

    def stop(self) -> None:
        """End the program."""
        self._runner.close()
        self.log.close()


class FloodedCoordinator(Victim):
    """A coordinator without rounds; the sender is a listed site."""

    _site, _own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()

    def start(self) -> None:
        """Start the program and open a stream to it."""
        self.log = AuditLog(self.folder / "audit.log", site=None, now=self.clock.now, identity_key=self._own)
        site = self._site.public_key().public_bytes_raw()
        self._upkeep = CoordinatorUpkeep(
            self.log,
            self.folder / "witness",
            identity_key_of=lambda _: site,
            renew=lambda _: pytest.fail("nothing was requested"),
            confirm=lambda *_: None,
        )
        self._sent: list[Upkeep] = []
        self._upkeep.greeted(self, "a", Hello(PROTOCOL_VERSION, "test", UPKEEP_VERSION))

    def send(self, message: Upkeep) -> None:
        """What the coordinator sends to the site."""
        self._sent.append(message)

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """The coordinator ends the stream, which is not what this sender gives a reason for."""
        raise AssertionError((reason, detail))

    def sender(self) -> InventedLog:
        """The site's invented log."""
        return InventedLog(owner_of_site("a"), self._site)

    def hear(self, message: Upkeep) -> list[Upkeep]:
        """Pass a message to the program."""
        self._upkeep.received(self, "a", message)
        return self._taken()

    def pulse(self) -> list[Upkeep]:
        """Let the program do what is due."""
        self._upkeep.tick()
        return self._taken()

    def _taken(self) -> list[Upkeep]:
        sent, self._sent = self._sent, []
        return sent

    def stop(self) -> None:
        """End the program."""
        self.log.close()


def flood(victim: FloodedSite | FloodedCoordinator, seconds: float) -> Iterator[int]:
    """Send checkpoints as fast as they are answered; yield the size of the log at each step, in bytes.

    The program is started again when half of the time has passed.
    """
    victim.start()
    sender, steps = victim.sender(), int(seconds / STEP_SECONDS)
    is_answered, is_restarted = True, False
    for step in range(steps):
        victim.clock.step()
        if step >= steps // 2 and not is_restarted:
            victim.stop()
            victim.start()
            is_restarted = True
            if not is_answered:  # what waited is lost with its stream; an honest owner would show it again, too
                sender, is_answered = _behind(sender, victim), True
        is_answered |= _has_cosignature(victim.pulse())
        sent = 0
        while is_answered and sent < MOST_IN_A_STEP:
            is_answered = _has_cosignature(victim.hear(sender.growth()))
            sent += 1
        yield victim.size()
    victim.stop()


def _has_cosignature(answers: list[Upkeep]) -> bool:
    return any(isinstance(answer, LogCosignature) for answer in answers)


def _behind(sender: InventedLog, victim: FloodedSite | FloodedCoordinator) -> InventedLog:
    """The sender's log as far as the witness has confirmed it."""
    newest = list(victim.log.records("log_witnessed"))[-1]
    sender.position = LogPosition(newest["size"], newest["hash"])
    return sender


@contextmanager
def without_a_budget() -> Iterator[None]:
    """A program that records every checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordingBudget, "allows", lambda *_: True)
        yield


def main() -> int:
    """Print the figures."""
    kinds: tuple[Callable[[Path, Clock], FloodedSite | FloodedCoordinator], ...] = (FloodedSite, FloodedCoordinator)
    for make in kinds:
        with tempfile.TemporaryDirectory() as folder:
            sizes = list(flood(make(Path(folder), Clock()), 2 * 86_400.0))
        half = len(sizes) // 2
        print(
            f"victim={make.__name__} budget_bytes_a_day={EACH_DAY_BYTES} first_day_bytes={sizes[half - 1]}"
            f" second_day_bytes={sizes[-1] - sizes[half - 1]}",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as folder, without_a_budget():
            steps = 4
            sizes = list(flood(make(Path(folder), Clock()), steps * STEP_SECONDS))
        print(
            f"victim={make.__name__} without_a_budget: bytes_in_{steps * STEP_SECONDS:.0f}_seconds={sizes[-1]}"
            f" in_a_day={sizes[-1] / (steps * STEP_SECONDS) * 86_400:.0f} (50 checkpoints in a second)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
