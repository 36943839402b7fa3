"""SIGHUP: read hospital.yaml again. A file with an error changes nothing.

A running agent takes over its policy and the coordinator's address. Everything else is bound to what was
built from it at the start, so the operator is informed which keys wait for a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from protos.errors import OperatorError
from site_agent.gate.site_standing import Standing
from site_agent.hospital import Hospital, read_hospital

TAKEN_OVER: Final = ("policy", "coordinator")


def adopted(held: Hospital, read: Hospital) -> tuple[Hospital, tuple[str, ...]]:
    """Return the new configuration, and the names of changed keys that require a restart."""
    waiting = tuple(
        name for name in Hospital.model_fields if name not in TAKEN_OVER and getattr(held, name) != getattr(read, name)
    )
    return held.model_copy(update={name: getattr(read, name) for name in TAKEN_OVER}), waiting


class Reloading:
    """The configuration that holds; call this when it is to be read again."""

    def __init__(self, path: Path, hospital: Hospital, standing: Standing) -> None:
        """`path` is the file that `hospital` was read from."""
        self._path, self._standing = path, standing
        self.hospital = hospital
        self.tell: Callable[[Hospital], None] = lambda _: None

    def __call__(self) -> None:
        """Read the file; where it is wrong, what held before holds on."""
        log = structlog.get_logger()
        try:
            self.hospital, waiting = adopted(self.hospital, read_hospital(self._path))
        except OperatorError as wrong:
            self._standing.failed(wrong)
            log.error("configuration_kept", what=wrong.what, identifier=wrong.code)
            return
        log.info("configuration_taken_over", waits_for_restart=list(waiting))
        self.tell(self.hospital)
