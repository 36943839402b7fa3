"""The fixture of all tests of the benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from site_agent.desk.results import joining_models, simple_models


@pytest.fixture(scope="module", autouse=True)
def small_forests() -> Iterator[None]:
    """No test is about the number of trees, and 500 take most of a table's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining_models, "TREES", 50)
        patch.setattr(simple_models, "_TREES", 50)
        yield
