"""The prior at many sites is measured on the deployed sums, with the noise of the plan."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.prior.prior_gain import CONCEPTS, uci_tables
from benchmarks.privacy import private_plan, split_at
from benchmarks.private_sites import (
    dealt,
    heart_concepts,
    heart_rows,
    noise_of_sites,
    sites_plan,
    split_of_rows,
    sums_of,
)

TABLES = uci_tables(CONCEPTS.parent)


def test_four_sites_have_the_sums_of_the_deployed_trainers() -> None:
    """The clinics' rows give the same integers as their studies do."""
    plan = private_plan(TABLES, 1.0)

    found = split_of_rows(sites_plan(heart_concepts(TABLES), 4, 1.0), list(heart_rows(TABLES, plan, 5)), 5)

    np.testing.assert_array_equal(found.total, split_at(TABLES, plan, 5).total)


def test_twenty_sites_have_each_row_once_and_both_outcomes() -> None:
    """Each clinic's rows are dealt to five sites, each class evenly."""
    plan = private_plan(TABLES, 1.0)
    for rows in heart_rows(TABLES, plan, 5):
        for design, outcomes in rows:
            parts = dealt((design, outcomes), 5, 5)
            counts = np.array([[np.sum(mine == value) for value in (0, 1)] for _, mine in parts])

            assert np.sort(np.concatenate([one for one, _ in parts]), axis=0) == pytest.approx(np.sort(design, axis=0))
            assert counts.sum() == len(outcomes)
            assert np.ptp(counts, axis=0).max() <= 1


@pytest.mark.parametrize(("kind", "times"), [("shared", 20 / 19), ("each", 20)])
def test_shares_of_twenty_sites_are_a_nineteenth_more_variance_than_a_curators(kind: str, times: float) -> None:
    """Each site's whole noise has twenty times the variance, and the fit receives the deviation of that noise."""
    private = sums_of(sites_plan(heart_concepts(TABLES), 20, 1.0))
    drawn = {one: [noise_of_sites(private, one) for _ in range(40)] for one in (kind, "curator")}

    variances = {one: np.var(np.concatenate([noise for noise, _ in many])) for one, many in drawn.items()}

    assert variances[kind] / variances["curator"] == pytest.approx(times, rel=0.1)  # ten standard errors
    assert np.sqrt(variances[kind]) / 2**30 == pytest.approx(drawn[kind][0][1], rel=0.05)
