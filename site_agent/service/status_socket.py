"""Reports the status of a site on a Unix socket to its own user account, and to the service manager (systemd).

The socket only writes. It never reads data that are sent to it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import sdnotify

from host.audit_log import AuditLog
from host.durable import short_path, unusable_state
from host.metrics_text import metrics_text
from host.secret_files import not_answering
from protos.errors import OperatorError
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.site_standing import Standing
from site_agent.state_folders import gate_folder

STATUS_SOCKET: Final = "status.socket"
PULSE_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 10.0


def status_facts(
    site: str, audit: AuditLog, standing: Standing, certificates: SiteCertificates, now: Callable[[], datetime]
) -> dict[str, Any]:  # Any: every type that JSON has
    """Return all facts about the site's status, as values for JSON. See `site-agent status --json`."""
    count, size = audit.total("contribution_released", "bytes")
    days = None  # without a certificate
    with suppress(OperatorError, ValueError, IndexError):
        days = round((certificates.shown.expiry() - now()).total_seconds() / 86400, 2)
    return {
        "site": site,
        "version": version("global-layers"),
        **standing.facts(),
        "certificate_days_left": days,
        "left": {"contributions": count, "bytes": size},
        "privacy_spent": [facts["epsilon"] for facts in audit.records("privacy_spent")],
        "audit": {"records": audit.head.count},
    }


@asynccontextmanager
async def telling(folder: Path, facts: Callable[[], dict[str, Any]], standing: Standing) -> AsyncIterator[None]:
    """Report the status on the status socket and to the service manager (systemd), until the block ends.

    Raises:
        ConfigurationError: the socket cannot be created.
        UnavailableError: the disk is full.
    """
    server = await _listen(folder, facts)
    pulse = asyncio.create_task(_pulse(standing))
    try:
        async with server:
            yield
    finally:
        pulse.cancel()
        (folder / STATUS_SOCKET).unlink(missing_ok=True)


async def _listen(folder: Path, facts: Callable[[], dict[str, Any]]) -> asyncio.Server:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(json.dumps(facts()).encode())
            await writer.drain()
        writer.close()

    try:
        (folder / STATUS_SOCKET).unlink(missing_ok=True)
        with short_path(folder / STATUS_SOCKET) as place:
            return await asyncio.start_unix_server(answer, place)
    except OSError as cause:
        what = f"The status socket in {folder} cannot be created: {cause.strerror}."
        stopped = "The site agent did not start. Nothing was sent."
        raise unusable_state(cause, what=what, consequence=stopped, file="hospital.yaml") from cause


async def _pulse(standing: Standing) -> None:
    """Notify systemd that the service is ready after the first connection. Then send a watchdog signal every second."""
    notifier, is_ready = sdnotify.SystemdNotifier(), False
    while True:
        ready = "READY=1\n" if standing.connected_since is not None and not is_ready else ""
        is_ready = is_ready or bool(ready)
        notifier.notify(f"{ready}WATCHDOG=1\nSTATUS={standing.line}")
        await asyncio.sleep(PULSE_SECONDS)


async def read_status(state: Path) -> dict[str, Any]:
    """Return the status of the site program that uses this state directory.

    Raises:
        UnavailableError: none runs, or it does not answer within PATIENCE_SECONDS.
    """
    try:
        with short_path(gate_folder(state) / STATUS_SOCKET) as place:
            reader, writer = await asyncio.open_unix_connection(place)
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await reader.read()
        writer.close()
        facts: dict[str, Any] = json.loads(answer)
        return facts
    except (OSError, ValueError) as cause:  # includes no answer in time, and the answer of a program that ends
        raise not_answering("site agent", "`site-agent join`") from cause


def site_metrics(facts: Mapping[str, Any], state: Path) -> str:  # Any: every type that JSON has
    """Return metrics as text. No label names a column, file or patient. `state` is on the disk that is measured."""
    disk, at = os.statvfs(state), facts["contributed_at"]
    figures = {
        "connected": facts["connected_since"] is not None,
        "certificate_days": facts["certificate_days_left"],
        "round": facts["round"],
        "rounds_planned": facts["rounds"],
        "last_contribution_timestamp_seconds": datetime.fromisoformat(at).timestamp() if at else None,
        "audit_records": facts["audit"]["records"],
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "left_bytes_total": facts["left"]["bytes"],
        "contributions_total": facts["left"]["contributions"],
    }
    return metrics_text("global_layers_site", {name: facts[name] for name in ("site", "version", "phase")}, figures)
