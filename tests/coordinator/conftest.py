"""The common beginning of several files of tests."""

from __future__ import annotations

from datetime import timedelta

import pytest

from protos.plan.plan import Plan
from tests.rehearsal.federation import Office, utc_now
from tests.rehearsal.study import THREE_CHUNKS, plan_with


@pytest.fixture(scope="session")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three enrolled sites, founded nine days ago, which no test changes."""
    office = Office.found(tmp_path_factory.mktemp("aged"), now=utc_now() - timedelta(days=9))
    assert office.identities
    return office


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three enrolled sites, which no test changes."""
    office = Office.found(tmp_path_factory.mktemp("heart"))
    assert len(office.identities) == 3
    return office


@pytest.fixture
def plan(office: Office) -> Plan:
    """Two rounds with three chunks each."""
    return plan_with(office.identities, parameters=THREE_CHUNKS, rounds=2)
