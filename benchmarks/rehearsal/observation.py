"""Reads from Linux each process's memory, computing time, and the number of bytes that its sockets have sent."""

from __future__ import annotations

import json
import os
import socket
import struct
from datetime import datetime
from pathlib import Path

_DIAGNOSTICS = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _DUMP, _INFORMATION = 20, 0x301, 2
_ESTABLISHED = 1 << 1
_BYTES_AT = 120  # tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info, two unsigned 64-bit numbers


def memory_mib(process: int, key: str) -> float:
    """Return VmHWM (the peak) or VmRSS of a process in MiB, or 0 if the process has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    values = [line.split()[1] for line in text.splitlines() if line.startswith(f"{key}:")]
    return int(values[0]) / 1024 if values else 0.0


def processor_seconds(process: int) -> float:
    """Return the processor seconds of a process, including the kernel's time for it, or 0 if it has ended."""
    return sum(user_and_kernel_seconds(process))


def user_and_kernel_seconds(process: int) -> tuple[float, float]:
    """Return the processor seconds of a process in user mode and in the kernel, or zeros if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    user, kernel = text.rpartition(")")[2].split()[11:13]
    return int(user) / os.sysconf("SC_CLK_TCK"), int(kernel) / os.sysconf("SC_CLK_TCK")


def children_of(process: int) -> list[int]:
    """Return the running processes that a process has started, or nothing if the process has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def bytes_exchanged(port: int) -> dict[int, tuple[int, int]]:
    """Return for each open TCP connection to a port its local port, and the bytes that the peer received and sent.

    These are TLS records, so they hold everything but TCP's and IP's own headers.
    """
    found: dict[int, tuple[int, int]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAGNOSTICS) as kernel:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("<BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFORMATION - 1), 0, _ESTABLISHED)
            request += bytes(48)
            kernel.send(struct.pack("<IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            while _take(kernel.recv(1 << 18), port, found):
                pass
    return found


def _take(answer: bytes, port: int, found: dict[int, tuple[int, int]]) -> bool:
    """Read one datagram of netlink messages. Return whether more datagrams follow."""
    at = 0
    while at < len(answer):
        length, kind = struct.unpack_from("<IH", answer, at)
        if kind != _BY_FAMILY:
            return False
        local, remote = struct.unpack_from(">HH", answer, at + 20)
        attribute = at + 16 + 72
        while remote == port and attribute < at + length:
            size, name = struct.unpack_from("<HH", answer, attribute)
            if name == _INFORMATION:
                found[local] = struct.unpack_from("<QQ", answer, attribute + 4 + _BYTES_AT)
            attribute += (size + 3) & ~3
        at += (length + 3) & ~3
    return True


def times_of(log: Path) -> dict[str, list[datetime]]:
    """Return for each event in a coordinator's log the times at which it happened. Without a log, return nothing."""
    found: dict[str, list[datetime]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        if line.startswith("{") and line.endswith("}"):
            entry = json.loads(line)
            found.setdefault(entry["event"], []).append(datetime.fromisoformat(entry["timestamp"]))
    return found
