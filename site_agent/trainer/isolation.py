"""Removes the trainer's network access before the trainer reads the data of the first patient.

Under systemd the unit does this (`PrivateNetwork=yes`). If a person starts the trainer, the process moves itself into a
network namespace of its own without an active interface. The kernel lets an ordinary user do that if user namespaces
are allowed. The rules:

* this happens before numpy is loaded. Numerical libraries start threads, only one thread leaves a namespace, and the
  kernel refuses a user namespace to a process with several threads;
* a child process tries first, because with an incomplete user namespace the trainer could no longer write this site's
  files;
* a process without any device, as in a container, stays where it is: in a user namespace of its own, the files of root
  and of other users would belong to nobody. A device that is added there later can be used;
* the routes are read afterwards to check that no network remains.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_DEVICES: Final = Path("/proc/self/net/dev")  # two lines of headings, then each device
_ROUTES: Final = Path("/proc/self/net/route")
_ROUTES_6: Final = Path("/proc/self/net/ipv6_route")


def give_up_network() -> bool:
    """Remove all network access of this process. Return whether it worked. Several threads are a RuntimeError."""
    if _threads() > 1:
        raise RuntimeError("threads were started before the network was given up")
    if not _unshare(_CLONE_NEWNET) and len(_lines(_DEVICES)) > 3 and _succeeds_in_child():
        _enter_own_user_namespace()
    return not leads_out()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # a kernel interface, not a path


def end_with_parent() -> None:
    """Let the operating system end this process when the site agent that started it ends, for any reason.

    Otherwise this process would train to the end of its round, while the next agent already has another trainer.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def leads_out() -> bool:
    """Return whether this process can reach another computer over the network.

    Routes are counted and not interfaces, because a new namespace can have idle tunnel interfaces.
    """
    devices = [line.split()[0] for line in _lines(_ROUTES)[1:]] + [line.split()[-1] for line in _lines(_ROUTES_6)]
    return any(device != "lo" for device in devices)


def _lines(routes: Path) -> list[str]:
    # The file is absent if the kernel was built without this kind of address. Then there are no such routes.
    return routes.read_text().splitlines() if routes.exists() else []


def _succeeds_in_child() -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if _enter_own_user_namespace() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _enter_own_user_namespace() -> bool:
    user, group = os.getuid(), os.getgid()
    if not _unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        return False
    # Without these maps, the files of this process would seem to belong to the user `nobody`.
    kernel = Path("/proc/self")
    (kernel / "setgroups").write_text("deny")
    (kernel / "uid_map").write_text(f"{user} {user} 1")
    (kernel / "gid_map").write_text(f"{group} {group} 1")
    return True


def _unshare(namespaces: int) -> bool:
    return bool(ctypes.CDLL(None, use_errno=True).unshare(namespaces) == 0)
