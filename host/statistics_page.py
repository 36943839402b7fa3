"""Builds the HTML page of a statistics plan's results: Table 1, forest plots, coefficients, curves and digests.

The coordinator and every hospital make it from the same results. A hospital adds its own estimates, which are on its
own page only. Without matplotlib the page has all numbers, and no plots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from math import exp
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from host.printed_page import Cell, Section, figure, page, pairs, paragraph, table
from protos.errors import ConfigurationError
from protos.statistics.group_curves import MONTH
from protos.statistics.printed_results import RESULTS_JSON, ends_early, named, spoken

Facts = Mapping[str, Any]  # JSON, whose keys are checked by tests
_PAPERS: Final = {"binomial": "logistic regression", "gaussian": "linear regression", "poisson": "Poisson regression"}
_INDENT: Final = "\u2003"  # a space that HTML keeps


def find_results(runs: Path, run: str | None) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the content of a run's results, or of the newest. Raises ConfigurationError without any."""
    found = sorted(runs.glob(f"*/{RESULTS_JSON}"), key=lambda file: file.stat().st_mtime)
    if not (chosen := [file for file in found if run in (None, file.parent.name)]):
        raise ConfigurationError(
            what="There are no results of a statistics plan here" + (f" for the run {run}." if run else "."),
            consequence="Nothing was changed.",
            remedy="Results are written when a run ends. `status` shows the state of a run.",
        )
    return chosen[-1].parent, json.loads(chosen[-1].read_text())


