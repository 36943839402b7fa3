"""Settings for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pki import sealed_key

# Threads that wait for each other over small arrays more than double what a test costs, in programs of a test too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would each program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One commit always has one result. `--hypothesis-profile search` draws new examples instead. There is no deadline,
# because an example that waits for a busy computer is no defect.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def cheap_passphrases() -> Iterator[None]:
    """A passphrase costs a third of a second. Only test_sealed_key.py needs that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_key, "_COST", 2)
        yield
