"""Sets how the programs request memory from the operating system and return it, and computes how much they may use."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

# Constants of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 8 << 20
_LARGE_BYTES: Final = 4 << 20
_LARGE_PAGE: Final = 2 << 20
_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
# New objects between two searches of Python's collector. Python's own value is 700.
_OBJECTS_BETWEEN_SEARCHES: Final = 10_000
_taken: Final = list[mmap.mmap]()  # by take_memory, in use or free


def set_up_heap() -> bool:
    """Let all threads share one pool of memory that keeps some freed memory. Return whether the C library allows it.

    Call the function before threads are started. Two of glibc's settings would be expensive here:

    * each of gRPC's threads gets an arena of its own, up to eight for each core. A chunk that one thread receives and
      another one sends leaves holes in all arenas. With a hundred sites this doubled the memory. A single heap cost no
      measurable processor time;
    * memory that is freed at the heap's end is returned to the system at once. The next chunk takes the same pages
      again, and each page costs a fault and is cleared. So up to 8 MiB stay in the heap. Blocks of 4 MiB or more are
      still returned at once.

    Other C libraries have no such settings and need none.
    """
    wanted = ((_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _LARGE_BYTES))
    try:
        set_option = ctypes.CDLL(None).mallopt
        taken = [bool(set_option(option, value)) for option, value in wanted]
    except (AttributeError, OSError):
        return False
    return all(taken)


@contextmanager
def loading_modules() -> Iterator[None]:
    """Load modules in the `with` block, while Python does not search for unused objects (unreachable cycles).

    Modules make very many objects, and nearly all of them stay. So the searches find nearly nothing, and took a seventh
    of the time of a program's start. After the block Python searches as before, but never among the existing objects.
    Use the block only around imports of our own programs, because it changes the whole process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def set_up_collector() -> None:
    """Let Python search for unused objects (unreachable cycles) less often, and never among existing objects.

    Call the function at the end of a program's start, when its modules are loaded. A message of a round makes a few
    hundred objects, and nearly all are freed without a search. With Python's own value, the searches of all processes
    took a tenth of the processor time of a round of 1,000 parameters.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)


def take_memory(count: int) -> memoryview:
    """Return memory for a number of bytes. The content is arbitrary, so the caller must write every byte.

    Blocks of 4 MiB or more use large pages, and are used again when no view of them is left. The system clears each new
    page. For the vectors of a large model that used a tenth of a round's processor time. Call the function from one
    thread only.

    Raises:
        MemoryError: the system has no free memory.
    """
    if count < _LARGE_BYTES:
        return memoryview(bytearray(count))
    size = -(-count // _LARGE_PAGE) * _LARGE_PAGE
    pages = next((pages for pages in _taken if len(pages) == size and _is_free(pages)), None)
    if pages is None:
        return_memory()  # of a different size
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as cause:  # the reader of a socket would treat an OSError as the end of the connection
            raise MemoryError from cause
        with suppress(OSError):  # the kernel has no large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        _taken.append(pages)
    return memoryview(pages)[:count]


def return_memory() -> None:
    """Give memory from `take_memory` back to the operating system if no object uses it any longer."""
    _taken[:] = [pages for pages in _taken if not _is_free(pages)]


def usable_memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return how many bytes this process may use: the computer's memory, or a smaller limit of its control groups.

    Memory that other processes use now is not subtracted, so a later start gets the same result.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        group = next((line[4:] for line in own.read_text().splitlines() if line.startswith("0::/")), "")
        for place in (PurePosixPath(group), *PurePosixPath(group).parents):
            with suppress(OSError, ValueError):  # there is no limit, or the word max
                limits.append(int((groups / place / "memory.max").read_text()))
    return min(limits)


def _is_free(pages: mmap.mmap) -> bool:
    try:
        pages.resize(len(pages))  # changes nothing, and fails while a view exists
    except BufferError:
        return False
    return True
