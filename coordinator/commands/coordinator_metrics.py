"""Converts the facts of `coordinator status` to metrics. No label has more than a run and a phase."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from host.metrics_text import metrics_text


def coordinator_metrics(status: Mapping[str, Any], state: Path) -> str:  # Any: every type that JSON has
    """Return the metrics as text. Free space is measured on the disk with the folder `state`."""
    run, sites, disk = status["run"] or {}, status["sites"].values(), os.statvfs(state)
    figures = {
        "certificate_days": status["coordinator_certificate_days"],
        "sites_listed": len(sites),
        "sites_connected": sum(site["connected"] for site in sites),
        "sites_joined": sum(site["joined"] for site in sites),
        "cannot_write": status.get("trouble") is not None,
        "runs_over": status["runs_over"],
        "runs_waiting": status["runs_waiting"],
        "rounds_made": run.get("rounds_made"),
        "rounds_planned": run.get("rounds"),
        "median_round_seconds": run.get("median_round_seconds"),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
    }
    return metrics_text("global_layers_coordinator", {name: run.get(name, "") for name in ("run", "phase")}, figures)
