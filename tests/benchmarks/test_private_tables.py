"""The two larger clinical tables have all their patients and declared scales.

No column follows from the outcome.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.private_tables import clinical_rows, table_plan


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "patients", "columns"), [("rhc", 5591, 77), ("support2", 9105, 59)])
def test_a_table_is_split_whole_and_depends_on_no_measured_scale(name: str, patients: int, columns: int) -> None:
    """Each patient who was followed for 180 days is in one part, and a plan fits the finite numbers."""
    pytest.importorskip("SurvSet", reason="the extra clinical-tables is not installed")
    rows, count = clinical_rows(name, 0)
    again, _ = clinical_rows(name, 1)

    features = np.concatenate([rows.training[0], rows.test[0]])
    other = np.concatenate([again.training[0], again.test[0]])

    assert (count, *features.shape) == (patients, patients, columns)
    assert np.isfinite(features).all()
    assert np.abs(features).max() <= 4
    assert set(np.concatenate([rows.training[1], rows.test[1]])) == {0.0, 1.0}
    np.testing.assert_allclose(np.sort(features.sum(axis=1)), np.sort(other.sum(axis=1)))
    best = max(abs(np.corrcoef(column, rows.training[1])[0, 1]) for column in rows.training[0].T if column.std() > 0)
    assert best < 0.4  # a column that followed from the outcome would be near 1
    assert table_plan(columns, 1.0, 3000).private_training is not None
