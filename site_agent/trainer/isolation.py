"""The trainer gives up the network before it reads its first patient.

Under systemd the unit does this (`PrivateNetwork=yes`). Run by hand, the process moves itself into a
network namespace of its own, which has no interface that is up; the kernel lets an ordinary user do so
where user namespaces are allowed.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000


def give_up_network() -> bool:
    """Leave every network behind; whether the kernel did it. Call before any thread is started."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    # Without these maps the process would see its own files as nobody's.
    with open("/proc/self/setgroups", "w") as file:  # noqa: PTH123  # a kernel interface, not a path
        file.write("deny")
    with open("/proc/self/uid_map", "w") as file:  # noqa: PTH123
        file.write(f"{user} {user} 1")
    with open("/proc/self/gid_map", "w") as file:  # noqa: PTH123
        file.write(f"{group} {group} 1")
    return True
