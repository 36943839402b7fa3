"""Measures how well a model predicts in groups of patients, such as women and men, or wards.

A model that is good on average can be bad for some patients. The rules:

* groups are those of the test rows, and each result has its number of rows;
* a group of fewer than FEWEST_ROWS rows has no result, because it would mean nothing;
* the intervals use the same bootstrap as the rest of the report, within the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, headline_metric
from site_agent.desk.comparison.gain import FEWEST_NUMBERS, FEWEST_OF_A_CLASS
from site_agent.trainer.disk import Json

FEWEST_ROWS = 10
MOST_VALUES = 20
_RESAMPLES = 500
_MODEL = "model"


def subgroups(
    rows: HeldOutRows, scores: Scores, groups: Mapping[str, Sequence[str]], seed: int
) -> list[dict[str, Json]]:
    """Return the facts about a model's result in each group of patients. Each column has up to MOST_VALUES groups.

    `positive` is the number of rows with the outcome, and `predicted` the mean probability, both None unless the
    outcome is yes or no. The headline metric is under its own name, None if it is undefined or the rows are too few.

    Args:
        groups: for each group its value in each row, of length rows.
    """
    found: list[dict[str, Json]] = []
    for group, values in groups.items():
        cells = np.array(values, dtype=np.str_)
        names, counts = np.unique(cells, return_counts=True)
        for value in sorted(names[np.argsort(-counts, kind="stable")][:MOST_VALUES]):
            facts = _subgroup(rows, scores, np.flatnonzero(cells == value), seed)
            found.append({"group": group, "value": str(value), **facts})
    return found


def _subgroup(rows: HeldOutRows, scores: Scores, members: npt.NDArray[np.int64], seed: int) -> dict[str, Json]:
    metric, is_binary, part = headline_metric(rows.task), rows.task == "binary", rows.part(members)
    # Patients of the rarest class in it, or all its patients if there are no classes.
    fewest = min(part.class_counts, default=len(np.unique(part.owners)))
    found: dict[str, Json] = {
        "rows": len(members),
        "positive": int(part.labels.sum()) if is_binary else None,
        "fewest": fewest,
        "is_small": fewest < (FEWEST_OF_A_CLASS if metric == "auroc" else FEWEST_NUMBERS),
    }
    if len(members) < FEWEST_ROWS:
        return found | dict.fromkeys((metric, "interval", "predicted"))
    compared = compare(part, {_MODEL: scores[members]}, seed, _RESAMPLES)
    interval = compared.interval(_MODEL, metric)
    return found | {
        metric: compared.metrics[_MODEL][metric],
        "interval": interval.to_json() if interval else None,
        "predicted": float(scores[members].mean()) if is_binary else None,
    }
