"""The place of the shared public tables. Tests that need them are skipped if they are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[4].parent / "shared" / "data"

needs_heart = pytest.mark.skipif(
    not (DATA / "heart").is_dir(), reason="the shared public heart tables are not beside this checkout"
)
needs_covertype = pytest.mark.skipif(
    not (DATA / "covertype").is_dir(), reason="the shared public covertype tables are not beside this checkout"
)
