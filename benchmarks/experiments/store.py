"""Stores results when they arrive, in two CSV files: results by variant, seed and site, and the cost of each chunk.

When a chunk is complete, its lines are added and the whole file is replaced. So an interrupted run continues, and no
line is ever incomplete.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.experiments.variants import Row

_HEADER: Final = ["variant", "seed", "site", "chosen_round", "metrics"]
_COST_HEADER: Final = ["variant", "seeds", "processor_seconds", "day", "libraries"]


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a file, sorted by variant, seed and site. Without a file, return no rows."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [
            Row(
                variant=line["variant"],
                seed=int(line["seed"]),
                site=line["site"],
                chosen_round=int(line["chosen_round"]),
                metrics=json.loads(line["metrics"]),
            )
            for line in csv.DictReader(file)
        ]
    return sorted(rows, key=lambda row: (row.variant, row.seed, row.site))


def add_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows to a file of results. Metrics are rounded to seven digits."""
    lines = []
    for row in rows:
        rounded = {name: float(f"{value:.7g}") for name, value in row.metrics.items()}
        lines.append([row.variant, row.seed, row.site, row.chosen_round, json.dumps(rounded, sort_keys=True)])
    _append(path, _HEADER, lines)


def costs_beside(path: Path) -> Path:
    """The file in which the costs of a table's results are kept."""
    return path.with_name(f"{path.stem}-cpu.csv")


def add_cost(path: Path, variant: str, seeds: int, seconds: float, libraries: str) -> None:
    """Append to a file of costs the processor seconds of a chunk of seeds, with today's date and the libraries."""
    day = datetime.now(UTC).date().isoformat()
    _append(path, _COST_HEADER, [[variant, seeds, f"{seconds:.2f}", day, libraries]])


def _append(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        writer.writerow(header)
    writer.writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else b""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(before + text.getvalue().encode())
    partial.replace(path)
