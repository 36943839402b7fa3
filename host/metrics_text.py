"""Writes figures in the text format of Prometheus, whose node exporter reads such a file."""

from __future__ import annotations

from collections.abc import Mapping


def metrics_text(prefix: str, labels: Mapping[str, str], figures: Mapping[str, float | None]) -> str:
    """Return one line for the labels, and one for each figure that is known. `labels` have only names and versions."""
    named = ",".join(f'{key}="{value}"' for key, value in labels.items())
    lines = [f"{prefix}_{name} {float(value)}" for name, value in figures.items() if value is not None]
    return "\n".join((f"{prefix}_info{{{named}}} 1", *lines, ""))
