"""Runs several sites in one process: `python -m benchmarks.rehearsal.light_sites --folder F SITE...`.

Each has the deployed agent with its gate, audit log and masks, and a certificate of its own. Only the trainer is
replaced, by one in memory that returns its input plus one.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import click
import numpy as np
import structlog

from benchmarks.rehearsal.enrolled import credentials_of
from benchmarks.rehearsal.plain_stream import PlainStream
from host.audit_log import AuditLog
from pki.identity_key import read_identity_key
from protos.plan.manifest import manifest_of
from protos.plan.plan import plan_from_wire
from site_agent.gate.agent_link import Stream as SiteStream
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer_socket import Agreed, Check, Conclude, GateEnd, Message, Prepare, Prepared, Train, Trained


class LightTrainer:
    """Replies to each request of an agent at once, with every parameter increased by one."""

    def __init__(self) -> None:
        self._change = memoryview(b"")

    async def ask(self, question: Message, largest_payload: int = 0) -> Message:  # noqa: ARG002 — as GateEnd has it
        """Return the reply of a trainer whose training adds one to every parameter."""
        await asyncio.sleep(0)
        match question:
            case Check() | Conclude():
                return Agreed()
            case Prepare(payload=payload):
                return Prepared(manifest_of(plan_from_wire(bytes(payload))).digest.hex())
            case Train(round=number, payload=payload):
                if len(payload) != len(self._change):
                    self._change = memoryview(np.ones(len(payload) // 4, np.float32)).cast("B")
                return Trained(number, 0, self._change)
            case _:
                raise ValueError("an answer instead of a request")

    def require(self) -> None:
        """Do nothing, because this trainer never ends by itself."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


async def take_part(hospital: Hospital) -> None:
    """Run the deployed agent until the coordinator closes the stream."""
    assert hospital.coordinator is not None
    address, credentials = hospital.coordinator, credentials_of(hospital)
    audit = AuditLog(gate_store_path(hospital.state_path), site=hospital.site, now=lambda: datetime.now(UTC))
    gate = SiteGate(
        hospital,
        identity_key=read_identity_key(gate_folder(hospital.state_path)),
        trainer=cast(GateEnd, LightTrainer()),
        audit=audit,
        connect=lambda: cast(SiteStream, PlainStream(address, credentials)),
        software="benchmark",
    )
    await gate.run()
    audit.close()


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.argument("sites", nargs=-1, required=True)
def main(folder: Path, sites: tuple[str, ...]) -> None:
    """Take part as these sites until the coordinator reports that all runs are over."""
    # Logs go to stderr, as in the agent. The caller may read no other stream.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )

    async def all_of_them() -> None:
        hospitals = [read_hospital(folder / site / "hospital.yaml") for site in sites]
        await asyncio.gather(*(take_part(hospital) for hospital in hospitals))

    asyncio.run(all_of_them())


if __name__ == "__main__":
    main()
