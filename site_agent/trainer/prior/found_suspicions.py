"""Stores the findings of the newest comparison with other sites, for `review`. The findings never leave this site.

A finding is a sentence with the names of columns, as in the report. The file is in the trainer's folder, which also has
the counts of rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from site_agent.trainer.trainer_files import write_whole

_FILE: Final = Path("data") / "suspicions.json"
_LARGEST_BYTES: Final = 1 << 16


def keep_suspicions(state: Path, run: str, sentences: Sequence[str]) -> None:
    """Write the findings of a run, and replace those of an earlier run."""
    write_whole(state / _FILE, json.dumps({"run": run, "sentences": list(sentences)}).encode())


def find_suspicions(state: Path) -> tuple[str, ...]:
    """Return the newest findings, or no finding if this user account may not read the file."""
    try:
        with (state / _FILE).open("rb") as file:
            found = json.loads(file.read(_LARGEST_BYTES))
        return tuple(f"In the run {found['run']}, {sentence}" for sentence in found["sentences"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
