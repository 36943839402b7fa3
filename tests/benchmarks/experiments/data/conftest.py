"""Where the shared public tables are; tests that need them skip where they are not."""

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
