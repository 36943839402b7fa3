"""Sites aligned, pooled and among their own copies; on a table that every machine has."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.views import placebo


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
