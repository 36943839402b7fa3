"""Suggests the most similar known name for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# A similar name has half of its letters in place. If no name is similar, the message lists all known names.
_LIKENESS: Final = 0.5


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to this name, ignoring case, or None if no name is similar."""
    by_small_letters = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=_LIKENESS)
    return by_small_letters[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean fedprox?`, or `known are fedavg, fedprox` if no known name is similar."""
    names = list(known)
    near = nearest_name(name, names)
    return f"did you mean {near}?" if near is not None else f"known are {', '.join(sorted(names))}"
