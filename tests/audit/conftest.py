"""Two programs whose logs witness each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.wire.log_checkpoints import COORDINATOR
from tests.audit.audit_sides import SITE, Side, meet


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """A site and a coordinator that have met once, each with a few records."""
    both = Side(tmp_path / "site", SITE), Side(tmp_path / "coordinator", COORDINATOR)
    for side in both:
        side.work()
    meet(*both)
    yield both
    for side in both:
        side.log.close()
