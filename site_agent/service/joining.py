"""Implements `site-agent join`: runs the gate process, which is connected to the agent and the trainer.

The table is checked before anything is sent anywhere. Every process that was started here is ended here, whatever ends
the gate.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from importlib.metadata import version
from pathlib import Path

from host import secret_files
from host.audit_log import AuditLog
from site_agent.approvals import guard_of
from site_agent.gate.agent_link import AgentLink
from site_agent.gate.loop import SiteGate
from site_agent.gate.mishaps import TrainerFailed
from site_agent.gate.separation import tell_separation
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.hospital import Hospital
from site_agent.service.enrolling import enrol_where_needed, now, site_identity_key
from site_agent.service.neighbours import Neighbours, neighbours_of
from site_agent.service.status_socket import status_facts, telling
from site_agent.site_standing import Standing
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer_socket import Check, Failed, GateEnd


async def join(hospital: Hospital, path: Path) -> None:
    """Take part in the runs of the federation until the coordinator reports that all runs are over.

    `path` is the file of the configuration, which the trainer also reads.

    Raises:
        OperatorError: this site cannot or must not continue.
    """
    state = hospital.state_path
    secret_files.make_private_directory(state)
    secret_files.make_private_directory(gate_folder(state))
    secret_files.hold_directory(gate_folder(state), "site agent")
    standing = Standing(now)
    handle_signals()
    audit = AuditLog(gate_store_path(state), site=hospital.site, now=now)
    tell_separation(hospital)
    guard_of(hospital)(state)
    async with neighbours_of(hospital, path) as neighbours:
        link = AgentLink()
        certificates = SiteCertificates(link.ask, audit)
        facts = partial(status_facts, hospital.site, audit, standing, certificates, now)
        try:
            async with telling(gate_folder(state), facts, standing):
                await _take_part(hospital, neighbours, link, certificates, audit, standing)
        finally:
            link.close()


async def _take_part(
    hospital: Hospital,
    neighbours: Neighbours,
    link: AgentLink,
    certificates: SiteCertificates,
    audit: AuditLog,
    standing: Standing,
) -> None:
    trainer = await neighbours.trainer()
    link.connect(await neighbours.agent(), hospital.proxy)
    await check_table(trainer)
    standing.phase, standing.trainer = "enrolling", "idle"
    key = site_identity_key(gate_folder(hospital.state_path))
    await enrol_where_needed(hospital, certificates, key, audit)
    upkeep = SiteUpkeep(site=hospital.site, identity_key=key, certificates=certificates, audit=audit, now=now)

    def address() -> str:
        standing.address = hospital.coordinator or certificates.coordinator
        return standing.address

    gate = SiteGate(
        hospital,
        identity_key=key,
        trainer=trainer,
        audit=audit,
        connect=lambda: link.stream(address),
        software=version("global-layers"),
        standing=standing,
        upkeep=upkeep,
    )
    standing.phase = "connecting"
    await gate.run()


async def check_table(trainer: GateEnd) -> None:
    """Let the trainer check the hospital's table, before this site sends anything."""
    answer = await trainer.ask(Check())
    if isinstance(answer, Failed):
        raise TrainerFailed(answer)


def handle_signals() -> None:
    """On the signals SIGHUP (a terminal closes), SIGINT and SIGTERM, cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
