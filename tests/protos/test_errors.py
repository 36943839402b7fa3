"""Errors in three sentences, and the exit status that services and scripts rely on."""

from __future__ import annotations

import pytest

from protos.errors import (
    ConfigurationError,
    DataError,
    OperatorError,
    ProtocolError,
    RefusedError,
    UnavailableError,
    UsageError,
)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (OperatorError, 1), (ProtocolError, 1), (UnavailableError, 1), (UsageError, 2), (RefusedError, 77),
        (ConfigurationError, 78), (DataError, 78),
    ],
)  # fmt: skip
def test_each_kind_ends_a_program_with_its_own_status(kind: type[OperatorError], status: int) -> None:
    """A service is restarted after 1 and never after 77 and 78, so the numbers are fixed."""
    error = kind(what="It broke.", consequence="Nothing left.", remedy="Correct it.")

    assert error.exit_status == status
