"""Fed-Heart-Disease and PLayer-FL's heart row: the published parts, columns and scales."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.data.uci_centres import CENTRES, fed_heart, player_heart
from benchmarks.experiments.data.views import pooled
from tests.for_each import for_each

from .conftest import DATA, needs_heart

pytestmark = needs_heart


@for_each("seed", range(5))
def test_fed_heart_has_flambys_parts(seed: int) -> None:
    """199/104, 172/89, 30/16 and 85/45 rows of 13 columns; a fifth of the former chooses, rounded down."""
    sites = fed_heart(DATA, seed)

    found = [(len(site.training), len(site.validation), len(site.test)) for site in sites.values()]

    assert found == [(160, 39, 104), (138, 34, 89), (24, 6, 16), (68, 17, 45)]
    assert {len(site.columns) for site in sites.values()} == {13}
    assert len({site.columns for site in sites.values()}) == 1


def test_the_majority_guess_is_the_published_one() -> None:
    """Guessing each centre's more frequent class is right in .721 of its test rows, averaged over centres."""
    rates = [site.test.targets.mean() for site in fed_heart(DATA, 0).values()]

    assert np.mean([max(rate, 1 - rate) for rate in rates]) == pytest.approx(0.721, abs=5e-4)


def test_test_rows_are_the_same_in_every_run() -> None:
    """The run decides only the validation rows. So runs differ in training rows and never in test rows."""
    first, second = fed_heart(DATA, 0), fed_heart(DATA, 1)

    for name in CENTRES:
        np.testing.assert_array_equal(first[name].test.features, second[name].test.features)
        assert not np.array_equal(first[name].training.features, second[name].training.features)


@pytest.mark.parametrize("one_scale", [False, True])
def test_the_scale_is_of_all_rows_that_are_not_tested(one_scale: bool) -> None:
    """Mean 0 and deviation 1 (n - 1) over training and choosing rows: a centre's own, or all centres'."""
    sites = fed_heart(DATA, 3, one_scale=one_scale)
    tables = [pooled(sites)] if one_scale else list(sites.values())

    for table in tables:
        rows = np.concatenate([table.training.features, table.validation.features])
        np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5)
        deviations = rows.std(axis=0, ddof=1)
        np.testing.assert_allclose(deviations[deviations > 0], 1, atol=1e-5)


def test_switzerlands_cholesterol_says_nothing() -> None:
    """It is 0 in every row, so the column is 0 and not a division by nothing."""
    site = fed_heart(DATA, 0)["switzerland"]

    column = site.columns.index("chol")

    assert not site.training.features[:, column].any()
    assert not site.test.features[:, column].any()


def test_player_heart_has_ten_columns_and_five_classes() -> None:
    """740 rows at four centres; every site knows five classes, whichever its patients have."""
    sites = player_heart(DATA)

    counts = [len(site.training) + len(site.validation) + len(site.test) for site in sites.values()]

    assert counts == [303, 261, 46, 130]
    assert [(len(site.training), len(site.validation), len(site.test)) for site in sites.values()] == [
        (193, 49, 61),
        (166, 42, 53),
        (28, 8, 10),
        (83, 21, 26),
    ]
    assert {site.outputs for site in sites.values()} == {5}
    assert {site.training.features.shape[1] for site in sites.values()} == {10}
    assert set(np.unique(sites["hungarian"].training.targets)) == {0, 1}
    assert sites["va"].training.targets.dtype == np.int64


def test_player_hearts_scale_is_the_authors() -> None:
    """Undone with the constants of their code, the ages are whole years, to a twentieth of one."""
    site = player_heart(DATA)["cleveland"]
    ages = np.concatenate([part.features[:, 0] for part in (site.training, site.validation, site.test)])

    years = ages.astype(np.float64) * np.sqrt(70.1459463) + 53.0872973

    np.testing.assert_allclose(years, np.round(years), atol=0.05)
    assert set(np.unique(site.training.features[:, 1])) == {0.0, 1.0}
