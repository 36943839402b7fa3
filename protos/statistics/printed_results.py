"""Writes the results of a statistics plan as JSON and CSV, the same bytes at the coordinator and at every hospital."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.distributions import ratio_of

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
            yield from _model(result)
        elif "log_rank" in result:
            for group in result["groups"]:
                median, low, high = (
                    "not reached" if group["median"][key] is None else group["median"][key]
                    for key in ("value", "low", "high")
                )
                line = f"{group['patients']} patients, {group['events']} events, median {median} [{low}, {high}]"
                yield f"  {group['group']:<28}{line}"
            if test := result["log_rank"]:
                yield f"  {'log-rank test':<28}chi-squared {test['chi_squared']:.5g}   p {test['p']:.3g}"
        else:
            yield f"  The table is in {RESULTS_HTML}, {RESULTS_CSV} and {RESULTS_JSON}."


def named(term: Mapping[str, Any]) -> str:
    """Return a term with what its coefficient compares: "sex=male, compared with female"."""
    return ", ".join(filter(None, (term["term"], term.get("scale"))))


def _model(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {result['rows']} rows, {result['sites']} hospitals, {result['rounds']} Newton rounds"
    # The ratio of a column of a spline, which has no scale, says nothing.
    rows = [(named(one), one, bool(one.get("scale"))) for one in result["terms"]]
    for spline in result["splines"]:
        rows += [
            (f"{spline['concept']} {at['value']:g} against {spline['reference']:g}", at, True) for at in spline["at"]
        ]
    for name, one, is_whole in rows:
        ends = "(no interval under a penalty)" if one["low"] is None else f"[{one['low']:.5g}, {one['high']:.5g}]"
        p = "" if one.get("p") is None else f"   p {one['p']:.3g}"
        has_ratio = is_whole and result["ratio"]
        ratio = f"   {result['ratio']} {ratio_of(one['estimate']):.4g}" if has_ratio else ""
        yield f"  {name:<28}{one['estimate']:>12.5g} {ends:>24}{p}{ratio}"
    for test in result["tests"]:
        yield f"  {test['term']:<28}joint test   p {test['p']:.3g}"
    if result.get("proportional") is not None:
        yield f"  {'proportional hazards':<28}test of all columns   p {result['proportional']['p']:.3g}"


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
