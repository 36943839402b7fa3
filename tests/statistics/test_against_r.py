"""R's survival on the pooled table gives the same coefficients, errors, p values, tests and medians."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.for_each import for_each
from tests.statistics.references import has_r, largest_difference, of_r, of_sums
from tests.statistics.survival_tables import TABLES, SurvivalTable


@pytest.mark.slow
@for_each("table", TABLES)
def test_r_gives_the_same(table: SurvivalTable, tmp_path: Path) -> None:
    """All differ by less than 1e-9; the rounding of sums to 2**-37 gives up to about 1e-10."""
    if not has_r():
        pytest.skip("no Rscript with the package survival (Debian: apt install r-cran-survival)")

    expected, found = of_r(table, tmp_path), of_sums(table).printed

    assert largest_difference(expected, found, *expected) < 1e-9
