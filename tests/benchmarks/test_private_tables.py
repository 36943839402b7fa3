"""The two larger clinical tables have all their patients and declared scales.

No column follows from the outcome.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.private_networks import Kind, noise_of
from benchmarks.private_tables import clinical_rows, mean_and_error, table_plan


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


def test_a_standard_error_is_of_the_draws_and_not_of_the_splits() -> None:
    """Repeated experiments on the same splits spread by it, however far the splits are apart."""
    splits = np.array([0.5, 0.7, 0.9])[:, None]
    areas = splits + 0.01 * np.random.default_rng(0).standard_normal((500, 3, 20))

    means, errors = mean_and_error(areas)

    assert means.std() == pytest.approx(0.01 / np.sqrt(60), rel=0.1)
    assert errors.mean() == pytest.approx(means.std(), rel=0.1)


@pytest.mark.parametrize(("kind", "sites", "times"), [("shared", 4, 4 / 3), ("no-colluder", 4, 1), ("each", 4, 4)])
def test_a_colluder_in_four_costs_a_third_more_variance_than_a_curator(kind: Kind, sites: int, times: float) -> None:
    """Shares of four sites are a curator's noise if no site colludes, and more if one does."""
    plan = table_plan(3, 1.0, 3000)

    noise, curator = noise_of(plan, kind, sites, 20_000), noise_of(plan, "curator", 1, 20_000)

    assert noise.var() / curator.var() == pytest.approx(times, rel=0.1)  # ten standard errors
