"""Tests of networks run as a site trains: one thread, deterministic algorithms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_deterministic_thread() -> Iterator[None]:
    # Threads that wait for each other over tiny tensors are slow wherever cores are shared.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
