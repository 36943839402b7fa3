"""Writes the results of a statistics plan as JSON and CSV, the same bytes at the coordinator and at every hospital."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from protos.plan.statistics_plan import StatisticsPlan

RESULTS_JSON: Final = "results.json"
RESULTS_CSV: Final = "results.csv"
RESULTS_HTML: Final = "results.html"
Results = Sequence[Mapping[str, Any]]


def results_as_json(plan: StatisticsPlan, results: Results) -> bytes:
    """Return the results with the study, the digest of the plan and the sites."""
    head = {
        "study": plan.study,
        "version": plan.version,
        "plan_digest": plan.digest.hex(),
        "run": plan.run_name,
        "sites": list(plan.site_names),
    }
    return json.dumps(head | {"analyses": list(results)}, indent=2, allow_nan=False).encode() + b"\n"


def results_as_csv(results: Results) -> str:
    """Return the results as a table of four columns: analysis, row, quantity, value. A missing value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["analysis", "row", "quantity", "value"])
    for result in results:
        for row, quantity, value in _lines(result, ()):
            writer.writerow([result["name"], row, quantity, "" if value is None else value])
    return text.getvalue()


def _lines(found: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
    if isinstance(found, Mapping):
        for key, value in found.items():
            if key not in ("name", "term"):
                yield from _lines(value, (*path, str(key)))
    elif isinstance(found, list | tuple):
        for number, value in enumerate(found):
            named = value.get("term", str(number)) if isinstance(value, Mapping) else str(number)
            yield from _lines(value, (*path, str(named)))
    else:
        yield ", ".join(path[:-1]), path[-1], found
