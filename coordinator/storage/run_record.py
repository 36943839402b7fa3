"""Writes the permanent record of a run.

A record has the plan, the facts and the shared parameters. The files are on disk before the run ends in the audit log,
which has the digest of the facts. They are never written again. The losses are sums over the sites. No record has a
measurement of a single site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.rounds.phases import Over
from coordinator.rounds.run import Run
from coordinator.storage.snapshots import save_arrays
from host.durable import on_disk, replace_file
from host.statistics_page import statistics_page
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.printed_results import RESULTS_CSV, RESULTS_HTML, RESULTS_JSON, results_as_csv, results_as_json


def write_record(directory: Path, run: Run, over: Over, happened: Mapping[str, object]) -> str:
    """Write the permanent record of a run: its plan, its facts and its final parameters. Return the facts' SHA-256.

    Raises:
        UnavailableError: the disk cannot be written. The run ends only after the record is written.
    """
    with on_disk(
        what="The permanent record of the run cannot be written",
        consequence="The coordinator stopped. The run ends only when its record is on disk.",
    ):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(directory / "plan.json", run.plan.canonical)
        path, metadata = directory / "parameters.safetensors", {"run": run.name, "plan_digest": run.plan.digest.hex()}
        # Synced before the record, which states that these parameters exist.
        save_arrays(path, run.views(), metadata, partial=directory / "parameters.safetensors.partial")
        if isinstance(run.plan, StatisticsPlan) and (results := run.analyses()):
            replace_file(directory / RESULTS_CSV, results_as_csv(results).encode())
            content = results_as_json(run.plan, results)
            replace_file(directory / RESULTS_JSON, content)
            replace_file(directory / RESULTS_HTML, statistics_page(json.loads(content)).encode())
        facts = {**_facts(run, over), **happened, "ended": datetime.now(UTC).isoformat(timespec="seconds")}
        record = json.dumps(facts, indent=2, sort_keys=True).encode()
        replace_file(directory / "record.json", record)
    return hashlib.sha256(record).hexdigest()


def _facts(run: Run, over: Over) -> dict[str, Any]:
    return run.facts() | {
        "is_complete": over.is_complete,
        "is_void": over.is_void,
        "reason": over.reason,
        "missing": sorted(over.missing),
        # The status does not have these facts, because it is requested twice a second and they are slow: a hash of 25
        # million numbers takes 0.2 s, and a curve may have a hundred thousand points.
        "validation_curve": run.course.curve,
        "shared_parameters_sha256": sha256_of(run.result()[1]),
    }


def sha256_of(parameters: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 digest of a run's final parameters in hexadecimal, as reports show this digest.

    Args:
        parameters: float32 of shape (numbers,), the values that sites received as the last aggregate.
    """
    return hashlib.sha256(parameters.view(np.uint8).data).hexdigest()
