"""Resamples of a site's test rows: the laws of the bootstrap, and metrics of thousands at once."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.comparison.bootstrap_intervals import resampled_metrics, resamples_of
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.trainer.data.contract import Task
from site_agent.trainer.fitted_models import probabilities
from tests.for_each import for_each

CLASSES = ("a", "b", "c", "d")
EXACT = 1e-12


def made_up(task: Task, rows: int, generator: np.random.Generator, decimals: int) -> tuple[HeldOutRows, Scores]:
    """Rows with scores that know something of them; few decimals make ties."""
    if task == "regression":
        targets = 50.0 + generator.normal(size=rows)
        return HeldOutRows(task=task, targets=targets, classes=()), targets + generator.normal(size=rows)
    classes = CLASSES[: 2 if task == "binary" else 4]
    labels = np.r_[np.arange(len(classes)), generator.integers(0, len(classes), size=rows - len(classes))]
    noise = generator.normal(size=(rows, len(classes))) + 0.8 * np.eye(len(classes))[labels]
    scores = np.round(probabilities("multi-class", noise), decimals)
    # Rounded rows no longer add up to one, which scikit-learn would warn about.
    scores[:, -1] = 1.0 - scores[:, :-1].sum(axis=1)
    return HeldOutRows(task=task, targets=labels, classes=classes), scores[:, 1] if task == "binary" else scores


@pytest.mark.parametrize("decimals", [1, 12])
@pytest.mark.parametrize("task", ["binary", "multi-class", "regression"])
@for_each("seed", range(3))
def test_a_resample_is_measured_as_its_rows_are(task: Task, decimals: int, seed: int) -> None:
    """Every metric on every resample equals `measure` on the repeated rows, ties included."""
    rows, scores = made_up(task, 40, np.random.default_rng(seed), decimals)

    (counts,) = resamples_of(rows, seed, number=12)
    found = resampled_metrics(rows, scores)(counts)

    for place, drawn in enumerate(counts):
        repeated = np.repeat(np.arange(len(drawn)), drawn.astype(np.int64))
        again = HeldOutRows(task=task, targets=rows.targets[repeated], classes=rows.classes)
        expected = again.evaluate(scores[repeated])
        assert {name: values[place] for name, values in found.items()} == pytest.approx(expected, rel=EXACT, abs=EXACT)


def test_all_resamples_are_measured_in_blocks() -> None:
    """2,000 resamples of 3,000 rows have every metric, and come in blocks, so that memory stays small."""
    rows, scores = made_up("binary", 3_000, np.random.default_rng(0), 12)
    prepared = resampled_metrics(rows, scores)

    found = [prepared(counts) for counts in resamples_of(rows, 0)]

    assert len(found) > 1
    assert sum(len(values["auroc"]) for values in found) == 2_000


TWO = ("negative", "positive")


def _all_counts(rows: HeldOutRows, seed: int = 0, number: int = 50) -> np.ndarray:
    return np.concatenate(list(resamples_of(rows, seed, number)))


def test_the_outcome_is_as_frequent_in_a_resample_as_in_another_test() -> None:
    """The number of events varies as a binomial number does, so that an interval knows that it could differ."""
    labels = (np.arange(100) < 20).astype(np.int64)

    events = _all_counts(HeldOutRows(task="binary", targets=labels, classes=TWO), number=4_000) @ labels

    assert events.mean() == pytest.approx(20, abs=0.3)
    assert events.std() == pytest.approx(np.sqrt(100 * 0.2 * 0.8), rel=0.05)


@for_each("seed", range(20))
def test_rows_of_one_patient_are_drawn_together(seed: int) -> None:
    """Equal counts within a patient, whose rows may stand anywhere; as many patients as there are."""
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, 12, size=40) * 1_000
    rows = HeldOutRows(task="binary", targets=generator.integers(0, 2, size=40), classes=TWO, patients=patients)

    counts = _all_counts(rows, seed)

    firsts = [int(np.flatnonzero(patients == patient)[0]) for patient in np.unique(patients)]
    for first in firsts:
        assert (counts[:, patients == patients[first]] == counts[:, [first]]).all()
    assert (counts[:, firsts].sum(axis=1) == len(firsts)).all()
