"""Checks gate and agent for `site-agent doctor`: disk, audit log, program, certificate and connection.

It reads no patient's data and changes nothing. A fault that the programs report at their start is not looked for here.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from host.diagnosis import Finding, Severity, failure, fine, judge_disk, judge_log, warning
from pki import key_checks
from pki.invitation import Invitation
from pki.site_keys import SiteKeys
from protos.errors import OperatorError, UnavailableError
from site_agent.agent.connection import CallEnded, Connection, call
from site_agent.agent.kept_certificates import KeptCertificates, proxy_of
from site_agent.gate.mishaps import of_certificate, stream_ended
from site_agent.hospital import Hospital
from site_agent.service.status_socket import read_status
from site_agent.state_folders import agent_folder, gate_store_path

_PATIENCE_SECONDS: Final = 10.0
_RENEWAL: Final = (
    "Start the agent, which renews it. If that is refused, ask the federation office for a new invitation."
)


async def examine_gate(hospital: Hospital) -> list[Finding]:
    """Check the gate process of this site, and return all findings."""
    try:
        program = fine("D418", f"The gate process is running: {(await read_status(hospital.state_path))['phase']}.")
    except UnavailableError as silent:
        program = warning("D418", silent.what, silent.remedy)
    found, store = [judge_disk(hospital.state_path), program], gate_store_path(hospital.state_path)
    return [*found, judge_log(store, hospital.site)] if store.exists() else found


async def examine_agent(hospital: Hospital) -> list[Finding]:
    """Check the agent of this site, and return all findings. A site without a certificate needs an invitation."""
    now, keys = datetime.now(UTC), SiteKeys(agent_folder(hospital.state_path))
    try:
        if keys.is_enrolled():
            valid = key_checks.judge_certificate(keys.certificate_path, "This site's certificate", _RENEWAL, now)
            return [valid, await _connection(hospital, KeptCertificates(keys.directory))]
        if hospital.invitation is None:
            remedy = "Ask the federation office for an invitation. Write the path of its file under `invitation`."
            return [failure("D417", "This site has no certificate, and hospital.yaml names no invitation.", remedy)]
        valid = key_checks.judge_invitation(Path(hospital.invitation), hospital.site, now)
        return [valid] if valid.severity is Severity.FAILURE else [valid, await _enrolment(hospital)]
    except (OperatorError, OSError, ValueError) as cause:
        remedy = getattr(cause, "remedy", "Restore the state folder from its backup.")
        return [failure("D404", getattr(cause, "what", "The keys cannot be read."), remedy)]


async def _enrolment(hospital: Hospital) -> Finding:
    """Call what the enrolment port does not have. Only the coordinator of the invitation's authority answers this."""
    invited = Invitation.load(Path(hospital.invitation or ""))
    address, proxy = str(invited.enrolment), proxy_of(agent_folder(hospital.state_path), hospital.proxy or "")
    try:
        await call("/global_layers.v1.Enrolment/Nothing", address, invited.root_pem, b"", proxy)
    except CallEnded as ended:
        if ended.status != "unimplemented":
            return _unreached(hospital, address, ended.status)
    return fine("D411", f"The enrolment port {address} of the coordinator answers.")


async def _connection(hospital: Hospital, kept: KeptCertificates) -> Finding:
    """Open a stream as the agent does, and send nothing on it. The finding has the sentences of the program."""
    address, accepted = hospital.coordinator or kept.address("coordinator"), asyncio.Event()
    way = Connection(address, kept.credentials(), accepted.set, kept.proxy(hospital.proxy or ""))
    async with way as connection:
        ended, waiting = asyncio.create_task(connection.receive()), asyncio.create_task(accepted.wait())
        await asyncio.wait({ended, waiting}, timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, waiting):
            task.cancel()
        result, _ = await asyncio.gather(ended, waiting, return_exceptions=True)
    if accepted.is_set():
        return fine("D411", f"The coordinator at {address} accepts this site's certificate.")
    return _unreached(hospital, address, result.status if isinstance(result, CallEnded) else "deadline_exceeded")


def _unreached(hospital: Hospital, address: str, status: str) -> Finding:
    told = of_certificate(address, status, datetime.now(UTC), "E020") or stream_ended(address, status)
    runs = "" if status.startswith("proxy") else "Check that it runs. "  # a proxy that answers runs
    through = f"The way leads through the proxy {hospital.proxy}. {runs}With openssl, add `-proxy {hospital.proxy}`. "
    return failure("D411", told.what, (through if hospital.proxy else "") + told.remedy)
