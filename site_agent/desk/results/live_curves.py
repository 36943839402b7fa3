"""Writes the validation loss of each round of a run to a file, for people at this site.

The trainer writes the file with mode 0600 in a folder that only its own user can read. So the agent, which has the
network, cannot read it. It is written at most once a second. A full disk does not end the study.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from protos.errors import UnavailableError
from site_agent.trainer.choice import Choice
from site_agent.trainer.disk import write_whole

_PAUSE_SECONDS: Final = 1.0


class LiveCurves:
    """Writes the losses of one study."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, -math.inf

    def take(self, choice: Choice, is_last: bool) -> None:
        """Write the losses that were measured so far, as pairs of round and loss. `is_last`: no later model follows."""
        if time.monotonic() < self._next and not is_last:
            return
        self._next = time.monotonic() + _PAUSE_SECONDS
        losses = [[measured.round, measured.loss] for measured in choice.curve if math.isfinite(measured.loss)]
        # It is only a drawing for people. If the disk is full, the error is reported when the study is saved.
        with suppress(UnavailableError):
            write_whole(self._path, json.dumps(losses).encode())
