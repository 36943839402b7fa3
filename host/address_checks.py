"""Finds out whether another program already listens on an address of this computer."""

from __future__ import annotations

import errno
import socket


def taken_addresses(listen: str) -> list[str]:
    """Return the addresses of HOST:PORT on which another program already listens. A name can have several addresses.

    A server that gets only one of two addresses reports no error, and a caller of the other address reaches a stranger.
    An unknown host has no addresses.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return []
    return [str(place[0]) for family, _, _, _, place in found if _is_taken(family, place)]


def _is_taken(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ended connections occupy no port
            if family == socket.AF_INET6:
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            own.bind(place)
    except OSError as cause:  # this also happens if a name has an IPv6 address and this computer has no IPv6
        return cause.errno == errno.EADDRINUSE
    return False
