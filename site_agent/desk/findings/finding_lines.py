"""A site's report in a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from site_agent.desk.findings.report_page import NAMES, Facts, checkpoint_sentence, models_of
from site_agent.trainer.comparison.gain import FEDERATED, headline_metric


def report_lines(facts: Facts) -> Iterator[str]:
    """Yield run, conclusion, warnings, each model's figure, recommendation, model in use and checkpoint."""
    metric = headline_metric(facts["task"])
    yield f"{facts['site']}: run {facts['run']}, method {facts['method']}, {facts['rows']['test']} test rows"
    yield facts["gain"]["sentence"]
    for warning in facts["warnings"]:
        yield f"Warning: {warning}"
    yield f"{metric} on the test rows, with 95% intervals:"
    for name, one in models_of(facts).items():
        yield f"  {NAMES.get(name, name):<34}{_figure(one['metrics'][metric], one['intervals'][metric])}"
    if facts.get("recommendation"):
        yield facts["recommendation"]["sentence"]
    yield facts["in_use"]
    yield checkpoint_sentence(facts[FEDERATED]["checkpoint"], facts["rows"]["validation"])


def _figure(value: Any, interval: Sequence[float] | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" if interval is None else f"{value:.3f}  ({interval[0]:.3f} to {interval[1]:.3f})"
