"""The fixtures of all tests of a site."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from site_agent.desk.comparison.bootstrap_intervals import compare
from site_agent.desk.findings import facts as findings
from site_agent.desk.results import joining_models, run_report, simple_models

TREES = 50  # the least with which each row is out of a tree's bag
RESAMPLES = 100


@pytest.fixture(scope="module", autouse=True)
def small_forests() -> Iterator[None]:
    """No test is about the number of trees, and 500 take most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining_models, "TREES", TREES)
        patch.setattr(simple_models, "_TREES", TREES)
        yield


@pytest.fixture(scope="module", autouse=True)
def small_reports() -> Iterator[None]:
    """A report draws thousands of resamples; tests of what else it has need few. Tests of the intervals and of the
    choice of a simple model have a fixture of this name that leaves the numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "compare", partial(compare, resamples=RESAMPLES))
        patch.setattr(findings, "_RESAMPLES", RESAMPLES)
        patch.setattr(simple_models, "_CHOOSING_FOLDS", 2)
        yield
