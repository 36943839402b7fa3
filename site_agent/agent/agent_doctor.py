"""Checks the agent for `site-agent doctor`: its TLS key, its certificate, the clock and the connection.

It reads no patient's data and changes nothing. Every check has a limit of seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from host import address_checks, diagnosis, secret_files
from host.address_checks import Proxy
from host.clock_words import at, spelled
from host.diagnosis import (
    Finding,
    failure,
    fine,
    judge_clock,
    judge_directory,
    judge_secrets,
    warning,
)
from pki import key_checks
from pki.invitation import Invitation
from pki.names import Address
from pki.site_keys import SiteKeys
from protos.errors import OperatorError
from site_agent.agent.connection import CallEnded, Connection, Credentials
from site_agent.agent.kept_certificates import ADDRESSES, proxy_with_login
from site_agent.gate_socket import COORDINATOR_UNABLE, REFUSALS
from site_agent.hospital import Hospital
from site_agent.state_folders import agent_folder

_PATIENCE_SECONDS: Final = 5.0
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_RENEWAL: Final = (
    "Start the agent. It renews the certificate, also after its expiry. If that is refused, ask the federation office "
    "for a new invitation."
)


async def examine(hospital: Hospital, environment: Mapping[str, str]) -> list[Finding]:
    """Check the agent of this site, and return all findings. `environment` has the variables of this process."""
    now = datetime.now(UTC)
    keys = SiteKeys(agent_folder(hospital.state_path))
    found = [judge_directory(keys.directory)]
    found += judge_secrets((keys.tls_key_path,))
    apart: float | None = None
    named = [name for name in environment if name.lower() in _PROXY_VARIABLES and environment[name]]
    if named and hospital.proxy is None:
        says = f"The environment variable {named[0]} names a proxy, but this program does not read it."
        found.append(warning("D408", says, "Set `proxy` in hospital.yaml if the coordinator is behind a proxy."))
    try:
        proxy = proxy_with_login(keys.directory, hospital.proxy or "")
        if keys.is_enrolled():
            found.append(key_checks.judge_certificate(keys.certificate_path, "This site's certificate", _RENEWAL, now))
            reached, apart = await _coordinator(hospital, keys, proxy)
            found += reached
        else:
            found += _enrolment(hospital, proxy, now)
    except (OperatorError, OSError, ValueError) as cause:
        remedy = getattr(cause, "remedy", "Restore the state folder from its backup.")
        found.append(failure("D403", getattr(cause, "what", "The keys cannot be read."), remedy))
    found.append(judge_clock(diagnosis.is_clock_synchronised(), apart))
    return found


def _enrolment(hospital: Hospital, proxy: Proxy | None, now: datetime) -> list[Finding]:
    """Check a site that has no certificate yet: its invitation, and the port to which the site sends its request."""
    if hospital.invitation is None:
        says = "This site has no certificate, and hospital.yaml names no invitation."
        remedy = "Ask the federation office for an invitation. Write the path of its file under `invitation`."
        return [failure("D417", says, remedy)]
    place = Path(hospital.invitation)
    found = [key_checks.judge_invitation(place, hospital.site, now)]
    if not found[0].severity:
        invitation = Invitation.load(place)
        target = _target(str(invitation.enrolment), invitation.root_pem)
        found += address_checks.findings(target, proxy, _PATIENCE_SECONDS)
    return found


async def _coordinator(hospital: Hospital, keys: SiteKeys, proxy: Proxy | None) -> tuple[list[Finding], float | None]:
    """Check the connection to the coordinator, and whether the coordinator accepts this site.

    Return also how far the clocks differ.
    """
    record = keys.directory / ADDRESSES
    address = hospital.coordinator or str(json.loads(secret_files.read_public(record))["coordinator"])
    root = secret_files.read_public(keys.root_certificate_path)
    target = replace(_target(address, root), own=(keys.certificate_path, keys.tls_key_path))
    found = address_checks.findings(target, proxy, _PATIENCE_SECONDS)
    if any(finding.severity == 2 for finding in found):
        return found, None
    credentials = Credentials(
        key=secret_files.read_secret(keys.tls_key_path),
        chain=secret_files.read_public(keys.certificate_path),
        root=root,
    )
    membership, apart = await _membership(address, credentials, keys.leaf(), proxy)
    return [*found, membership], apart


def _closed_at_once(leaf: x509.Certificate, now: datetime) -> Finding:
    """Return the finding for a coordinator that closed the connection after receiving this site's certificate.

    A gRPC server sends no TLS alert with its reason. A wrong clock at the coordinator has the same effect as an
    untrusted certificate. So the finding names both, with the times that a person needs to compare clocks.
    """
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    says = "The coordinator rejects this site's certificate. It closes the connection at once."
    if not start <= now < end:
        return failure("D411", f"{says} The certificate of this site is not valid now, see D404.", _RENEWAL)
    ahead, behind = spelled((end - now).total_seconds()), spelled((now - start).total_seconds())
    says += (
        f" The certificate is valid from {at(start)} to {at(end)}, and this computer's clock shows {at(now)}."
        f" The coordinator's clock may be more than {ahead} ahead of this clock, or more than {behind} behind it."
    )
    remedy = (
        "Compare this computer's clock with a watch. Ask the office to compare the coordinator's clock (`date -u`), and"
        " to run `coordinator doctor` and `pki list`."
    )
    return failure("D411", says, remedy)


def _target(address: str, root: bytes) -> address_checks.Target:
    place = Address.parse(address)
    return address_checks.Target(place.host.strip("[]"), place.port, root.decode("ascii"))


async def _membership(
    address: str, credentials: Credentials, leaf: x509.Certificate, proxy: Proxy | None
) -> tuple[Finding, float | None]:
    """Check whether the coordinator accepts a stream.

    Nothing is sent on the stream. `leaf` is this site's certificate.
    """
    taken: list[float | None] = []
    answered = asyncio.Event()

    def accepted(at: float | None) -> None:
        taken.append(at)
        answered.set()

    remedy = "Ask the office whether `pki list` shows this site as active. D404 above is about its certificate."
    async with Connection(address, credentials, accepted, proxy) as connection:
        waiting, ended = asyncio.create_task(answered.wait()), asyncio.create_task(connection.receive())
        await asyncio.wait({waiting, ended}, timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, ended):
            task.cancel()
        result, _ = await asyncio.gather(ended, waiting, return_exceptions=True)
        if taken:
            apart = None if taken[0] is None else datetime.now(UTC).timestamp() - taken[0]
            return fine("D411", "The coordinator accepts this site's certificate."), apart
    match result:
        case CallEnded(status=status) if status in REFUSALS:
            says = "The coordinator refuses this site's certificate, because the register does not have it."
            return failure("D411", says, remedy), None
        case CallEnded(status="unavailable"):
            return _closed_at_once(leaf, datetime.now(UTC)), None
        case CallEnded(status=status) if status == COORDINATOR_UNABLE:
            says = "The coordinator cannot write its records, usually because its disk is full. Nothing here is wrong."
            remedy = "Tell the federation office. `coordinator doctor` there shows the cause."
            return failure("D411", says, remedy), None
        case CallEnded(status=status):
            says = f"The coordinator did not accept a connection now ({status})."
        case _:
            says = "The coordinator did not report whether it accepts this site."
    return warning("D411", says, "Check whether the agent can join."), None
