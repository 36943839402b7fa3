"""Importance on more rows and features than are asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.findings.importance import MOST_FEATURES, MOST_ROWS, cuts, importances
from tests.site_agent.desk.export.test_parity import contract


def test_rows_sorted_by_outcome_have_importance() -> None:
    """The rows are drawn: the first ones would be of one class, whose headline metric is not defined."""
    targets = np.repeat([0, 1], 2 * MOST_ROWS)
    rows = HeldOutRows(task="binary", targets=targets, classes=("no", "yes"))
    declared = contract("binary")
    features = np.zeros((len(rows), len(declared.encoded_columns)), dtype=np.float32)
    features[:, 0] = targets
    columns = {feature.name: [place] for place, feature in enumerate(declared.features)}

    def score(columns: npt.NDArray[np.float32]) -> Scores:
        return columns[:, 0].astype(np.float64)

    found = importances(rows, features, columns, score, 1)

    assert found[0].feature == declared.features[0].name
    assert found[0].loss > 0.4


def test_what_was_cut_is_told() -> None:
    """Nothing at the limits; a sentence each beyond them."""
    assert cuts(MOST_FEATURES, MOST_ROWS) == []
    assert len(cuts(MOST_FEATURES + 1, MOST_ROWS + 1)) == 2
