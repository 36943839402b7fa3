"""Implements `site-agent join`: runs the gate process, which is connected to the agent and the trainer.

The table is checked before anything is sent anywhere. Every process that was started here is ended here, whatever ends
the gate.

SIGHUP reads hospital.yaml again. A file with an error changes nothing. A running gate adopts its policy and the
coordinator's address. All other keys need a restart, and the operator is informed which ones changed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from host import secret_files
from host.audit_log import AuditLog
from host.clock_words import clocks_apart
from host.local_metrics import serving_metrics
from protos.errors import OperatorError
from site_agent.gate.agent_link import AgentLink
from site_agent.gate.loop import SiteGate
from site_agent.gate.mishaps import TrainerFailed
from site_agent.gate.separation import tell_guard, tell_separation
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.hospital import Hospital, read_hospital
from site_agent.service.enrolling import enrol_where_needed, now, site_identity_key
from site_agent.service.neighbours import Neighbours, neighbours_of
from site_agent.service.site_metrics import SiteCollector
from site_agent.service.status_socket import Told, telling
from site_agent.site_standing import Standing
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer_socket import Check, Failed, GateEnd

TAKEN_OVER: Final = ("policy", "coordinator")


def adopted(held: Hospital, read: Hospital) -> tuple[Hospital, tuple[str, ...]]:
    """Return the configuration with the settings that can change now, and the changed settings that need a restart."""
    waiting = tuple(
        name for name in Hospital.model_fields if name not in TAKEN_OVER and getattr(held, name) != getattr(read, name)
    )
    return held.model_copy(update={name: getattr(read, name) for name in TAKEN_OVER}), waiting


class Reloading:
    """Reads hospital.yaml again on each call, and applies the keys that can change while the program runs."""

    def __init__(self, path: Path, hospital: Hospital, standing: Standing) -> None:
        """Store the configuration in use. `path` is its file."""
        self._path, self._standing = path, standing
        self.hospital = hospital
        self.tell: Callable[[Hospital], None] = lambda _: None

    def __call__(self) -> None:
        """Read hospital.yaml again. If the file has an error, the earlier configuration stays in use."""
        log = structlog.get_logger()
        try:
            self.hospital, waiting = adopted(self.hospital, read_hospital(self._path))
        except OperatorError as wrong:
            self._standing.failed(wrong)
            log.error("configuration_kept", what=wrong.what, identifier=wrong.code)
            return
        log.info("configuration_taken_over", waits_for_restart=list(waiting))
        self.tell(self.hospital)


WIDEST_CLOCK_DIFFERENCE_SECONDS: Final = 60.0


async def join(hospital: Hospital, path: Path) -> None:
    """Take part in the runs of the federation until the coordinator reports that all runs are over.

    Args:
        path: the file of the configuration. The trainer also reads it, and SIGHUP reads it again.

    Raises:
        OperatorError: this site cannot or must not continue.
    """
    state = hospital.state_path
    secret_files.make_private_directory(state)
    secret_files.make_private_directory(gate_folder(state))
    secret_files.hold_directory(gate_folder(state), "site agent")
    standing = Standing(now)
    reloading = Reloading(path, hospital, standing)
    handle_signals(reloading)
    audit = AuditLog(gate_store_path(state), site=hospital.site, now=now)
    standing.may_read_patients = not tell_separation(hospital)
    tell_guard(hospital)
    async with neighbours_of(hospital, path) as neighbours:
        link = AgentLink(neighbours.agent, hospital.proxy)
        certificates = SiteCertificates(link.ask, gate_folder(state))
        told = Told(hospital.site, audit, standing, certificates, version("global-layers"), now)
        stopped = "The site agent did not start, and nothing was sent."
        collector, listen = SiteCollector(told.facts, state), hospital.metrics_listen
        metrics = serving_metrics(listen, collector, consequence=stopped, file="hospital.yaml")
        try:
            async with telling(gate_folder(state), told, standing), metrics:
                await _take_part(reloading, neighbours, link, certificates, audit, standing)
        finally:
            link.close()


async def _take_part(
    reloading: Reloading,
    neighbours: Neighbours,
    link: AgentLink,
    certificates: SiteCertificates,
    audit: AuditLog,
    standing: Standing,
) -> None:
    hospital, folder = reloading.hospital, gate_folder(reloading.hospital.state_path)
    trainer = await neighbours.trainer()
    neighbours.start_agent()
    await check_table(trainer)
    standing.phase, standing.trainer = "enrolling", "idle"
    key = site_identity_key(folder)
    await enrol_where_needed(hospital, certificates, key, audit)
    upkeep = SiteUpkeep(site=hospital.site, identity_key=key, certificates=certificates, audit=audit, now=now)
    greeting = _Greeting(reloading, certificates, standing, upkeep)
    gate = SiteGate(
        hospital,
        identity_key=key,
        trainer=trainer,
        audit=audit,
        connect=lambda: link.stream(greeting.address, greeting.accepted),
        software=version("global-layers"),
        renew_trainer=neighbours.trainer,
        standing=standing,
        upkeep=upkeep,
    )
    reloading.tell = gate.adopt
    standing.phase = "connecting"
    await gate.run()


class _Greeting:
    """Supplies the coordinator's address for each stream, and acts after the coordinator has accepted the stream."""

    def __init__(
        self, reloading: Reloading, certificates: SiteCertificates, standing: Standing, upkeep: SiteUpkeep
    ) -> None:
        self._reloading, self._certificates = reloading, certificates
        self._standing, self._upkeep = standing, upkeep

    def address(self) -> str:
        """Return the coordinator's network address from the current configuration.

        If it has none, return the one from enrolment.
        """
        self._standing.address = self._reloading.hospital.coordinator or self._certificates.coordinator
        return self._standing.address

    async def accepted(self, their_seconds: float | None) -> None:
        """Record that the coordinator accepted the connection, and warn if the two computers' clocks differ."""
        self._standing.connected()
        apart = 0.0 if their_seconds is None else now().timestamp() - their_seconds
        if abs(apart) > WIDEST_CLOCK_DIFFERENCE_SECONDS:
            words = f"This computer's clock is {clocks_apart(apart)}."
            structlog.get_logger().warning("clock_differs", what=words, seconds=round(apart, 1))


async def check_table(trainer: GateEnd) -> None:
    """Let the trainer check the hospital's table, before this site sends anything."""
    answer = await trainer.ask(Check())
    if isinstance(answer, Failed):
        raise TrainerFailed(answer)


def handle_signals(reload: Callable[[], None]) -> None:
    """On the signals SIGTERM and SIGINT, cancel the current task. On SIGHUP, reload the configuration."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, reload)
