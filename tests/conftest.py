"""Settings for every test."""

from __future__ import annotations

import gc
import inspect
import os
import signal
from collections.abc import Generator, Iterator
from functools import lru_cache

import pytest
from hypothesis import settings
from yaml.nodes import Node

from protos.plan import documents
from tests.rehearsal.made_up_time import play

# Threads that wait for each other over small arrays more than double what a test costs, in programs of a test too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would each program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One commit always has one result. `--hypothesis-profile search` draws new examples instead. There is no deadline,
# because an example that waits for a busy computer is no defect.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Cycles are looked for among what tests make, not in loaded libraries and thousands of collected tests. Looking
    through those again and again took a twentieth of the suite's processor time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in made-up time."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    play(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="session", autouse=True)
def documents_read_once() -> Iterator[None]:
    """Hundreds of tests read the same contract or configuration. What YAML means depends on its bytes alone."""
    read = documents._compose

    @lru_cache(256)
    def kept(raw: bytes, protection: object) -> Node:  # a tree that an attack on a weakened copy made is its own
        return read(raw)

    def compose(raw: bytes) -> Node:
        return kept(raw, documents._refuse_surprises) if len(raw) < 1 << 14 else read(raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_compose", compose)
        yield


@pytest.fixture(autouse=True)
def the_accounts_own_permissions() -> Iterator[None]:
    """The programs' `main` gives new files to their user alone, for the rest of its process."""
    mask = os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
