"""Sites aligned, pooled and among their own copies; on a table that every machine has."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.data.dealt import FAMILIES, breast_cancer
from benchmarks.experiments.data.views import (
    only_columns,
    placebo,
)
from tests.for_each import for_each


@for_each("seed", range(5))
def test_every_patient_is_at_one_site(seed: int) -> None:
    """569 patients, each in one part of one site. Each site has its own families of columns."""
    sites = breast_cancer(seed)

    counts = [len(part) for site in sites.values() for part in (site.training, site.validation, site.test)]
    assert sum(counts) == 569
    assert min(counts) > 10
    assert [len(site.columns) for site in sites.values()] == [10 * len(families) for families in FAMILIES.values()]


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_a_placebo_brings_nothing_new(copies: int) -> None:
    """Every copy has exactly the site's own rows with their labels, in another order."""
    site = breast_cancer(2)["cluj"]

    sites = placebo(site, copies, seed=4)

    assert len(sites) == copies + 1
    assert sites["itself"] is site
    original = sorted(map(tuple, np.column_stack([site.training.features, site.training.targets]).tolist()))
    for name, copy in sites.items():
        rows = np.column_stack([copy.training.features, copy.training.targets])
        assert sorted(map(tuple, rows.tolist())) == original
        assert copy.validation is site.validation
        assert name == "itself" or not np.array_equal(copy.training.features, site.training.features)
    assert len({copy.digest for copy in sites.values()}) == copies + 1


def test_a_site_with_fewer_columns_keeps_its_rows() -> None:
    """The named columns in the named order, every part with all its rows; an unknown name is refused."""
    site = breast_cancer(1)["ahus"]
    names = (site.columns[4], site.columns[1])

    found = only_columns(site, names)

    assert found.columns == names
    for part, whole in ((found.training, site.training), (found.validation, site.validation), (found.test, site.test)):
        np.testing.assert_array_equal(part.features, whole.features[:, [4, 1]])
        np.testing.assert_array_equal(part.targets, whole.targets)
    with pytest.raises(ValueError, match="not in tuple"):
        only_columns(site, ["age"])
