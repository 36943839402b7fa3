"""Checks disk, clock and operating system of this computer for the command `doctor`. Changes nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

_TIME_ERROR: Final = 5  # adjtimex: the clock is not synchronised
_BPF_CALLS: Final = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD: Final = 5
_CGROUP_SKB: Final = 8
# The program returns 1, which lets every packet pass. It is loaded and never attached.
_PROGRAM: Final = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)


def free_on_disk(place: Path) -> tuple[int, int | None]:
    """Return the free bytes and the number of files that can still be created, on the disk of a path.

    If the path does not exist, the nearest existing folder above it counts. Some file systems have no limit of files;
    for them the number is None.
    """
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else None


def is_clock_synchronised() -> bool | None:
    """Return whether a time server sets this computer's clock, or None if the kernel does not report this."""
    buffer = ctypes.create_string_buffer(512)  # larger than struct timex everywhere; zeros only read the state
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:
        return None
    return None if state < 0 else state != _TIME_ERROR


def enforces_address_rules() -> bool | None:
    """Return whether the kernel can enforce systemd's rule IPAddressDeny=, or None if the process is not root."""
    number = _BPF_CALLS.get(os.uname().machine)
    if os.geteuid() != 0 or number is None:
        return None
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return False
    instructions, licence = ctypes.create_string_buffer(_PROGRAM), ctypes.create_string_buffer(b"GPL")
    attributes = ctypes.create_string_buffer(
        struct.pack("<IIQQ", _CGROUP_SKB, 2, ctypes.addressof(instructions), ctypes.addressof(licence)).ljust(
            128, b"\0"
        )
    )
    kernel = ctypes.CDLL(None, use_errno=True)
    descriptor = kernel.syscall(number, _BPF_PROG_LOAD, attributes, 128)
    if descriptor < 0:
        # Without the permission to test, as in a container, the result is unknown.
        return None if ctypes.get_errno() == errno.EPERM else False
    os.close(descriptor)
    return True
