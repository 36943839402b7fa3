"""The fixture of all tests of a site."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from site_agent.desk.results import joining_models, simple_models

TREES = 50  # the least with which each row is out of a tree's bag


@pytest.fixture(scope="module", autouse=True)
def small_forests() -> Iterator[None]:
    """No test is about the number of trees, and 500 take most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining_models, "TREES", TREES)
        patch.setattr(simple_models, "_TREES", TREES)
        yield
