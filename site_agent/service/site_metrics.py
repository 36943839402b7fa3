"""Reports measurements of a site to monitoring software on the same computer.

Metrics are computed when they are requested. No label names a column, a file or a patient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX: Final = "global_layers_site"


class SiteCollector(Collector):
    """Converts the facts of `site-agent status` to Prometheus metrics."""

    def __init__(self, facts: Callable[[], Mapping[str, Any]], state: Path) -> None:
        """Create the collector.

        `facts` returns the facts of Told. Free space is measured on the disk with the folder `state`.
        """
        self._facts, self._state = facts, state

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value. A metric whose value is not known is omitted."""
        facts = self._facts()
        info = GaugeMetricFamily(f"{_PREFIX}_info", "Always 1.", labels=("site", "version", "phase"))
        info.add_metric((facts["site"], facts["version"], facts["phase"]), 1)
        yield info
        disk = os.statvfs(self._state)
        for name, meaning, value in (
            ("connected", "1 while a stream to the coordinator is open.", facts["connected_since"] is not None),
            ("trainer_gone", "1 while the trainer has ended.", facts["trainer"] == "gone"),
            ("certificate_days", "Days until the certificate ends.", facts["certificate_days_left"]),
            ("round", "The round under way. The first one is 1.", facts["round"]),
            ("rounds_planned", "Rounds of the run.", facts["rounds"]),
            ("last_contribution_timestamp_seconds", "When a contribution left last.", _seconds(facts)),
            ("audit_records", "Records in the audit log.", facts["audit"]["records"]),
            ("disk_free_bytes", "Free bytes where the state lies.", disk.f_bavail * disk.f_frsize),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, float(value))
        left = facts["left"]
        yield CounterMetricFamily(f"{_PREFIX}_left_bytes", "Bytes of contributions that have left.", left["bytes"])
        yield CounterMetricFamily(f"{_PREFIX}_contributions", "Contributions that left.", left["contributions"])


def _seconds(facts: Mapping[str, Any]) -> float | None:
    at = facts["contributed_at"]
    return datetime.fromisoformat(at).timestamp() if at else None
