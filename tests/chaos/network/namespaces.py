"""Two network namespaces with a line between them that the test controls.

    hub (10.77.0.1) ── veth ── this process passes frames on (wire.py) ── veth ── away (10.77.0.2)

The two ends in the middle have no address; whatever is sent through either is seen by the test alone. It needs root,
and removes everything: a pair of veth ends disappears with its namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HUB, AWAY = "10.77.0.1", "10.77.0.2"
_SIOCETHTOOL = 0x8946
# Set receive and transmit checksums, scatter, both segmentations and their reverse; each command's number.
_OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)


class Impossible(Exception):  # says what this machine lacks; the test is skipped
    """This computer does not allow namespaces here."""


def ip(*words: str) -> None:
    """One command of iproute2.

    Raises:
        Impossible: it failed.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Impossible(f"`ip {' '.join(words)}` says: {done.stderr.strip()}")


@dataclass(frozen=True)
class Line:
    """The namespaces' names, and the ends of their cables in this process's own."""

    hub: str
    away: str
    hub_end: str
    away_end: str

    def within(self, namespace: str) -> list[str]:
        """The words before a command that runs in a namespace."""
        return ["nsenter", f"--net=/run/netns/{namespace}"]

    def pull_cable(self) -> None:
        """Both sides of the cable lose their carrier."""
        ip("link", "set", self.away_end, "down")

    def plug_in_cable(self) -> None:
        """The reverse."""
        ip("link", "set", self.away_end, "up")

    def change_address(self, earlier: str, later: str) -> None:
        """The site away gets another address, as from its provider: connections from the old one are dead."""
        # In this order, because the second of two goes with the first.
        ip("-n", self.away, "address", "del", f"{earlier}/24", "dev", "cable")
        ip("-n", self.away, "address", "add", f"{later}/24", "dev", "cable")

    def limit_rate(self, rate: str) -> None:
        """A token bucket on both sides, such as `1mbit`.

        Raises:
            Impossible: the kernel has no such filter.
        """
        for namespace in (self.hub, self.away):
            words = ["tc", "qdisc", "replace", "dev", "cable", "root", "tbf", "rate", rate, "burst", "8kb"]
            done = subprocess.run(
                [*self.within(namespace), *words, "latency", "500ms"], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise Impossible(f"no token bucket: {done.stderr.strip()}")


@contextmanager
def line() -> Iterator[Line]:
    """Two namespaces with their cables.

    Raises:
        Impossible: there is no root, no iproute2 or no such kernel.
    """
    if os.geteuid() != 0:
        raise Impossible("network namespaces need root")
    lacking = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if lacking:
        raise Impossible(f"{' and '.join(lacking)} not installed")
    mark = f"{os.getpid() % 100_000:05d}"
    made = Line(f"gl-hub-{mark}", f"gl-away-{mark}", f"glh{mark}", f"gla{mark}")
    try:
        for namespace, end, address in ((made.hub, made.hub_end, HUB), (made.away, made.away_end, AWAY)):
            ip("netns", "add", namespace)
            inner = f"{end}i"
            ip("link", "add", end, "type", "veth", "peer", "name", inner)
            for device in (end, inner):
                _send_whole_frames(device)
            ip("link", "set", end, "addrgenmode", "none")
            ip("link", "set", inner, "netns", namespace, "name", "cable")
            ip("link", "set", end, "up")
            for device in ("lo", "cable"):
                ip("-n", namespace, "link", "set", device, "up")
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", "cable")
        yield made
    finally:
        # Cables first: with its namespace the kernel takes one away later, and the next line needs the name at once.
        for end in (made.hub_end, made.away_end):
            subprocess.run(["ip", "link", "del", end], capture_output=True, check=False)
        for namespace in (made.hub, made.away):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _send_whole_frames(device: str) -> None:
    """Let the kernel compute checksums and cut segments itself: no card does it behind a packet socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("=16sQ", device.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
            except OSError:  # a device that knows no such offload needs none switched off
                continue
