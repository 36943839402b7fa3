"""The fixtures for tests of a hostile coordinator."""

from __future__ import annotations

import pytest

from protos.plan.plan import Plan
from tests.federation import clear_plan
from tests.rehearsal.federation import Office
from tests.rehearsal.study import THREE_CHUNKS


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with a hostile coordinator."""
    office = Office.found(tmp_path_factory.mktemp("heart"))
    assert len(office.identities) == 3
    return office


@pytest.fixture
def plan() -> Plan:
    """The hospital's approval: three rounds of 600,000 numbers in the clear."""
    return clear_plan(parameters=THREE_CHUNKS)
