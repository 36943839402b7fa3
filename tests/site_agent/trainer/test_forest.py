"""A forest stored as arrays predicts as scikit-learn's own does, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from site_agent.trainer import fitted_models as forests
from site_agent.trainer.fitted_models import Forest, forest_of
from tests.for_each import for_each


def table(seed: int, classes: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Rows with ties, constants and equal rows, as tables of patients have them."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, 5)).astype(np.float32)
    features[:, 1] = generator.integers(0, 3, rows)
    features[:, 2] = 1.0
    features[::7] = features[0]
    labels = generator.integers(0, classes, rows)
    labels[:classes] = np.arange(classes)
    return features, labels


@pytest.mark.parametrize("classes", [2, 3, 5])
@for_each("seed", range(10))
def test_shares_of_classes_equal_scikit_learns(seed: int, classes: int) -> None:
    """To 1e-12, for rows it was grown from and others, thresholds themselves included."""
    features, labels = table(seed, classes)
    grown = RandomForestClassifier(20, min_samples_leaf=2, random_state=seed).fit(features, labels)

    forest = forest_of(grown.estimators_)

    others = np.concatenate([features, table(seed + 100, classes)[0], _at_thresholds(forest)])
    np.testing.assert_allclose(forest.answers(others), grown.predict_proba(others), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [1, 37, 1000])
def test_a_row_is_answered_alike_among_any_others(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, in blocks or all at once: the same bits."""
    features, labels = table(3, 3)
    forest = forest_of(RandomForestClassifier(10, random_state=0).fit(features, labels).estimators_)
    whole = forest.answers(features)
    monkeypatch.setattr(forests, "_BLOCK_PAIRS", block)

    np.testing.assert_array_equal(forest.answers(features), whole)
    for number in range(len(features)):
        np.testing.assert_array_equal(forest.answers(features[number : number + 1])[0], whole[number])
    assert forest.answers(features[:0]).shape == (0, 3)


def test_its_words_show_no_number() -> None:
    """Leaves are shares of few patients, and a record may end up in a traceback."""
    features, labels = table(1, 2)
    forest = forest_of(RandomForestClassifier(3, random_state=0).fit(features, labels).estimators_)

    assert "array" not in repr(forest)


def _at_thresholds(forest: Forest) -> np.ndarray:
    """Rows whose value in some column is exactly what a node compares with, as near as float32 has it."""
    inner = np.flatnonzero(np.isfinite(forest.thresholds))
    rows = np.zeros((len(inner), 5), np.float32)
    rows[np.arange(len(inner)), forest.columns[inner]] = forest.thresholds[inner]
    return rows
