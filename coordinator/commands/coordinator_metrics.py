"""Reports measurements of the coordinator to monitoring software on this computer, and to nobody else.

Metrics are computed when they are requested. No label has more than a run and a site.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pki.authority import Authority

_PREFIX: Final = "global_layers_coordinator"


class CoordinatorCollector(Collector):
    """Converts the facts of `coordinator status` to Prometheus metrics."""

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        authority: Authority,
        state: Path,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Store the sources from which the metrics are computed.

        Args:
            state: a folder on the disk whose free space is a metric.
            now: returns aware times.
        """
        self._status, self._authority, self._state, self._now = status, authority, state, now
        self._progress: tuple[object, object, float] = (None, None, now().timestamp())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value. A metric whose value is not known is omitted."""
        status, now = self._status(), self._now()
        run, sites = status["run"] or {}, status["sites"]
        disk = os.statvfs(self._state)
        if run:
            info = GaugeMetricFamily(f"{_PREFIX}_run_info", "Always 1.", labels=("run", "phase"))
            info.add_metric((run["run"], run["phase"]), 1)
            yield info
        for name, meaning, value in (
            ("certificate_days", "Days until the certificate ends.", self._days(now)),
            ("sites_listed", "Sites that the plan lists.", len(sites)),
            ("sites_connected", "Sites with an open stream.", sum(site["connected"] for site in sites.values())),
            ("sites_joined", "Sites that take part.", sum(site["joined"] for site in sites.values())),
            ("cannot_write", "1 while the audit log cannot be written.", status.get("trouble") is not None),
            ("runs_over", "Runs that are over.", status["runs_over"]),
            ("runs_waiting", "Plans that wait for their turn.", status["runs_waiting"]),
            ("rounds_made", "Rounds of the run that were closed.", run.get("rounds_made")),
            ("rounds_planned", "Rounds of the run.", run.get("rounds")),
            ("median_round_seconds", "How long a round takes.", run.get("median_round_seconds")),
            ("seconds_since_round", "Since a round closed or this program began.", self._age(run, now)),
            ("disk_free_bytes", "Free bytes where the state lies.", disk.f_bavail * disk.f_frsize),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, float(value))

    def notice(self) -> None:
        """Record the time at which the run last made progress. This function must be called about every second."""
        run = self._status()["run"] or {}
        at = (run.get("run"), run.get("rounds_made"))
        if at != self._progress[:2]:
            self._progress = (*at, self._now().timestamp())

    def _age(self, run: Mapping[str, Any], now: datetime) -> float | None:
        self.notice()
        is_over = bool(run) and run["rounds_made"] >= run["rounds"]
        return None if not run or is_over else now.timestamp() - self._progress[2]

    def _days(self, now: datetime) -> float:
        return (self._authority.coordinator_leaf().not_valid_after_utc - now).total_seconds() / 86400
