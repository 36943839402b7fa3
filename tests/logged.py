"""What an audit log has, read from its store without the program's checks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[str]:
    """The lines of all records. A store that is not there has none."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as store:
        return [line for (line,) in store.execute("SELECT line FROM records ORDER BY number")]


def noise_of(path: Path) -> dict[str, bytes]:
    """The noisy numbers that a gate's store has now, by the position of their step."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as store:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'noise'").fetchall():
            return {}
        return {position.hex(): numbers for position, numbers in store.execute("SELECT position, numbers FROM noise")}


def facts_of(path: Path, *events: str) -> list[dict[str, Any]]:
    """The facts of all records, or of those of these events."""
    found = [json.loads(line)["facts"] for line in lines_of(path)]
    return [facts for facts in found if not events or facts["event"] in events]
