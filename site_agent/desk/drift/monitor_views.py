"""Writes the results of monitoring as lines for the terminal, as an HTML page, and as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from host.printed_page import Section, figure, figures, page, paragraph, table
from site_agent.desk.comparison.evaluation import headline_metric
from site_agent.desk.drift.column_drift import MUCH, SOME
from site_agent.desk.findings.clinical_parts import figure_with_interval, verdict
from site_agent.desk.findings.drawings import Facts
from site_agent.plots import Row, intervals

_PREFIX: Final = "global_layers_monitor"
_READING: Final = (
    f"The population stability index shows how much a column has changed. If the index is below {SOME}, the column has "
    f"hardly changed. If the index is {MUCH} or more, the column has changed much. Two tables from the same hospital "
    "differ by chance, and small tables differ more. Therefore this page warns about a column only if its index is "
    "above a limit. Even if nothing has changed, about 1 of 100 tables has a column above this limit by chance. To "
    "compute the index, the values of new rows are put into the same groups as the values of training rows. Several "
    "rows of one patient are similar, so they count as fewer rows.",
    "Every percentage of the table is a percentage of all new rows. Missing: the cell has no value. Outside of the "
    "training rows: the value is below the lowest or above the highest value of the training rows (both rounded). Not "
    "allowed by the contract: the value is a code that the contract does not declare, a number outside the contract's "
    "range, a date in the future, or text instead of a number. Values that are not allowed are counted only in the "
    "last column of the table.",
)
_INTERVALS: Final = (
    "All intervals are 95% intervals, and they treat all rows of a patient as one unit. Even if nothing has changed, 1 "
    "of 20 intervals of a difference excludes zero by chance. Therefore this page writes 'worse' only if the evidence "
    "is stronger than that. Even if nothing has changed, about 1 of 100 tables shows 'worse' by chance."
)
_HELP: Final = {
    "rows": "Number of rows in the table of new patients that was monitored.",
    "abstained_rows": "Number of rows for which the model gave no prediction.",
    "off_contract_rows": "Number of rows with a value that the contract does not allow.",
    "stability_index": "Population stability index: how much a column of the new rows differs from the training rows.",
    "stability_index_by_chance": "Limit of the stability index: without a change, 1 of 100 tables is above it.",
    "missing_share": "Fraction of the new rows in which a column has no value.",
    "missing_share_in_training": "Fraction of the training rows in which a column has no value.",
    "outside_training_share": "Fraction of the new rows whose value is outside the range of the training rows.",
    "outside_contract_share": "Fraction of the new rows with a value that the contract does not allow.",
    "metric": "A metric of the model, such as AUROC, on the new rows with a known outcome.",
    "metric_at_the_test": "The same metric of the model on the test rows of the run.",
    "metric_is_worse": "1 if the metric on the new rows is worse than on the test rows by more than chance, otherwise "
    "0.",
    "expected_mean": "Mean of the model's predictions for an outcome on the new rows.",
    "happened_mean": "Observed mean of an outcome on the new rows.",
    "integrated_calibration_index": "Mean distance between the predicted probabilities and the observed frequencies of "
    "an outcome.",
}


def monitor_lines(facts: Facts) -> Iterator[str]:
    """Yield the results of monitoring as lines for the terminal."""
    yield f"{facts['site']}: {facts['model']} on {facts['rows']} new rows"
    not_allowed = f"{facts['off_contract']} of them with a value that the contract does not allow"
    yield f"{facts['abstained']} row{'' if facts['abstained'] == 1 else 's'} without a prediction, {not_allowed}"
    yield from facts["notices"]
    for warning in facts["warnings"]:
        yield f"Warning: {warning}"
    for one in facts["columns"]:
        index = "not defined" if one["stability_index"] is None else f"{one['stability_index']:.3f}"
        chance = "" if one["by_chance"] is None else f"(by chance up to {one['by_chance']:.3f})"
        shares = ", ".join(
            f"{words} {100 * one[key]:.1f}%"
            for words, key in (("missing", "missing"), ("outside", "outside"), ("not allowed", "outside_contract"))
        )
        yield f"  {one['name']:<28} stability index {index:<11} {chance:<24} {shares}"
    if facts.get("first_score"):
        yield _first_score(facts)
        return
    quality = facts["quality"]
    if quality is None:
        yield f"{_why_no_quality(facts)} Therefore the quality of the model on these rows was not computed."
        return
    metric = headline_metric(facts["task"])
    now, then = _shown(quality["metrics"][metric]), _shown(quality["at_the_test"][metric])
    found = quality["differences"][metric]
    span = "" if found is None or found["interval"] is None else _span(found["interval"])
    yield f"{metric} {now} on {quality['rows']} rows, at the test {then}{span}"
    for name, one in quality["expected"].items():
        yield (
            f"mean of {name}: predicted {one['expected']:.3g}, observed {one['happened']:.3g}"
            f" (at the test {one['expected_at_the_test']:.3g} and {one['happened_at_the_test']:.3g})"
        )
    for name, one in quality["calibration"].items():
        before = _shown(quality["calibration_at_the_test"][name]["integrated_calibration_index"])
        yield f"calibration index of {name} {_shown(one['integrated_calibration_index'])}, at the test {before}"


def _first_score(facts: Facts) -> str:
    metric, score = headline_metric(facts["task"]), facts["first_score"]
    ends = score["intervals"][metric]
    span = "" if ends is None else f" (95% interval {ends[0]:.3f} to {ends[1]:.3f})"
    return (
        f"{metric} {_shown(score['metrics'][metric])}{span} on {score['rows']} rows with a known outcome. This model "
        "from other hospitals was not tested here before."
    )


def monitor_page(facts: Facts) -> str:
    """Return the results of monitoring as an HTML page."""
    compared = "The section Quality shows the metrics for the known outcomes."
    if facts["quality"] is None:
        compared = "The predictions were not compared with the outcome."
    opening = [
        *(paragraph(text, "warning") for text in facts["warnings"]),
        *(
            []
            if facts["warnings"]
            else [paragraph(f"No column of the new rows differs clearly from the training rows. {compared}", "lead")]
        ),
        paragraph(
            f"{facts['rows']} new rows are compared with {facts['training_rows']} training rows. The model gives no "
            f"prediction for {facts['abstained']} of the new rows. Everything on this page was computed at this site "
            "and stays at this site.",
            "soft",
        ),
        *([paragraph(_first_score(facts))] if facts.get("first_score") else []),
    ]
    label = "population stability index"
    rows = []
    for one in facts["columns"]:
        row, chance = Row(label=one["name"], value=one["stability_index"]), one["by_chance"]
        if chance is not None:
            row = replace(row, interval=(0.0, chance), words=f"by chance up to {chance:.3f}")
        rows.append(row)
    drawing = intervals(f"{label} of each column, and how large it can be by chance alone", label, rows, reference=MUCH)
    keys = ["stability_index", "by_chance", "missing_in_training", "missing", "outside", "outside_contract"]
    lines = [[one["name"], *(one[key] for key in keys)] for one in facts["columns"]]
    head = ["column", label, "by chance up to", "missing in training", "missing now", "outside of the training rows"]
    caption = f"Each bar shows how large the index can be by chance alone. The dotted line is at {MUCH}"
    inputs = [
        figures(figure(caption, drawing, is_wide=True)),
        table("Inputs", [*head, "not allowed by the contract"], lines),
        *(paragraph(text) for text in _READING),
    ]
    sections = [Section(heading="Inputs", parts=inputs), Section(heading="Quality", parts=_quality(facts))]
    return page(f"{facts['site']}: monitoring of the run {facts['run']}", opening, sections)


def monitor_metrics(facts: Facts) -> str:
    """Return the results of monitoring in Prometheus text format. They contain no value of a single patient."""
    found: dict[str, list[str]] = {name: [] for name in _HELP}

    def add(name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            known = {"site": facts["site"], "run": facts["run"], **labels}
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in known.items())
            found[name].append(f"{_PREFIX}_{name}{{{shown}}} {value!r}")

    add("rows", facts["rows"])
    add("abstained_rows", facts["abstained"])
    add("off_contract_rows", facts["off_contract"])
    for one in facts["columns"]:
        add("stability_index", one["stability_index"], column=one["name"])
        add("stability_index_by_chance", one["by_chance"], column=one["name"])
        add("outside_training_share", one["outside"], column=one["name"])
        add("outside_contract_share", one["outside_contract"], column=one["name"])
        add("missing_share", one["missing"], column=one["name"])
        add("missing_share_in_training", one["missing_in_training"], column=one["name"])
    quality = facts["quality"]
    if quality is not None:
        for metric, value in quality["metrics"].items():
            add("metric", value, metric=metric)
            add("metric_at_the_test", quality["at_the_test"][metric], metric=metric)
            is_worse = quality["is_worse"][metric]
            add("metric_is_worse", None if is_worse is None else int(is_worse), metric=metric)
        for name, one in quality["expected"].items():
            add("expected_mean", one["expected"], outcome=name)
            add("happened_mean", one["happened"], outcome=name)
        for name, one in quality["calibration"].items():
            add("integrated_calibration_index", one["integrated_calibration_index"], outcome=name)
    lines = []
    for name, samples in found.items():
        if samples:
            lines += [f"# HELP {_PREFIX}_{name} {_HELP[name]}", f"# TYPE {_PREFIX}_{name} gauge", *samples]
    return "\n".join(lines) + "\n"


def _why_no_quality(facts: Facts) -> str:
    if facts["abstained"] == facts["rows"]:
        return "The model predicted no row of this table."
    if facts["known_rows"]:
        return "All rows with a prediction are in the hospital's own table."
    return "The outcome is not known for all rows."


def _quality(facts: Facts) -> list[str]:
    quality = facts["quality"]
    if quality is None:
        return [paragraph(_why_no_quality(facts), "soft")]
    lines = []
    for metric, value in quality["metrics"].items():
        found = quality["differences"][metric]
        spans = [quality["intervals"][metric], None if found is None else found["interval"]]
        shown = ["" if span is None else f"{span[0]:.3f} to {span[1]:.3f}" for span in spans]
        difference = None if found is None else found["difference"]
        words = _verdict(metric, found, quality["is_worse"][metric])
        lines.append([metric, value, shown[0], quality["at_the_test"][metric], difference, shown[1], words])
    head = ["metric", "now", "95% interval", "at the test", "difference", "its 95% interval", "verdict"]
    parts = [table("Quality", head, lines), *([_expected(quality["expected"])] if quality["expected"] else [])]
    if quality["calibration"]:
        keys = ["in_the_large", "slope", "integrated_calibration_index"]
        measured = []
        for when, end in (("now", ""), ("at the test", "_at_the_test")):
            for name, one in quality[f"calibration{end}"].items():
                spans = quality[f"calibration_intervals{end}"][name]
                cells = (figure_with_interval(one[key], spans.get(key)) for key in keys)
                measured.append([f"{name}, {when}", *cells])
        parts.append(table("Calibration", ["calibration", "in the large", "slope", "integrated index (ICI)"], measured))
    return [*parts, paragraph(_INTERVALS, "soft")]


def _verdict(metric: str, found: Facts | None, is_worse: bool | None) -> str:
    """Return whether a metric is clearly worse or clearly better. Clearly means that its 95% interval excludes zero."""
    if found is None or is_worse is None:
        return "not defined"
    if is_worse:
        return "worse"
    is_better = verdict(metric, found["difference"], found["interval"]) == "better"
    return "better" if is_better else "no clear difference"


def _expected(expected: Facts) -> str:
    head = ["mean of", "predicted now", "observed now", "predicted at the test", "observed at the test", "change"]
    keys = ["expected", "happened", "expected_at_the_test", "happened_at_the_test"]
    lines = [
        [name, *(one[key] for key in keys), f"{one['interval'][0]:+.3f} to {one['interval'][1]:+.3f}"]
        for name, one in expected.items()
    ]
    return table("Predicted and observed", head, lines)


def _span(interval: list[float]) -> str:
    return f" (95% interval of the difference {interval[0]:+.3f} to {interval[1]:+.3f})"


def _shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
