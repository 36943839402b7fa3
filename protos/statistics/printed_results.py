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


def results_as_lines(results: Results) -> Iterator[str]:
    """Yield the results as lines for a terminal: an analysis, then its estimates or counts."""
    for result in results:
        yield str(result["name"])
        if "refused" in result:
            yield f"  No result. {result['refused']}"
        elif "terms" in result:
            yield f"  {result['rows']} rows, {result['sites']} hospitals, {result['rounds']} Newton rounds"
            for term in result["terms"]:
                ratio = "" if term.get("ratio") is None else f"   {result['ratio']} {term['ratio']:.4g}"
                if term["p"] is None:
                    yield f"  {term['term']:<28}{term['estimate']:>12.5g}{ratio}   (no interval under a penalty)"
                    continue
                ends = f"[{term['low']:.5g}, {term['high']:.5g}]"
                yield f"  {term['term']:<28}{term['estimate']:>12.5g} {ends:>24}   p {term['p']:.3g}{ratio}"
        else:
            yield f"  The table is in {RESULTS_HTML}, {RESULTS_CSV} and {RESULTS_JSON}."


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
