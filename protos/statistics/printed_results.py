"""Writes the results of a statistics plan as JSON and CSV, the same bytes at the coordinator and at every hospital."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.design import in_words
from protos.statistics.distributions import ratio_of

RESULTS_JSON: Final = "results.json"
RESULTS_CSV: Final = "results.csv"
RESULTS_HTML: Final = "results.html"
Results = Sequence[Mapping[str, Any]]
Row: TypeAlias = dict[str, Any]  # of the CSV
_WHERE: Final = ("analysis", "statistic", "term", "group", "at")
_FOUND: Final = ("estimate", "error", "low", "high", "p", "degrees", "note")
_BESIDE: Final = {"deviation": "", "proportional": " (chi-squared)", "log_rank": " (chi-squared)"}
_SERIES: Final = ("at_risk", "interval_events", "interval_censored")


def results_as_json(plan: StatisticsPlan, results: Results) -> bytes:
    """Return the results with the study, the digest of the plan and the sites."""
    head = {"study": plan.study, "version": plan.version, "plan_digest": plan.digest.hex(), "run": plan.run_name}
    content = head | {"sites": list(plan.site_names), "analyses": list(results)}
    return json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"


def results_as_csv(results: Results) -> str:
    """Return the results as a table: a row for each number with its interval, or for each test.

    `statistic` says what `estimate` is, `term` of which column, concept or code, and `at` at which time, knot or share.
    """
    writer = csv.DictWriter(text := io.StringIO(), _WHERE + _FOUND, lineterminator="\n")
    writer.writeheader()
    writer.writerows({"analysis": result["name"]} | row for result in results for row in _rows(result))
    return text.getvalue()


def results_as_lines(content: Mapping[str, Any], lacking: Iterable[str] = ()) -> Iterator[str]:
    """Yield what `results_as_json` wrote as lines: an analysis, then its numbers. Runs in `lacking` ended without."""
    yield f"{content['study']}, version {content['version']}: the results of the run {content['run']}"
    found = re.findall(rf"(?m)^({content['study']}-v(\d+)-\w+)$", "\n".join(lacking))
    yield from (f"The newer run {run} ended without results." for run, at in found if int(at) > content["version"])
    for result in content["analyses"]:
        yield str(result["name"])
        if "refused" in result:
            yield f"  No result. {result['refused']}"
        elif "terms" in result:
            events = f", {result['events']} {result.get('event') or result['outcome']}" if result["events"] else ""
            yield f"  {result['rows']} rows{events}, {result['sites']} hospitals, {result['rounds']} Newton rounds"
            yield from _aligned([*_of_model(result)])
        elif "log_rank" in result:
            yield from _aligned([*_of_curves(result)])
            yield from [f"  {ends_early(result)}"] if ends_early(result) else []
        else:
            void = [name for name, groups in result["columns"].items() if any("void" in one for one in groups.values())]
            lacks = f", without some numbers of {in_words(void)}" if void else ""
            yield f"  The table is in {RESULTS_HTML}, {RESULTS_CSV} and {RESULTS_JSON}{lacks}."


def spoken(name: str, terms: Results = ()) -> str:
    """Return a group, or one of a model's terms, as a person reads it: "sex: male" for sex=male, "age × sex: male"."""
    concepts = "|".join(re.split("[':=,]", one["term"])[0] for one in terms)  # each has a term; a code can have colons
    parts = re.split(rf":(?=(?:{concepts})'*(?:[=:,]|$))", name) if concepts else [name]
    return " × ".join(part.replace("=", ": ", 1) for part in parts)


def named(terms: Results) -> list[Row]:
    """Return terms with a `label` of what each compares: "sex: male, against female"."""
    labels = [spoken(one["term"], terms) for one in terms]
    return [
        {**one, "label": f"{label}, {one['scale']}" if one.get("scale") and label == spoken(one["term"]) else label}
        for one, label in zip(terms, labels, strict=True)
    ]


