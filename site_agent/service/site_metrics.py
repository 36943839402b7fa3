"""Converts the facts of `site-agent status` to metrics. No label names a column, a file or a patient."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from host.metrics_text import metrics_text


def site_metrics(facts: Mapping[str, Any], state: Path) -> str:  # Any: every type that JSON has
    """Return the metrics as text. Free space is measured on the disk with the folder `state`."""
    disk, at = os.statvfs(state), facts["contributed_at"]
    figures = {
        "connected": facts["connected_since"] is not None,
        "certificate_days": facts["certificate_days_left"],
        "round": facts["round"],
        "rounds_planned": facts["rounds"],
        "last_contribution_timestamp_seconds": datetime.fromisoformat(at).timestamp() if at else None,
        "audit_records": facts["audit"]["records"],
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "left_bytes_total": facts["left"]["bytes"],
        "contributions_total": facts["left"]["contributions"],
    }
    return metrics_text("global_layers_site", {name: facts[name] for name in ("site", "version", "phase")}, figures)
