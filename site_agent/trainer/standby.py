"""Waits for the next request in a small process without libraries, while this site has no study to train.

A trainer that read the table has loaded libraries, which need more memory than the rest of an idle site. It waits some
seconds for a plan. After that it replaces itself with this program. The rules:

* the process, its socket and its missing network stay the same, so the next request works as before;
* the configuration is the one that the trainer read at its start, even if the file has changed since;
* a trainer that has prepared a study never switches to this program.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from site_agent.trainer.pulse import PULSE

PATIENCE_SECONDS: Final = 10.0  # long enough for the time between table check and plan, if the coordinator is available
_PULSE_SECONDS: Final = 1.0


def stand_by(connection: socket.socket, configuration: Callable[[], bytes]) -> None:
    """Wait for data from the gate. After `PATIENCE_SECONDS` without data, replace this process by a small program.

    No byte of the next request was read. `configuration` returns the content of hospital.yaml, as JSON.
    """
    if select.select([connection], [], [], PATIENCE_SECONDS)[0]:
        return
    try:
        text = configuration()
    except ValueError:  # if a path is not UTF-8, the small program cannot be started, so this process waits itself
        return
    kept = os.memfd_create("hospital", 0)
    with open(kept, "wb", closefd=False) as file:  # memory without a path
        file.write(text)
    os.lseek(kept, 0, os.SEEK_SET)
    os.set_inheritable(connection.fileno(), True)
    words = [sys.executable, "-P", "-m", __name__, str(connection.fileno()), str(kept)]
    os.execv(sys.executable, words)  # noqa: S606  # this program, without a shell


def _await_request(connection: socket.socket) -> bool:
    """Wait until the gate sends a request or ends. Return whether it sent a request."""
    while not select.select([connection], [], [], _PULSE_SECONDS)[0]:
        PULSE.beat()
    with suppress(ConnectionError):
        return bool(connection.recv(1, socket.MSG_PEEK))
    return False


def main() -> None:
    """Wait for a request, then load the trainer and answer the request."""
    connection, kept = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    try:
        if not _await_request(connection):
            sys.exit(0)
        from site_agent.trainer.__main__ import continue_after_standby

        with open(kept, "rb") as file:  # memory without a path
            configuration = file.read()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ImportError, OSError):
        sys.exit(
            "site-trainer: The programs of this site changed while the trainer waited, or cannot be read.\n"
            "  Nothing was trained, and nothing was sent.\n"
            "  Restart the site's services. If this happens again, install the package again."
        )
    continue_after_standby(connection, configuration)


if __name__ == "__main__":
    main()