def _of_model(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", result["ratio"] or "coefficient", "95% interval", ""
    # A column of a spline alone says nothing. Without a penalty its term has a joint test.
    rows = [one for one in named(result["terms"]) if result["ridge"] or one.get("scale") != ""]
    for spline in result["splines"]:
        name, middle = spline["concept"], spline["reference"]
        knots = (at for at in spline["at"] if at["value"] != middle)
        rows += [{"label": f"{name} {at['value']:g} against {middle:g}", "scale": "knots", **at} for at in knots]
    for one in rows:
        is_ratio = result["ratio"] and one.get("scale")
        numbers = [one[key] for key in ("estimate", "low", "high") if one[key] is not None]
        value, *ends = map(ratio_of, numbers) if is_ratio else numbers
        interval = f"[{ends[0]:.4g}, {ends[1]:.4g}]" if ends else "(none under a penalty)"
        beside = " (coefficient)" if result["ratio"] and not is_ratio else ""
        yield f"{one['label']}{beside}", f"{value:.4g}", interval, "" if one.get("p") is None else f"p {one['p']:.3g}"
    for test in result["tests"]:
        yield spoken(test["term"], result["terms"]), "", "joint test", f"p {test['p']:.3g}"
    if result.get("proportional") is not None:
        yield "proportional hazards", "", "test of all columns", f"p {result['proportional']['p']:.3g}"


def ends_early(result: Mapping[str, Any]) -> str:
    """Return why curves end before the plan's end; nothing if none does."""
    end = min(one["times"][-1] for one in result["groups"])
    few = "After it too few hospitals have enough patients or events, or, with several curves, in an interval."
    return f"A curve ends at {end:g} of {result['planned end']:g}. {few}" if end < result["planned end"] else ""


def _of_curves(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", "patients", "events", f"median ({result['unit'] or 'no unit'})", "95% interval"
    for one in result["groups"]:
        numbers, none = (one["median"][key] for key in ("value", "low", "high")), "not reached"
        median, low, high = (none if number is None else f"{number:.6g}" for number in numbers)
        median += f" by {one['times'][-1]:.6g}" if median == none and one["times"] else ""
        yield spoken(one["group"]), str(one["patients"]), str(one["events"]), median, f"[{low}, {high}]"
    if test := result["log_rank"]:
        yield "log-rank test", "", "", f"chi-squared {test['chi_squared']:.5g}", f"p {test['p']:.3g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        yield "  ".join(("", first.ljust(widths[0]), *map(str.rjust, others, widths[1:]))).rstrip()


def _rows(result: Mapping[str, Any]) -> Iterator[Row]:
    if "refused" in result:
        yield {"statistic": "refused", "note": result["refused"]}
    yield from _numbers(result)
    for name, by_group in result.get("columns", {}).items():
        for group, record in by_group.items():
            where = {"term": name, "group": group}
            yield from _numbers(record, **where)
            for share, value in zip((0.25, 0.5, 0.75), record.get("quartiles") or (), strict=False):
                yield _row("quantile", value, **where, at=share)
            for code, cell in record.get("codes", {}).items():
                yield from _numbers(cell, term=f"{name}={code}", group=group)
            if "void" in record:
                yield {"statistic": "void", **where, "note": record["void"]}
    for name, value in result.get("differences", {}).items():
        yield _row("standardised mean difference", value, term=name)
    for one in result.get("terms", ()):
        yield from _of_term(one, result["ratio"])
    for test in result.get("tests", ()):
        yield _row("joint test (F)" if "f" in test else "joint test (chi-squared)", test, term=test["term"])
    for spline in result.get("splines", ()):
        for at in spline["at"]:
            yield _row("coefficient against the middle knot", at, term=spline["concept"], at=at["value"])
    yield from (_row(f"{key}{more}", result[key]) for key, more in _BESIDE.items() if result.get(key))
    for group in result["groups"] if result.get("kind") == "curve" else ():
        where = {"group": group["group"]}
        yield from (*_numbers(group, **where), _row("median", group["median"], **where))
        yield _row("restricted mean", group["restricted_mean"], **where, at=group["restricted_mean"]["until"])
        for place, time in enumerate(group["times"]):
            at = {key: group[key][place] for key in ("survival", "low", "high", *_SERIES)}
            yield _row("survival", at | {"estimate": at["survival"]}, **where, at=time)
            yield from _numbers({key: at[key] for key in _SERIES}, **where, at=time)


def _of_term(one: Mapping[str, Any], ratio: str | None) -> Iterator[Row]:
    where = {"term": one["term"]}
    yield _row("coefficient", one, **where)
    if "ratio" in one:
        yield _row(str(ratio), _as_ratio(one), **where)
    yield from (_row(f"{key}{more}", one[key], **where) for key, more in _BESIDE.items() if one.get(key))
    if between := one.get("between_sites"):
        yield _row("Cochran's Q", {"q": between["q"], "p": between["p"], "degrees": between["sites"] - 1}, **where)
        yield _row("I squared", between["i_squared"], **where)
        mean = _as_ratio(between) if ratio else dict(between, p=None)
        yield _row(f"random effects: {ratio or 'coefficient'}", mean, **where)


def _as_ratio(one: Mapping[str, Any]) -> dict[str, float]:
    return {key: ratio_of(one[key]) for key in ("estimate", "low", "high") if one[key] is not None}


def _numbers(found: Mapping[str, Any], **where: Any) -> Iterator[Row]:
    """Yield a row for each number of a record; settings and lists are none."""
    for key, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _row(key, value, **where)


def _row(statistic: str, found: Any, **where: Any) -> Row:
    record = found if isinstance(found, Mapping) else {"estimate": found}
    value = next(record[key] for key in ("estimate", "ratio", "value", "chi_squared", "f", "q") if key in record)
    kept = {key: record[key] for key in ("error", "low", "high", "p", "degrees") if key in record}
    return {"statistic": statistic, **where, "estimate": value, **kept}
