"""Checks by file permissions that the gate process and the trainer cannot write an approval.

An approval is valid because a person gave it. A service with write access to the folder could approve a plan itself.
So gate and trainer check the permissions before they act. The rules, if the programs run as services:

* the folder, its files and the state directory above belong to root, or to a user that runs none of the services;
* neither their group nor others can write them.

If the programs run in a terminal, one user runs everything and cannot satisfy these rules.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError
from site_agent.hospital import Hospital
from site_agent.state_folders import agent_folder, approvals_folder, gate_folder

_UNKNOWN_USER: Final = 65534  # the user number that the kernel shows for users from outside this user namespace


def require_guarded(state: Path) -> None:
    """Check by file permissions that only a person, and no service of this site, could have written an approval.

    Raises:
        ConfigurationError: a service could have; the message has the command that corrects this.
    """
    folder = approvals_folder(state)
    if not folder.exists():
        return
    services = {os.geteuid(), _UNKNOWN_USER} | set(_owners(state))
    services.discard(0)
    _check(state, services, f"chown root:root {state} && chmod 0755 {state}")
    remedy = f"chown -R root:global-layers {folder} && chmod -R u=rwX,g=rX,o= {folder}"
    for place in (folder, *folder.rglob("*")):
        _check(place, services, remedy)


def guard_of(hospital: Hospital) -> Callable[[Path], None]:
    """Return the check of approvals. In a terminal it checks nothing, because one user account runs all programs."""
    return (lambda _: None) if hospital.gate_socket is None else require_guarded


def _owners(state: Path) -> Iterator[int]:
    for folder in (agent_folder(state), gate_folder(state), state / "models"):
        if folder.exists():
            yield folder.stat().st_uid


def _check(place: Path, services: set[int], remedy: str) -> None:
    found = place.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise _refused(place, "is a symbolic link", f"remove {place}, approve again")
    if found.st_uid in services:
        raise _refused(place, "belongs to a service", f"run `{remedy}`")
    if found.st_mode & 0o022:
        raise _refused(place, f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})", f"run `{remedy}`")


def _refused(place: Path, reason: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        what=f"{place} {reason}, so the approvals in it cannot be trusted.",
        consequence="Nothing is trained and nothing is sent.",
        remedy=f"As root, {remedy}, then `systemctl start site-trainer site-gate site-agent`.",
        code="E032",
    )
