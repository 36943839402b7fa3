"""What monitoring found, for the terminal, as a page, and as metrics for Prometheus; drawn from the same facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from site_agent.trainer.comparison.gain import headline_metric
from site_agent.trainer.monitor import MUCH, SOME
from site_agent.trainer.pages.document import Section, figure, figures, page, paragraph, table
from site_agent.trainer.pages.plots import Row, intervals

Facts: TypeAlias = Mapping[str, Any]
_PREFIX: Final = "global_layers_monitor"
_HELP: Final = {
    "rows": "Rows of the table that was monitored.",
    "abstained_rows": "Rows for which the model predicts nothing.",
    "stability_index": "Population stability index of a column against the training rows.",
    "missing_share": "Share of rows in which a column has no value.",
    "missing_share_in_training": "The same among the training rows.",
    "metric": "A metric of the model on the monitored rows, where the outcome is known.",
    "metric_at_the_test": "The same metric on the test rows of the run.",
    "integrated_calibration_index": "Mean distance of the probabilities to what happened, by outcome.",
}


def monitor_lines(facts: Facts) -> Iterator[str]:
    """Rows, warnings, then a line for each column and for the headline metric."""
    yield f"{facts['site']}: run {facts['run']} on {facts['rows']} new rows, {facts['abstained']} abstained"
    for warning in facts["warnings"]:
        yield f"Warning: {warning}"
    for one in facts["columns"]:
        index = "not defined" if one["stability_index"] is None else f"{one['stability_index']:.3f}"
        yield f"  {one['name']:<28} stability index {index:<12} missing {100 * one['missing']:.1f}%"
    quality = facts["quality"]
    if quality is None:
        yield "The outcome is not known for all rows, so discrimination and calibration were not computed."
        return
    metric = headline_metric(facts["task"])
    now, then = _shown(quality["metrics"][metric]), _shown(quality["at_the_test"][metric])
    yield f"{metric} {now} on {quality['rows']} rows, at the test {then}"
    for name, one in quality["calibration"].items():
        before = _shown(quality["calibration_at_the_test"][name]["integrated_calibration_index"])
        yield f"calibration index of {name} {_shown(one['integrated_calibration_index'])}, at the test {before}"


def monitor_page(facts: Facts) -> str:
    """The whole document."""
    opening = [
        *(paragraph(text, "warning") for text in facts["warnings"]),
        *([] if facts["warnings"] else [paragraph(_calm(facts), "lead")]),
        paragraph(
            f"{facts['rows']} new rows against {facts['training_rows']} training rows; the model abstains from"
            f" {facts['abstained']}. Everything on this page was computed at this site and stays here.",
            "soft",
        ),
    ]
    rows = [Row(label=one["name"], value=one["stability_index"]) for one in facts["columns"]]
    label = "population stability index"
    lines = [
        [one["name"], one["stability_index"], one["missing_in_training"], one["missing"], one["outside"]]
        for one in facts["columns"]
    ]
    head = ["column", label, "missing in training", "missing now", "outside of the training rows"]
    inputs = [
        figures(figure(f"Dotted line: {MUCH}", intervals(label, label, rows, reference=MUCH), is_wide=True)),
        table(head, lines),
        paragraph(f"Below {SOME} a column has hardly changed, from {MUCH} on it has. The bins are the training rows'."),
    ]
    sections = [Section(heading="Inputs", parts=inputs), Section(heading="Quality", parts=_quality(facts["quality"]))]
    return page(f"{facts['site']}: monitoring of the run {facts['run']}", opening, sections)


def _calm(facts: Facts) -> str:
    quality = "the outcome was not compared." if facts["quality"] is None else "see Quality."
    return f"No column has drifted much; {quality}"


def monitor_metrics(facts: Facts) -> str:
    """The text format of Prometheus, as a node exporter reads it from a folder; no value of a patient is in it."""
    found: dict[str, list[str]] = {name: [] for name in _HELP}

    def add(name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            known = {"site": facts["site"], "run": facts["run"], **labels}
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in known.items())
            found[name].append(f"{_PREFIX}_{name}{{{shown}}} {value!r}")

    add("rows", facts["rows"])
    add("abstained_rows", facts["abstained"])
    for one in facts["columns"]:
        add("stability_index", one["stability_index"], column=one["name"])
        add("missing_share", one["missing"], column=one["name"])
        add("missing_share_in_training", one["missing_in_training"], column=one["name"])
    quality = facts["quality"]
    if quality is not None:
        for metric, value in quality["metrics"].items():
            add("metric", value, metric=metric)
            add("metric_at_the_test", quality["at_the_test"][metric], metric=metric)
        for name, one in quality["calibration"].items():
            add("integrated_calibration_index", one["integrated_calibration_index"], outcome=name)
    lines = []
    for name, samples in found.items():
        if samples:
            lines += [f"# HELP {_PREFIX}_{name} {_HELP[name]}", f"# TYPE {_PREFIX}_{name} gauge", *samples]
    return "\n".join(lines) + "\n"


def _quality(quality: Facts | None) -> list[str]:
    if quality is None:
        return [paragraph("The outcome is not known for all rows.", "soft")]
    lines = []
    for metric, value in quality["metrics"].items():
        interval = quality["intervals"][metric]
        span = "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
        lines.append([metric, value, span, quality["at_the_test"][metric]])
    parts = [table(["metric", "now", "95% interval", "at the test"], lines)]
    if quality["calibration"]:
        keys = ["in_the_large", "slope", "integrated_calibration_index"]
        measured = [
            [f"{name}, {when}", *(one[key] for key in keys)]
            for when, side in (("now", "calibration"), ("at the test", "calibration_at_the_test"))
            for name, one in quality[side].items()
        ]
        parts.append(table(["calibration", "in the large", "slope", "integrated index (ICI)"], measured))
    return parts


def _shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3f}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
