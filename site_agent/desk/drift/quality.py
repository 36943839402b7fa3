"""Compares a model's quality on new patients with its quality on the test rows, and reports a clear loss of quality.

The samples are resampled separately because their patients differ. A resample draws whole patients. "Worse" is reported
only if chance shows such a difference, in any metric, in less than 1 of 100 tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from site_agent.desk.comparison.bootstrap_intervals import Compared, compare, is_lower_better
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.drift.column_drift import LEVEL
from site_agent.trainer.disk import Json

_SEED: Final = 20_261_122
_RESAMPLES: Final = 1_000


def quality_of(new: HeldOutRows, scores: Scores, test: HeldOutRows, then: Scores) -> dict[str, Json]:
    """Return the model's metrics on new rows and on the test rows, with intervals of the differences.

    `scores` and `then` are the model's for both.
    """
    now = compare(new, {FEDERATED: scores}, _SEED, _RESAMPLES)
    before = compare(test, {FEDERATED: then}, _SEED + 1, _RESAMPLES)
    found = {metric: now.difference(FEDERATED, FEDERATED, metric, before) for metric in now.metrics[FEDERATED]}
    return {
        "rows": len(new),
        "patients": None if new.patients is None else len(np.unique(new.patients)),
        "metrics": dict(now.metrics[FEDERATED]),
        "intervals": now.intervals(FEDERATED),
        "at_the_test": dict(before.metrics[FEDERATED]),
        "differences": {metric: None if one is None else one.to_json() for metric, one in found.items()},
        "is_worse": {metric: _is_worse(metric, now, before, len(found)) for metric in found},
        "means": _means(new, scores),
        "means_at_the_test": _means(test, then),
    }


def _is_worse(metric: str, now: Compared, before: Compared, metrics: int) -> bool | None:
    """Return whether a metric became worse by more than chance, or None if the metric is undefined.

    The difference is treated as normal, with the standard deviations of the resamples.
    """
    value, then = now.metrics[FEDERATED][metric], before.metrics[FEDERATED][metric]
    if value is None or then is None:
        return None
    spread = math.hypot(*(float(np.nanstd(compared.resampled[FEDERATED][metric])) for compared in (now, before)))
    worse_by = (then - value) * (-1.0 if is_lower_better(metric) else 1.0)
    return worse_by > spread * NormalDist().inv_cdf(1 - LEVEL / 2 / metrics)


def _means(rows: HeldOutRows, scores: Scores) -> dict[str, Json]:
    """Return by outcome the mean prediction and the observed mean. For masks there are none."""
    if rows.task == "regression":
        return {"the outcome": [float(scores.mean()), float(rows.targets.astype(np.float64).mean())]}
    return {name: [float(said.mean()), float(happened.mean())] for name, happened, said in rows.outcomes(scores)}


def quality_warnings(quality: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each metric of `quality_of` that became worse by more than chance."""
    for metric, is_worse in quality["is_worse"].items():
        if is_worse:
            found = quality["differences"][metric]["interval"]
            span = "" if found is None else f" (95% interval of the difference {found[0]:+.3f} to {found[1]:+.3f})"
            yield (
                f"The model is worse on the new rows than on the test rows. {metric} is "
                f"{quality['metrics'][metric]:.3f}, and was {quality['at_the_test'][metric]:.3f}{span}."
            )
