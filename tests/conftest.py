"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# One commit, one verdict. `--hypothesis-profile search` draws new examples instead.
# And no deadline: an example that waits for a busy machine is no defect.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")