def statistics_page(results: Facts, own: Mapping[str, Facts] | None = None, told: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        results: with the keys study, version, plan_digest, run, sites and analyses.
        own: by the name of an analysis what this hospital alone has: by term an estimate with the limits of its
            interval, by group a curve, or a Table 1. None at the coordinator.
        told: sentences for this hospital's own people.
    """
    mine, drawings = own or {}, _drawings()
    sections = [
        Section(heading=one["name"], parts=list(_analysis(one, mine.get(one["name"], {}), drawings)))
        for one in results["analyses"]
    ]
    sections.append(Section(heading="For the methods section", parts=[paragraph(text) for text in _methods(results)]))
    sections.append(Section(heading="Versions and digests", parts=[_versions(results)]))
    words = f"{len(results['sites'])} hospitals together. Each sent masked sums, and nobody saw those of one hospital."
    opening = [paragraph(f"These numbers are of {words}")]
    lacking = "a value in a column of the models, curves or groups, an exposure above 0, or an outcome"
    counts = sorted({one.get("rows that take no part", 0) for one in results["analyses"]} - {0})  # usually one
    opening += [paragraph(f"{count:,} further rows take no part: they lack {lacking}.", "soft") for count in counts]
    if mine:
        words = "This page also has estimates of this hospital alone. No other hospital and no coordinator has them."
        opening.append(paragraph(words, "lead"))
    opening += [paragraph(sentence, "lead") for sentence in told]
    if drawings is None:
        opening.append(paragraph("matplotlib is not installed here, so this page has no plots.", "soft"))
    return page(f"{results['study']}, version {results['version']}", opening, sections)


def _drawings() -> ModuleType | None:
    try:
        from host import statistics_drawings
    except ModuleNotFoundError:
        return None
    return statistics_drawings


def _analysis(one: Facts, own: Facts, drawings: ModuleType | None) -> Iterator[str]:
    if "refused" in one:
        yield paragraph(f"This analysis has no result. {one['refused']}", "warning")
        return
    match one["kind"]:
        case "table_one":
            yield from _table_one(one, own)
        case "curve":
            yield from _curve(one, own, drawings)
        case _:
            yield from _model(one, own, drawings)


def _table_one(one: Facts, own: Facts) -> Iterator[str]:
    yield _characteristics(str(one["name"]), "Characteristic", one)
    if own:
        yield _characteristics(f"{one['name']}: this hospital alone", "This hospital alone", own)
    for name, records in one["columns"].items():
        if voids := [record["void"] for record in records.values() if "void" in record]:
            yield paragraph(f"{name}: {voids[0]}.", "soft")
    if "noise" in one:
        words = f"Noise with a standard deviation of {_short(one['noise'])} rows in each count protects each patient."
        yield paragraph(words, "soft")
    if one.get("differences"):
        yield paragraph("SMD: the largest standardised mean difference between two groups.", "soft")


def _characteristics(name: str, title: str, one: Facts) -> str:
    differences = {name: "–" if value is None else f"{value:.2f}" for name, value in one.get("differences", {}).items()}
    head = [title, *(spoken(group) if group != "all" else "All" for group in one["groups"])]
    rows = [row for column in one["columns"] for row in _rows_of(one, column)]
    if differences:
        head.append("SMD")
        rows = [[*row, "" if str(row[0]).startswith(_INDENT) else differences[column]] for column, *row in rows]
    else:
        rows = [row[1:] for row in rows]
    return table(name, head, rows, style="figures")


def _rows_of(one: Facts, name: str) -> Iterator[list[Any]]:
    """Yield the rows of a column, each with the column's name before its cells."""
    unit, by_group = one.get("units", {}).get(name), one["columns"][name]
    records = [by_group[group] for group in one["groups"]]
    if name in one.get("units", ()) or any("mean" in record for record in records):
        what = f"{name}, {unit}" if unit else name
        yield [name, f"{what}: mean (SD)", *map(_mean, records)]
        if widths := [record["resolution"] for record in records if record.get("quartiles")]:
            label = f"{_INDENT}median [quartiles] ± {_short(min(widths) / 2)}"
            label += ", or exact for whole numbers" * any(record.get("exact if whole") for record in records)
            yield [name, label, *(_quartiles(record, min(widths)) for record in records)]
    else:
        yield [name, f"{name}: n (%)", *("" for _ in records)]
        for code in next((list(record["codes"]) for record in records if "codes" in record), []):
            yield [name, f"{_INDENT}{code}", *(_share(record, code) for record in records)]
    if any(record.get("missing") for record in records):
        yield [name, f"{_INDENT}missing", *map(_missing, records)]


def _mean(record: Facts) -> str:
    if record.get("mean") is None:
        return "–"
    return f"{_short(record['mean'])} ({_short(record['deviation'])})"


def _quartiles(record: Facts, width: float) -> str:
    if not record.get("quartiles"):
        return "–"
    low, middle, high = map(_short, record["quartiles"])
    wider = "" if record["resolution"] <= width else f" ± {_short(record['resolution'] / 2)}"
    return f"{middle} [{low}, {high}]{wider}"


def _share(record: Facts, code: str) -> str:
    cell = record.get("codes", {}).get(code)
    return "–" if cell is None or cell["share"] is None else f"{round(cell['rows']):,} ({100 * cell['share']:.1f})"


def _missing(record: Facts) -> str:
    return f"{round(record['missing']):,}" if "missing" in record else "–"


def _model(one: Facts, own: Facts, drawings: ModuleType | None) -> Iterator[str]:
    ratio, terms = one["ratio"], named(one["terms"])
    yield paragraph(" ".join(_patients(one)))
    single = [term for term in terms if term.get("scale") != ""]  # a column of a spline alone says nothing
    shown = [_on_scale(term, is_ratio=ratio is not None) for term in single if term["term"] != "intercept"]
    mine = {name: _on_scale({"term": name, **found}, is_ratio=ratio is not None) for name, found in own.items()}
    if shown and not one["ridge"] and drawings is not None:
        words = f"{(ratio or 'difference').capitalize()} of each term with its 95% interval"
        drawn = drawings.forest(f"Forest plot: {words}", ratio or "difference", shown, mine, is_ratio=ratio is not None)
        yield figure(words, drawn)
    is_timed = any(term.get("proportional") for term in terms)
    head = ["Term", f"{(ratio or 'estimate').capitalize()} (95% interval)", "p", "Coefficient", "Standard error"]
    head += ["Unit of the ridge"] if one["ridge"] else []
    head += ["Proportional hazards: p (chi-squared)"] if is_timed else []
    head += ["This hospital alone"] if mine else []
    rows: list[list[Cell]] = []
    for term in terms:
        of = _on_scale(term, is_ratio=ratio is not None and term["term"] != "intercept")
        number = "–" if term["error"] is None else f"{term['error']:.4g}"
        cells: list[Cell] = [
            term["label"],
            of["text"] if term in single else "–",
            _p(term["p"]),
            f"{term['estimate']:.4g}",
            number,
        ]
        cells += [_short(term["ridge_unit"]) if "ridge_unit" in term else "–"] if one["ridge"] else []
        cells += [f"{_p(term['proportional']['p'])} ({term['proportional']['chi_squared']:.2f})"] if is_timed else []
        cells += [mine[term["term"]]["text"] if term["term"] in mine and term in single else "–"] if mine else []
        rows.append(cells)
    yield table(f"{one['name']}: coefficients", head, rows, style="figures")
    if any(" × " in term["label"] for term in terms):
        words = "Beside a product, row and joint test of one of its columns are for 0, or the reference, of the others."
        yield paragraph(words, "soft")
    yield from _shapes(one)
    yield from _differences(one)
    if one["ridge"]:
        words = f"A penalty (ridge {one['ridge']:g}) shrinks these estimates. So they have no interval and no p value."
        yield paragraph(words, "soft")


def _differences(one: Facts) -> Iterator[str]:
    """Yield how much the estimates of the hospitals differ, if that was computed."""
    rows: list[list[Cell]] = []
    for term in one["terms"]:
        if found := term.get("between_sites"):
            mean = _on_scale(term | found, is_ratio=one["ratio"] is not None)["text"]
            name, share = spoken(term["term"], one["terms"]), f"{100 * found['i_squared']:.0f}%"
            rows.append([name, share, f"{found['q']:.2f} ({found['sites'] - 1} df)", _p(found["p"]), mean])
    head = ["Differences between hospitals", "I²", "Cochran's Q", "p", "Random-effects mean (95% interval)"]
    if rows:
        yield table("Differences between hospitals", head, rows, style="figures")
    elif not one["ridge"]:
        yield paragraph(
            "Q and I² are those of a plan's first model, if two hospitals more than the fewest have own estimates.",
            "soft",
        )


def _shapes(one: Facts) -> Iterator[str]:
    """Yield the joint tests of terms with several columns, and what each spline says at its knots."""
    scale = one["ratio"] or "difference"
    if one["tests"]:
        kind = "f" if "f" in one["tests"][0] else "chi_squared"
        tests: list[list[Cell]] = []
        for test in one["tests"]:
            degrees = f"{test['degrees']}" + (f" and {test['residual_degrees']:,.0f}" if kind == "f" else "")
            tests.append([spoken(test["term"], one["terms"]), f"{test[kind]:.2f}", degrees, _p(test["p"])])
        head = ["Joint test of", "F" if kind == "f" else "Wald's chi-squared", "Degrees of freedom", "p"]
        yield table("Joint tests", head, tests, style="figures")
    for spline in one["splines"]:
        rows: list[list[Cell]] = []
        for at in spline["at"]:
            text = _on_scale({"term": "", **at}, is_ratio=one["ratio"] is not None)["text"]
            rows.append([f"{at['value']:g}", "reference" if at["value"] == spline["reference"] else text])
        head = [f"{spline['concept']}, at a knot of its spline", f"{scale.capitalize()} (95% interval)"]
        yield table(f"Spline of {spline['concept']}", head, rows, style="figures")


def _patients(one: Facts) -> Iterator[str]:
    """Yield who took part in a model, and who did not."""
    sites, recorded = one["sites"], one["sites that record it"]
    event = spoken(one.get("event") or one["outcome"])
    events = f"{one['events']:,} of them with {event}, " if one["events"] is not None else ""
    if one.get("family") == "poisson":
        exposed = f" in {_short(one['total exposure'])} {one['unit']}" if one["exposure"] else ""
        events = f"{one['events']:,} {event}{exposed}, "
    of, what = (f"of {one['patients']:,} patients ", "rows") if one.get("patients") else ("", "patients")
    yield f"{one['rows']:,} {what}, {events}{of}of {sites} hospitals."
    if sites < recorded:
        yield f"{recorded - sites} of {recorded} hospitals have too few patients or events to take part."


def _on_scale(term: Facts, *, is_ratio: bool) -> dict[str, Any]:
    """Return an estimate as a ratio or as it is, with its limits if it has any, and as text."""
    numbers = [term[key] for key in ("estimate", "low", "high") if term[key] is not None]
    value, *ends = (exp(min(50.0, one)) if is_ratio else one for one in numbers)
    if not ends:
        return {**term, "value": value, "text": _short(value)}
    low, high = ends
    return {**term, "value": value, "low": low, "high": high, "text": _with_ends(value, low, high)}


def _curve(one: Facts, own: Facts, drawings: ModuleType | None) -> Iterator[str]:
    unit, event, is_monthly = one["unit"] or "the unit of the time", spoken(one["event"]), one["resolution"] == MONTH
    groups = [group | {"group": spoken(group["group"])} for group in one["groups"]]
    axis = "months" if is_monthly else unit
    label = axis if one["time"] == unit else f"{one['time']}, {axis}"
    if drawings is not None:
        words = f"Without {event}, by Kaplan and Meier, with 95% intervals"
        yield figure(words, drawings.survival(words, label, groups, is_monthly=is_monthly))
    until = groups[0]["restricted_mean"]["until"]
    head = [
        "Group",
        "Patients",
        "Events on the curve",
        "Hospitals",
        f"Median, {unit}",
        f"Mean up to {_short(until)} {unit}",
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        counts = (f"{group[key]:,}" for key in ("patients", "events", "sites"))
        ends = f"not reached by {_short(group['times'][-1])} {unit}" if group["times"] else "–"
        rows.append([group["group"], *counts, _estimate(group["median"], ends), _estimate(group["restricted_mean"])])
    for name, found in own.items():
        counts = (f"{found[key]:,}" for key in ("patients", "events", "sites"))
        rows.append([f"{spoken(name)}: this hospital alone", *counts, _estimate(found["median"]), "–"])
    yield table(f"{one['name']}: medians", head, rows, style="figures")
    notes = [f"Times, and so medians and means, are rounded up by up to {_short(one['resolution'])} {unit}."]
    notes.append(f"One minus a curve is a risk only if no other event, such as death, comes before {event}.")
    if one["log_rank"]:
        test = _chi_squared(one["log_rank"])
        notes.append(f"Log-rank test, also of events after the curves, stratified by hospital: {test}.")
    notes += [ends_early(one)] if ends_early(one) else []
    if absent := ", ".join(map(spoken, one["not shown"])):
        notes.append(f"Not shown, because too few hospitals or patients have it: {absent}.")
    yield from (paragraph(note, "soft") for note in notes)


def _methods(results: Facts) -> Iterator[str]:
    yield (
        f"Data of {len(results['sites'])} hospitals were analysed together without leaving them (global-layers). Each "
        "hospital sent sums of its patients, masked so that only the total over the hospitals could be read. The "
        "results equal those of one pooled table, to rounding."
    )
    for one in results["analyses"]:
        if "refused" not in one and (words := _method(one)):
            yield f"{one['name']}: {words}"


def _method(one: Facts) -> str:
    match one["kind"]:
        case "cox":
            penalty = f", with a ridge penalty of {one['ridge']:g}" if one["ridge"] else ""
            words = (
                f"a Cox model stratified by hospital, with Efron's method for ties{penalty}."
                f" Events listed as competing are censored. Hazard ratios have 95% Wald intervals.{_beside(one)}"
            )
            if test := one["proportional"]:
                words += " Proportional hazards: score test of each column times log(time), "
                words += f"all columns {_chi_squared(test)}."
            return words
        case "curve":
            compared = " Groups were compared by the log-rank test, stratified by hospital." if one["log_rank"] else ""
            return f"survival by Kaplan and Meier with Greenwood's variance and log-log intervals.{compared}"
        case "regression":
            own = "an intercept for each hospital" if one["intercept"] == "site" else "one common intercept"
            penalty = f" and a ridge penalty of {one['ridge']:g}" if one["ridge"] else ""
            robust = " Standard errors are robust (sandwich, by patient)." if one["robust"] else ""
            firth = " and Firth's correction" if one["firth"] else ""
            whose = "Student" if one["family"] == "gaussian" else "Wald"
            ends = "" if one["ridge"] else f" Intervals are {whose}'s at 95%."
            return f"{_PAPERS[one['family']]} with {own}{penalty}{firth}.{ends}{robust}{_beside(one)}"
        case _:
            return ""


def _beside(one: Facts) -> str:
    knots = {spline["concept"]: ", ".join(f"{at['value']:g}" for at in spline["at"]) for spline in one["splines"]}
    named = "; ".join(f"{name} with knots at {values}" for name, values in knots.items())
    words = f" Restricted cubic splines: {named}." if named else ""
    if any(term.get("between_sites") for term in one["terms"]):
        words += " Differences between hospitals: Cochran's Q, I², and random effects by DerSimonian and Laird."
    return words


def _versions(results: Facts) -> str:
    return pairs(
        "Versions and digests",
        [
            ("global-layers", version("global-layers")),
            ("Plan", f"{results['study']}, version {results['version']}, digest {results['plan_digest']}"),
            ("Run", str(results["run"])),
            ("Hospitals", ", ".join(results["sites"])),
        ],
    )


def _estimate(found: Facts, none: str = "not reached") -> str:
    if found["value"] is None and found["low"] is None:
        return none
    ends = (_short(found[key]) if found[key] is not None else "not reached" for key in ("low", "high"))
    return f"{none if found['value'] is None else _short(found['value'])} ({' to '.join(ends)})"


def _p(value: float | None, *, equals: bool = False) -> str:
    if value is None:
        return "–"
    shown = "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    return f"= {shown}" if equals and value >= 0.001 else shown


def _chi_squared(test: Facts) -> str:
    freedom = f"{test['degrees']} degree{'s' if test['degrees'] > 1 else ''} of freedom"
    return f"chi-squared {test['chi_squared']:.2f} with {freedom}, p {_p(test['p'], equals=True)}"


def _short(value: float) -> str:
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _with_ends(value: float, low: float, high: float) -> str:
    """Return a number with its interval. A narrow interval near 1 has a third digit, which two would hide."""
    is_narrow = 0.0 < low < 10.0 and high / low < 1.2
    shown, *ends = (f"{one:.3f}" if is_narrow else _short(one) for one in (value, low, high))
    return f"{shown} ({' to '.join(ends)})"
