"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# One commit, one verdict. `--hypothesis-profile search` draws new examples instead.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")
