"""How the programs reserve memory from the system."""

from __future__ import annotations

import ctypes
from typing import Final

# Of malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 8 << 20
_LARGE_BYTES: Final = 4 << 20


def set_up_heap() -> bool:
    """Let all threads share one heap that keeps some chunks' memory. Return whether the C library accepted this.

    Call it before threads are started. Two settings of glibc's would cost much here:

    * It gives each of gRPC's threads an arena of its own, up to eight for each core. A chunk that comes in on one and
      goes out on another leaves holes in all of them, and what is free in one serves no other: with a hundred sites
      twice of what was in use. One heap cost no processor time that could be measured.
    * It returns what is freed at the heap's end to the system at once. The next chunk then takes the same pages again,
      each by a fault of its own, cleared. So up to 8 MiB stay. What has 4 MiB is still returned at once.

    Other C libraries have no such settings, and need none.
    """
    wanted = ((_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _LARGE_BYTES))
    try:
        set_option = ctypes.CDLL(None).mallopt
        taken = [bool(set_option(option, value)) for option, value in wanted]
    except (AttributeError, OSError):
        return False
    return all(taken)
