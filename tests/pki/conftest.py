"""A federation to test with: its authority is made once, its register for every test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pki.authority import Authority, FederationRecord
from pki.names import Address, FederationName
from pki.register import Register


@pytest.fixture(scope="session")
def now() -> datetime:
    """The moment at which the tests take place."""
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="session")
def record() -> FederationRecord:
    """The federation called heart."""
    both = {"coordinator": Address("localhost", 8443), "enrolment": Address("127.0.0.1", 8444)}
    return FederationRecord(federation=FederationName("heart"), **both, hosts=("coordinator.example.org",))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory, record: FederationRecord, now: datetime) -> Authority:
    """An authority whose files no test changes."""
    directory = tmp_path_factory.mktemp("authority") / "pki"
    return Authority.create(directory, record, passphrase="correct horse battery", now=now)


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    """An empty register."""
    with Register.create(tmp_path / "register.sqlite") as register:
        yield register
