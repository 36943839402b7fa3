"""Measures the importance of a feature: how much worse a model predicts if the values of this feature are shuffled.

Source: Breiman 2001; Fisher, Rudin and Dominici 2019. All columns of a feature are shuffled together. Two features
with the same information share their importance. So a small importance does not mean that a feature is unimportant
for the patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import is_lower_better
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, auroc, headline_metric

REPEATS: Final = 10
MOST_ROWS: Final = 2_000
MOST_FEATURES: Final = 60


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How much worse a model becomes if one feature is shuffled: mean and standard deviation over several shuffles."""

    feature: str
    loss: float
    deviation: float


def cuts(features: int, rows: int) -> list[str]:
    """Return notes for the reader of the report if some features or test rows were not used for the importance."""
    found = []
    if features > MOST_FEATURES:
        found.append(f"The importance was computed only for the first {MOST_FEATURES} of {features} features.")
    if rows > MOST_ROWS:
        found.append(f"The importance was computed from {MOST_ROWS} of {rows} test rows, chosen at random.")
    return found


def importances(
    rows: HeldOutRows,
    features: npt.NDArray[np.float32],
    columns: Mapping[str, Sequence[int]],
    score: Callable[[npt.NDArray[np.float32]], Scores],
    seed: int,
) -> tuple[Importance, ...]:
    """Return the importance of each feature, the most important feature first. Return none if the metric is undefined.

    `features` are float32 (rows, columns), encoded. The first MOST_FEATURES features and MOST_ROWS drawn rows are used.
    `columns` has the positions of each feature's columns. A model of images has no features.
    """
    if not columns:
        return ()
    # The rows are drawn at random, because some tables are sorted by their outcome.
    kept = np.sort(np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS])
    part, features, metric = rows.part(kept), features[kept], headline_metric(rows.task)
    sign = 1.0 if is_lower_better(metric) else -1.0
    whole = _reached(part, metric, score(features))
    if whole is None:
        return ()
    generator, found = np.random.default_rng(seed), []
    for feature, places in list(columns.items())[:MOST_FEATURES]:
        losses = []
        for _ in range(REPEATS):
            shuffled = features.copy()
            shuffled[:, places] = features[generator.permutation(len(kept))][:, places]
            figure = _reached(part, metric, score(shuffled))
            losses.append(sign * ((figure if figure is not None else whole) - whole))
        found.append(Importance(feature=feature, loss=float(np.mean(losses)), deviation=float(np.std(losses))))
    return tuple(sorted(found, key=lambda one: -one.loss))


def _reached(rows: HeldOutRows, metric: str, scores: Scores) -> float | None:
    # Only one metric is computed, because all metrics of hundreds of shuffles would take most of a report's time.
    return auroc(rows.labels, scores) if metric == "auroc" else rows.evaluate(scores)[metric]
