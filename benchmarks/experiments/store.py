"""Results as they come: a CSV file of one line for each variant, seed and site.

A chunk's lines are added in one write when it is complete, so a run that is stopped goes on where it was
and no line is ever half of something.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.experiments.variants import Row

_HEADER: Final = ["variant", "seed", "site", "chosen_round", "metrics"]


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, in the order of variant, seed and site; none where there is no file."""
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
    """Append rows in one write."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    is_new = not path.exists()
    if is_new:
        writer.writerow(_HEADER)
    for row in rows:
        rounded = {name: round(value, 7) for name, value in row.metrics.items()}
        writer.writerow([row.variant, row.seed, row.site, row.chosen_round, json.dumps(rounded, sort_keys=True)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())
