"""How this program takes memory from the system."""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8  # malloc.h


def use_one_arena() -> bool:
    """Let all threads share one heap; whether the C library took notice. Call before threads are started.

    glibc gives each of gRPC's threads an arena of its own, up to eight for each core. A chunk that comes in on one and
    goes out on another leaves holes in all of them, and what is free in one serves no other: with a hundred sites
    twice of what was in use. One heap cost no processor time that could be measured. Other C libraries have no such
    setting, and need none.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))
    except (AttributeError, OSError):
        return False
