"""The fixtures of the laws."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def disk_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For laws that are not about power cuts in the middle of a write."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
