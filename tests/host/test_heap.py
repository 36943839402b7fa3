"""Memory for whole models is reused when no view of it exists, and never before."""

import mmap
import random
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from host import heap
from host.heap import return_memory, take_memory

LARGE = 4 << 20


def place(view: memoryview) -> int:
    """The address in memory at which a view begins."""
    array: npt.NDArray[np.uint8] = np.frombuffer(view, np.uint8)
    return array.ctypes.data


@pytest.mark.parametrize("count", [0, 1, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE + 12])
def test_memory_has_the_number_of_bytes_and_can_be_written(count: int) -> None:
    """Small or large, it holds what was written to it."""
    view = take_memory(count)
    assert len(view) == view.nbytes == count
    view[:] = bytes([7]) * count
    assert bytes(view) == bytes([7]) * count


def test_memory_is_used_again_once_the_last_view_of_it_is_gone() -> None:
    """An array that views a part of it keeps it, too."""
    first = take_memory(LARGE + 5)
    numbers, at = np.frombuffer(first[4:], np.uint8), place(first)
    del first
    other = take_memory(LARGE + 5)
    assert place(other) != at, "an array still looks at it"
    del numbers
    assert place(take_memory(LARGE + 9)) == at, "of the same number of pages"


def test_a_kernel_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a kernel refuses the hint. Memory that is all in use is reported as such, and not as a socket's end."""
    return_memory()
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1)
    assert len(take_memory(7 * LARGE)) == 7 * LARGE

    with pytest.raises(MemoryError):
        take_memory(1 << 60)


def test_no_two_that_are_in_use_share_a_byte() -> None:
    """Over drawn sequences of taking, keeping, dropping and returning, each holder finds what it wrote."""
    for seed in range(20):
        draw, held = random.Random(seed), dict[int, npt.NDArray[np.uint8]]()
        for mark in range(1, 60):
            match draw.randrange(4):
                case 0 | 1:
                    held[mark] = np.frombuffer(take_memory(draw.choice((LARGE, LARGE + 3, 2 * LARGE))), np.uint8)
                    held[mark][:] = mark
                case 2 if held:
                    del held[draw.choice(sorted(held))]
                case _:
                    return_memory()
            while len(held) > 5:
                del held[draw.choice(sorted(held))]
            for wrote, array in held.items():
                assert array[0] == array[-1] == array[array.size // 2] == wrote, (seed, mark)


def test_what_nobody_uses_is_returned_to_the_system() -> None:
    """Memory in use stays."""
    return_memory()
    before = len(heap._taken)  # of other tests
    kept, dropped = take_memory(LARGE), take_memory(2 * LARGE)
    assert len(heap._taken) == before + 2
    del dropped
    return_memory()
    assert [len(pages) for pages in heap._taken[before:]] == [len(kept)]


@pytest.mark.parametrize("start", ["pass", "with loading_modules(): import json"])
def test_cycles_are_found_less_often_and_never_among_the_objects_of_the_start(start: str) -> None:
    """In a process of its own: one cycle waits, many cycles do not, and what existed before stays out of the search."""
    script = """
import gc, weakref
from host.heap import loading_modules, set_up_collector

class Node: pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

START
set_up_collector()
assert gc.isenabled() and gc.get_freeze_count() > 1_000
first = cycle()
kept = [[] for _ in range(1_000)]
assert first() is not None, "a thousand new objects start no search"
kept = [[] for _ in range(20_000)]
assert first() is None, "later the cycle is found"
"""
    subprocess.run([sys.executable, "-c", script.replace("START", start)], check=True, timeout=60)


def test_modules_are_loaded_without_a_search_and_the_collector_works_again_afterwards() -> None:
    """It is off in the block only, also in a block inside a block and after an error; who had it off keeps it off."""
    script = """
import gc
from host.heap import loading_modules

with loading_modules():
    assert not gc.isenabled()
    with loading_modules():
        pass
    assert not gc.isenabled()
assert gc.isenabled() and gc.get_freeze_count() > 1_000
try:
    with loading_modules():
        import no_such_module
except ImportError:
    assert gc.isenabled()
gc.disable()
with loading_modules():
    pass
assert not gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    "program",
    ["coordinator", "pki", "site_agent", "site_agent.agent", "site_agent.trainer"],
)
def test_programs_are_loaded_without_a_search_and_run_with_the_collector(program: str) -> None:
    """The collector is off while the last of a program's modules is loaded. Afterwards it works as usual."""
    script = f"""
import gc, sys
usual, were_on = gc.get_threshold(), []

class Watch:
    def find_spec(self, name, path=None, target=None):
        were_on.append(gc.isenabled())

sys.meta_path.insert(0, Watch())
import {program}.__main__
assert not were_on[-1]
assert (gc.isenabled(), gc.get_threshold()) == (True, usual)
assert gc.get_freeze_count() > 10_000
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("module", ["host.heap", "coordinator", "site_agent", "global_layers.simulation"])
def test_a_researchers_import_leaves_the_collector_alone(module: str) -> None:
    """Only the programs of this project change how Python searches for unused objects."""
    script = f"""
import gc
usual = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
import {module}
assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == usual
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
