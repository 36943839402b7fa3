"""What several files of tests begin with."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.rehearsal.federation import Office, utc_now


@pytest.fixture(scope="session")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three enrolled sites, founded nine days ago, which no test changes."""
    office = Office.found(tmp_path_factory.mktemp("aged"), now=utc_now() - timedelta(days=9))
    assert office.identities
    return office
