"""Starts the agent process: `python -m site_agent.agent --folder STATE/agent --socket FD`.

`site-agent join` starts it with a socket pair, or it is a service of its own that connects to the gate's Unix socket.
It reads no configuration, because the gate orders all its work.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import click
import sdnotify

from protos.errors import ProtocolError, UnavailableError, explained
from protos.wire.messages import MalformedMessage
from site_agent.agent.kept_certificates import KeptCertificates
from site_agent.agent.relaying import Relay
from site_agent.framed_messages import FramedSocket
from site_agent.gate_socket import FRAMING

_WAIT_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.2
_PULSE_SECONDS: Final = 1.0


@click.command()
@click.option(
    "--folder", required=True, type=click.Path(path_type=Path), help="The folder `agent` in the site's state directory."
)
@click.option("--socket", "descriptor", type=int, help="Number of an open socket to the gate process of this site.")
@click.option("--gate", "place", type=click.Path(path_type=Path), help="Path of the Unix socket of the gate process.")
def main(folder: Path, descriptor: int | None, place: Path | None) -> None:
    """Connect this site to its coordinator, and pass messages between the coordinator and the gate process.

    Example: python -m site_agent.agent --folder /var/lib/global-layers/site/agent --gate /run/site-gate/gate.sock
    """
    os.umask(0o077)
    if descriptor is not None:
        # A terminal sends the signal to both processes. This process ends after the gate process, so that the last
        # messages are still sent.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        kept = KeptCertificates(folder)
        connection = socket.socket(fileno=descriptor) if descriptor is not None else _connected(place)
        asyncio.run(_relay(connection, kept))
    except MalformedMessage as malformed:
        error = ProtocolError(
            what=f"The gate process of this site sent {malformed} to the agent.",
            consequence="The agent did not send the faulty message to the coordinator.",
            remedy="Install the same version of the programs agent, gate and trainer.",
        )
        print(error.lines("site-agent"), file=sys.stderr)
        sys.exit(error.exit_status)
    except Exception as error:
        told = explained(error)
        print(told.lines("site-agent"), file=sys.stderr)
        sys.exit(told.exit_status)


async def _relay(connection: socket.socket, kept: KeptCertificates) -> None:
    gate = FramedSocket(connection, FRAMING)
    relay = Relay(gate, kept)
    pulse = asyncio.create_task(_pulse(relay))
    try:
        await relay.run()
    finally:
        pulse.cancel()
        gate.close()


async def _pulse(relay: Relay) -> None:
    """Notify systemd that the service is ready and still works, and whether the coordinator answers."""
    notifier = sdnotify.SystemdNotifier()
    notifier.notify("READY=1")
    while True:
        notifier.notify(f"WATCHDOG=1\nSTATUS={relay.line}")
        await asyncio.sleep(_PULSE_SECONDS)


def _connected(place: Path | None) -> socket.socket:
    """Connect to the socket of the gate process. Wait for a short time if the gate process does not listen yet."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while place is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(place))
            return connection
        except OSError as cause:
            connection.close()
            if time.monotonic() > deadline:
                raise UnavailableError(
                    what=f"The gate process does not accept connections on {place}: {cause.strerror}.",
                    consequence="This site is not connected to the coordinator. Nothing was sent.",
                    remedy="Start the service site-gate. The service site-agent then restarts by itself.",
                ) from cause
        time.sleep(_POLL_SECONDS)
    raise UnavailableError(
        what="The command needs the option --socket or the option --gate.",
        consequence="The agent did not start. Nothing was sent.",
        remedy="Use --gate with the path of the gate's socket.",
    )


if __name__ == "__main__":
    main()
