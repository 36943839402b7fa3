"""Starts the trainer process: `python -m site_agent.trainer_process --config hospital.yaml --socket FD`.

The agent starts this process with one end of a socket pair. Or the process is a service that listens on a Unix socket.
Libraries that compute are imported only after the process has given up the network; see isolation.py. This file joins
the trainer with the desk, which makes the report after the last round. The trainer itself imports nothing of the desk.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import host.log_lines  # before structlog, which would load rich

# isort: split
import click
import sdnotify
import structlog

from protos.errors import ConfigurationError, UnavailableError, explained
from site_agent.trainer.isolation import end_with_parent, give_up_network
from site_agent.trainer.pulse import PULSE

if TYPE_CHECKING:
    from site_agent.hospital import Hospital

_IDLE_SECONDS: Final = 1.0


@click.command()
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The file hospital.yaml.")
@click.option(
    "--socket",
    "descriptor",
    type=int,
    help="Inherited socket. Without this option, the process listens on trainer_socket.",
)
def main(path: Path, descriptor: int | None) -> None:
    """Train the models of this site, as the gate requests.

    Example: python -m site_agent.trainer_process --config hospital.yaml
    """
    os.umask(0o077)
    host.log_lines.set_up_log("site-trainer")
    has_network = not give_up_network()
    if descriptor is not None:
        end_with_parent()

    from site_agent.desk import after_rounds
    from site_agent.hospital import read_hospital
    from site_agent.trainer.worker import Worker
    from site_agent.trainer_socket import TrainerEnd

    with _explaining():
        hospital = read_hospital(path)
        _log_start(hospital, has_network=has_network)
        connection = _listen(hospital, PULSE.beat) if descriptor is None else socket.socket(fileno=descriptor)
        sys.exit(Worker(hospital, TrainerEnd(connection, PULSE.beat), after_rounds).serve())


def _log_start(hospital: Hospital, *, has_network: bool) -> None:
    log = structlog.get_logger()
    log.info("trainer_started", site=hospital.site)
    if has_network:
        log.warning(
            "trainer_not_isolated",
            enforced_by="only the program's own code: the kernel did not permit a separate network namespace",
            remedy="allow user namespaces, or run the trainer as its unit does",
        )
    else:
        log.info("trainer_kept_from_network", enforced_by="the kernel: this process has no network route")


@contextmanager
def _explaining() -> Iterator[None]:
    """If the `with` block fails, print its error as three sentences and end the process with its exit status."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        # An unexpected error is printed without its text, which might contain a patient's values.
        told = explained(error)
        print(told.lines("site-trainer"), file=sys.stderr)
        sys.exit(told.exit_status)


def _listen(hospital: Hospital, idle: Callable[[], None]) -> socket.socket:
    """Wait for the agent on the configured Unix socket. Call `idle` every second while waiting."""
    if hospital.trainer_socket is None:
        raise UnavailableError(
            what="The file hospital.yaml does not have the key trainer_socket.",
            consequence="The trainer did not start. Nothing was sent.",
            remedy=(
                "Add the key trainer_socket to hospital.yaml, or use `site-agent join`, which starts the trainer "
                "itself."
            ),
        )
    place = Path(hospital.trainer_socket)
    if place.is_socket():  # left by an earlier process
        place.unlink()
    elif place.exists():
        raise ConfigurationError(
            what=f"The path in trainer_socket, {place.name}, exists but is not a socket.",
            consequence="The existing file was not changed. The trainer did not start and nothing was sent.",
            remedy="Set trainer_socket in hospital.yaml to a path that does not exist yet.",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place))
        place.chmod(0o660)
        listener.listen(1)
        listener.settimeout(_IDLE_SECONDS)
        sdnotify.SystemdNotifier().notify("READY=1\nSTATUS=listening for the agent")
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                idle()


if __name__ == "__main__":
    main()
