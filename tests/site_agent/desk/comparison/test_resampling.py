"""The laws of a bootstrap of a site's test rows."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.comparison.bootstrap_intervals import over_patients
from site_agent.desk.comparison.evaluation import HeldOutRows
from tests.for_each import for_each

TWO = ("negative", "positive")


def all_counts(rows: HeldOutRows, seed: int = 0, number: int = 50) -> np.ndarray:
    """Every resample's counts, shape (number, rows)."""
    return np.concatenate(list(over_patients(len(rows), rows.patients, seed, number).blocks()))


def test_the_outcome_is_as_frequent_in_a_resample_as_in_another_test() -> None:
    """The number of events varies as a binomial number does, so that an interval knows that it could differ."""
    labels = (np.arange(100) < 20).astype(np.int64)

    events = all_counts(HeldOutRows(task="binary", targets=labels, classes=TWO), number=4_000) @ labels

    assert events.mean() == pytest.approx(20, abs=0.3)
    assert events.std() == pytest.approx(np.sqrt(100 * 0.2 * 0.8), rel=0.05)


@for_each("seed", range(20))
def test_rows_of_one_patient_are_drawn_together(seed: int) -> None:
    """Equal counts within a patient, whose rows may stand anywhere; as many patients as there are."""
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, 12, size=40) * 1_000
    rows = HeldOutRows(task="binary", targets=generator.integers(0, 2, size=40), classes=TWO, patients=patients)

    counts = all_counts(rows, seed)

    firsts = [int(np.flatnonzero(patients == patient)[0]) for patient in np.unique(patients)]
    for first in firsts:
        assert (counts[:, patients == patients[first]] == counts[:, [first]]).all()
    assert (counts[:, firsts].sum(axis=1) == len(firsts)).all()
