"""Ports on loopback for a rehearsal."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a loopback port on which nobody listens at the moment.

    It lies below the range from which the system takes the ports of outgoing connections and of listeners
    that name none: one of those could take it, in any process, before it is listened on.

    Raises:
        RuntimeError: a hundred ports were tried, all of them in use.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port among a hundred")
