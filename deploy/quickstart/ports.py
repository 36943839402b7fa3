"""Finds a free port on loopback for a rehearsal."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a loopback port of this computer that no program uses at the moment.

    It is below the range of ports that the system gives to outgoing connections and to listeners without a port.
    Otherwise any process could take it before it is used.

    Raises:
        RuntimeError: a hundred ports were tried, and all were in use.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port among a hundred")
